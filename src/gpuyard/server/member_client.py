"""HTTP to another server of the instance. Each connection is used only once that server
has proven who it is: by TLS, or by the challenge of `config/proof.py`.
"""

from collections.abc import Iterable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, cast

import httpcore
import httpx

from gpuyard.config.dialling import CONNECT_S, Tls
from gpuyard.config.proof import Challenge

_TIMEOUT = httpx.Timeout(CONNECT_S, read=None, pool=None)
_READ_BYTES = 1 << 16


def member_client(url: str, token: str, tls: Tls) -> httpx.AsyncClient:
    """A client of the server at `url`, which proves that it knows `token`.

    httpx.ConnectError when it cannot; OSError when the certificates of `tls` cannot be
    read.
    """
    if url.startswith("https:"):
        transport = httpx.AsyncHTTPTransport(
            verify=tls.context(), limits=httpx.Limits(max_connections=None)
        )
    else:
        transport = _ChallengingTransport(url, token)
    # It passes on what many people send, so it keeps no cookies of any.
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(
        transport=transport, trust_env=False, timeout=_TIMEOUT, cookies=no_cookies
    )


class _ChallengingTransport(httpx.AsyncHTTPTransport):
    def __init__(self, url: str, token: str) -> None:
        super().__init__(verify=False)  # there is no TLS
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=None, network_backend=_Backend(url, token)
        )


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, url: str, token: str) -> None:
        self._plain: httpcore.AsyncNetworkBackend = cast(Any, httpcore.AnyIOBackend)()
        self._url = url
        self._token = token

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (httpcore's signature)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect, and challenge the server before anything else is sent."""
        stream = await self._plain.connect_tcp(
            host, port, timeout, local_address, socket_options
        )
        try:
            challenge = Challenge(self._url, self._token)
            await stream.write(challenge.request, timeout)
            while not challenge.receive(await stream.read(_READ_BYTES, timeout)):
                pass
        except BaseException as error:
            await stream.aclose()
            if isinstance(error, OSError | httpcore.NetworkError | TimeoutError):
                raise httpcore.ConnectError(str(error)) from error
            raise
        return stream
