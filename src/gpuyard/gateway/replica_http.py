"""HTTP to replicas, with aiohttp's client. It does not look inside what it carries.

Connections are kept and used again. A part of an answer is there as soon as it comes.
"""

import asyncio
import io
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from gpuyard.gateway.replica_errors import ReplicaFailedError, ReplicaSilentError

_CONNECT_S = 5.0
# Servers close a connection that is idle for so long, some without telling.
_IDLE_S = 4.0
# So long may a header of an answer be. aiohttp's own limit is 8 KB.
_LONGEST_HEADER = 256 * 1024
_HEADERS = {
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "gpuyard",
}


class ReplicaResponse:
    """An answer whose head is here: its `status`, and its `headers` by their names in
    small letters.
    """

    def __init__(
        self, response: aiohttp.ClientResponse, silent_s: float | None
    ) -> None:
        self.status = response.status
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in response.raw_headers
        }
        self._response = response
        self._silent_s = silent_s

    async def part(self) -> bytes:
        """What has come since the last part; empty at the end.

        Raises ReplicaFailedError if it breaks off, ReplicaSilentError if nothing comes.
        """
        async with _waiting(self._silent_s):
            return await self._response.content.readany()

    def close(self) -> None:
        """Read nothing more of it; does no harm to one that was read to its end."""
        connection = self._response.connection
        if connection and connection.transport:
            # To close it would first send what the replica has not read.
            connection.transport.abort()
        self._response.close()


@dataclass(slots=True)
class _Try:
    """One try of a request: whether its connection was used before."""

    on_used_connection: bool = False


class ReplicaConnections:
    """The connections to all replicas."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, url: str, body: bytes, silent_s: float | None = None
    ) -> ReplicaResponse:
        """Send the JSON `body`; returns the answer when its head is here. The replica
        may say nothing for `silent_s` (None: for ever), then and later.

        Raises ReplicaFailedError, and of these ReplicaSilentError.
        """
        if self._session is None:
            self._session = _new_session()
        async with _waiting(silent_s):
            response = await _post(self._session, url, body)
        _heed_nonsense(response)
        return ReplicaResponse(response, silent_s)

    async def close(self) -> None:
        """Close them; those that answer break off."""
        if self._session:
            await self._session.close()


def _new_session() -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
        headers=_HEADERS,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        auto_decompress=False,
        trust_env=False,
        max_line_size=_LONGEST_HEADER,
        max_field_size=_LONGEST_HEADER,
        trace_configs=[trace],
    )


async def _note_reuse(
    _: aiohttp.ClientSession,
    context: SimpleNamespace,
    __: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.on_used_connection = True


async def _post(
    session: aiohttp.ClientSession, url: str, body: bytes
) -> aiohttp.ClientResponse:
    """The answer; aiohttp itself repeats no POST. A connection that was used before may
    be closed by the replica at this very moment: then the request goes on another.
    """
    while True:
        attempt = _Try()
        try:
            return await session.post(
                url,
                # Not the bytes: of those, aiohttp sends megabytes at one go.
                data=io.BytesIO(body),
                allow_redirects=False,
                trace_request_ctx=attempt,
            )
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if not attempt.on_used_connection:
                raise


def _heed_nonsense(response: aiohttp.ClientResponse) -> None:
    """Let the reader of the answer fail when it turns into something that is no HTTP.

    Then aiohttp closes the connection and tells it only to those who wait for a head.
    """
    connection = response.connection
    if connection is None or connection.protocol is None:
        return  # all of it has come
    protocol = connection.protocol
    closed = protocol.closed
    if closed is None:
        return  # its reader knows

    def end(_: object) -> None:
        fault = protocol.exception()
        if isinstance(fault, HttpProcessingError):
            told = aiohttp.ClientPayloadError(_no_http(fault.message))
            response.content.set_exception(told)

    def forget() -> None:
        # The connection may be used for thousands of others.
        closed.remove_done_callback(end)

    closed.add_done_callback(end)
    response.content.on_eof(forget)


def _no_http(message: str) -> str:
    """What aiohttp says of an answer that is no HTTP, in one line."""
    first_line = message.partition("\n")[0]
    return f"its answer is no HTTP: {first_line.rstrip(':')}"


@asynccontextmanager
async def _waiting(silent_s: float | None) -> AsyncGenerator[None]:
    """Wait for a replica at most so long; its failures are ours."""
    try:
        async with asyncio.timeout(silent_s):
            yield
    except aiohttp.ClientResponseError as error:
        raise ReplicaFailedError(_no_http(error.message)) from None
    except aiohttp.ClientError as error:
        raise ReplicaFailedError(str(error) or type(error).__name__) from None
    except TimeoutError:
        raise ReplicaSilentError(f"nothing came for {silent_s:g} s") from None
    except OSError as error:
        raise ReplicaFailedError(str(error)) from None
