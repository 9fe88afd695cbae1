"""The connections to an API server with one account.

They stay open while somebody reads from them, also when the account has got new
credentials meanwhile: the server asks for credentials only at the start of a request.
"""

# kubernetes_asyncio has no types.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
import asyncio
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from kubernetes_asyncio.client.api_client import ApiClient

from gpuyard import __version__
from gpuyard.providers.kubernetes.credentials import Credentials

# The files of credentials are looked at, at most so often.
_LOOK_S = 1.0
# After credentials could not be renewed. The old ones may still be good.
_PATIENCE_S = 10.0
_MOST_CALLS = 100
_NO_LIMIT = 0
# A connection on which nothing arrives is dead after about 25 seconds.
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000),
)


class ClusterConnection:
    """The clients that use one set of credentials.

    `calls` is for requests that are answered at once. `streams` is for watches and
    logs, each of which holds a connection: they have a pool of their own, so that no
    call waits for them.
    """

    def __init__(self, credentials: Credentials) -> None:
        self.credentials: Final = credentials
        configuration = credentials.configuration
        configuration.connection_pool_maxsize = _MOST_CALLS
        self.calls: Final = ApiClient(configuration)
        configuration.connection_pool_maxsize = _NO_LIMIT
        self.streams: Final = ApiClient(configuration)
        for client in (self.calls, self.streams):
            client.user_agent = f"gpuyard/{__version__}"
        self._users = 0
        self._is_retired = False
        self._closing: asyncio.Task[None] | None = None
        self._look_at = 0.0
        self._keep_until = 0.0

    @property
    def host(self) -> str:
        """The address of the API server."""
        return str(self.credentials.configuration.host)

    def is_old(self) -> bool:
        """Whether its credentials should be read again before the next request."""
        now = time.monotonic()
        if now < self._keep_until:
            return False
        if self.credentials.expire_soon():
            return True
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_S
        return self.credentials.have_changed()

    def keep_for_now(self) -> None:
        """Use its old credentials for a while: there are no new ones."""
        self._keep_until = time.monotonic() + _PATIENCE_S

    @contextmanager
    def used(self) -> Generator[None]:
        """Keep it open in this context."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._close_if_unused()

    def retire(self) -> None:
        """Close it once nobody uses it."""
        self._is_retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_retired and not self._users and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.close())

    async def open_websocket(
        self,
        path: str,
        protocols: Sequence[str],
        query: Sequence[tuple[str, str]],
        limit_s: float,
    ) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket to the server; TimeoutError, aiohttp.ClientError."""
        client = self.streams
        headers = {"User-Agent": f"gpuyard/{__version__}"}
        await client.update_params_for_auth(headers, [], ["BearerToken"])
        session: aiohttp.ClientSession = client.rest_client.pool_manager
        async with asyncio.timeout(limit_s):
            opened = await session.ws_connect(
                self.host + path,
                protocols=protocols,
                params=list(query),
                headers=headers,
                proxy=client.rest_client.proxy,
                max_msg_size=_NO_LIMIT,
                autoclose=True,
            )
        _watch(opened.get_extra_info("socket"))
        return opened

    async def close(self) -> None:
        """Close it now."""
        await self.calls.close()
        await self.streams.close()


def notice_death(answer: aiohttp.ClientResponse) -> None:
    """Let the system watch the connection of an answer: a frozen one breaks then,
    instead of being silent for ever.
    """
    connection = answer.connection
    transport = connection.transport if connection else None
    _watch(transport.get_extra_info("socket") if transport else None)


def _watch(found: Any) -> None:
    if found is not None:
        for level, option, value in _SOCKET_OPTIONS:
            found.setsockopt(level, option, value)
