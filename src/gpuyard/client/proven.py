"""How httpx reaches a server on this machine: through its Unix socket, or at a port
where only our own user or root listens.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpcore
import httpx

from gpuyard.config.dialling import OwnPort, trusts_anyone
from gpuyard.config.sockets import refuse_other_users, short_path

_KEPT_CONNECTIONS = 20
_KEPT_S = 5.0


class OwnTransport(httpx.HTTPTransport):
    """Plain HTTP to our own server, at the socket `path` or, without one, at its port.
    The socket may also be that of the user `owner`.
    """

    def __init__(self, path: Path | None, owner: int | None = None) -> None:
        super().__init__(verify=False)  # there is no TLS
        self._pool = httpcore.ConnectionPool(
            max_connections=None,
            max_keepalive_connections=_KEPT_CONNECTIONS,
            keepalive_expiry=_KEPT_S,
            network_backend=_ProvingBackend(path, owner),
        )


class AsyncOwnTransport(httpx.AsyncHTTPTransport):
    """`OwnTransport`, awaited."""

    def __init__(self, path: Path | None, owner: int | None = None) -> None:
        super().__init__(verify=False)
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=None,
            max_keepalive_connections=_KEPT_CONNECTIONS,
            keepalive_expiry=_KEPT_S,
            network_backend=_AsyncBackend(path, owner),
        )


@contextmanager
def _refusing() -> Generator[None]:
    """A server that is not ours counts as one that cannot be reached."""
    try:
        yield
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from error


class _ProvingBackend(httpcore.SyncBackend):
    def __init__(self, path: Path | None, owner: int | None) -> None:
        self._path = path
        self._owner = owner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to our own server."""
        with _refusing():
            if self._path:
                with short_path(self._path) as short:
                    stream = self.connect_unix_socket(short, timeout)
                return self._checked(stream, None)
            own = None if trusts_anyone() else OwnPort(host, port)
            stream = super().connect_tcp(
                host, port, timeout, local_address, socket_options
            )
            return self._checked(stream, own)

    def _checked(
        self, stream: httpcore.NetworkStream, own: OwnPort | None
    ) -> httpcore.NetworkStream:
        try:
            if self._path:
                refuse_other_users(stream.get_extra_info("socket"), self._owner)
            if own:
                own.check()
        except BaseException:
            stream.close()
            raise
        return stream


class _AsyncBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, path: Path | None, owner: int | None) -> None:
        self._path = path
        self._owner = owner
        self._plain: httpcore.AsyncNetworkBackend = cast(Any, httpcore.AnyIOBackend)()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (httpcore's signature)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to our own server."""
        with _refusing():
            if self._path:
                with short_path(self._path) as short:
                    stream = await self._plain.connect_unix_socket(short, timeout)
                return await self._checked(stream, None)
            own = None if trusts_anyone() else OwnPort(host, port)
            stream = await self._plain.connect_tcp(
                host, port, timeout, local_address, socket_options
            )
            return await self._checked(stream, own)

    async def _checked(
        self, stream: httpcore.AsyncNetworkStream, own: OwnPort | None
    ) -> httpcore.AsyncNetworkStream:
        try:
            if self._path:
                refuse_other_users(stream.get_extra_info("socket"), self._owner)
            if own:
                own.check()
        except BaseException:
            await stream.aclose()
            raise
        return stream
