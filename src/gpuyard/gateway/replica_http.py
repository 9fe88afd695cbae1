"""HTTP/1.1 to replicas: as little as it takes, because each request of `/v1` waits for
it. httpx took longer for a request than all of the gateway besides.

Connections are kept and used again. A part of an answer is there as soon as it comes.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

import httptools

_CONNECT_S = 5.0
# Servers close a connection that is idle for so long, some without telling.
_IDLE_S = 4.0
# So many are kept for each replica after a rush.
_MOST_IDLE = 64
# So many bytes that nobody has read yet: the replica waits then.
_MOST_UNREAD = 256 * 1024
_NO_BODY = frozenset({204, 304})
_INFORMATIONAL = 200
_Address = tuple[str, int]


class ReplicaFailedError(Exception):
    """A replica cannot be reached, or its answer broke off."""


class ReplicaSilentError(ReplicaFailedError):
    """A replica has said nothing for too long."""


class ReplicaResponse:
    """An answer, as far as it is here: its `status`, and its `headers` by their names
    in small letters.
    """

    def __init__(self, connection: "_Connection", silent_s: float | None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = False
        self.fault: ReplicaFailedError | None = None
        self._connection = connection
        self._silent_s = silent_s
        self._parts: list[bytes] = []
        self._unread = 0
        self._is_whole = False
        self._news: asyncio.Future[None] | None = None

    # --- for its reader ---

    async def part(self) -> bytes:
        """What has come since the last part; empty at the end.

        Raises ReplicaFailedError if it breaks off, ReplicaSilentError if nothing comes.
        """
        while not self._parts:
            if self.fault:
                raise self.fault
            if self._is_whole:
                self._connection.is_done_with(self)
                return b""
            await self._wait()
        part = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._unread = 0
        self._connection.go_on()
        return part

    async def head(self) -> None:
        """Wait for the status and the headers; raises as `part` does."""
        while not self.has_head:
            if self.fault:
                raise self.fault
            await self._wait()

    def close(self) -> None:
        """Read nothing more of it; does no harm to one that was read to its end."""
        self.fail(ReplicaFailedError("nobody reads it any more"))
        self._connection.is_done_with(self)

    @property
    def is_read(self) -> bool:
        """Whether it was read to its end."""
        return self._is_whole and not self._parts

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        news: asyncio.Future[None] = loop.create_future()
        self._news = news
        alarm = None
        if self._silent_s is not None:
            alarm = loop.call_later(self._silent_s, self._grow_impatient)
        try:
            await news
        finally:
            self._news = None
            if alarm:
                alarm.cancel()

    def _grow_impatient(self) -> None:
        self.fail(ReplicaSilentError(f"nothing came for {self._silent_s:g} s"))

    # --- for its connection ---

    def add(self, part: bytes) -> bool:
        """Bytes have come; whether there are too many that nobody has read."""
        self._parts.append(part)
        self._unread += len(part)
        self.tell()
        return self._unread > _MOST_UNREAD

    def end(self) -> None:
        """All of it has come."""
        self._is_whole = True
        self.tell()

    def fail(self, fault: ReplicaFailedError) -> None:
        """Nothing more will come, unless all has."""
        if not self._is_whole and not self.fault:
            self.fault = fault
            self.tell()

    def tell(self) -> None:
        """Wake its reader."""
        if self._news and not self._news.done():
            self._news.set_result(None)


class ReplicaConnections:
    """The connections to all replicas."""

    def __init__(self) -> None:
        # By address, the one that was used last at the end.
        self._idle: dict[_Address, list[_Connection]] = {}

    async def post(
        self, url: str, body: bytes, silent_s: float | None = None
    ) -> ReplicaResponse:
        """Send the JSON `body`; returns the answer when its head is here. The replica
        may say nothing for `silent_s` (None: for ever), then and later.

        Raises ReplicaFailedError, and of these ReplicaSilentError.
        """
        address, head = _target(url)
        request = b"%b%d\r\n\r\n%b" % (head, len(body), body)
        if connection := self._take_idle(address):
            try:
                return await connection.ask(request, silent_s)
            except _ClosedBeforeError:
                pass  # the replica closed it at this very moment
        connection = await self._connect(address)
        return await connection.ask(request, silent_s)

    def _take_idle(self, address: _Address) -> "_Connection | None":
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.idle_since > time.monotonic() - _IDLE_S:
                return connection
            connection.abort()
        return None

    async def _connect(self, address: _Address) -> "_Connection":
        host, port = address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(address, self._keep), host, port
                )
        except TimeoutError:
            fault = f"no connection to {host}:{port} within {_CONNECT_S:g} s"
            raise ReplicaFailedError(fault) from None
        except OSError as error:
            raise ReplicaFailedError(str(error)) from None
        return connection

    def _keep(self, connection: "_Connection", is_open: bool) -> None:
        """Keep a connection for the next request, or forget one that is closed."""
        idle = self._idle.setdefault(connection.address, [])
        if is_open:
            idle.append(connection)
            if len(idle) > _MOST_IDLE:
                idle.pop(0).abort()
            return
        with suppress(ValueError):
            idle.remove(connection)
        if not idle:
            del self._idle[connection.address]


class _ClosedBeforeError(ReplicaFailedError):
    """A connection that was used before was closed before an answer began."""


class _Connection(asyncio.Protocol):
    """One connection, which has one request at a time. `keep(connection, is_open)` is
    called when it can be used again, and when it is closed.
    """

    def __init__(
        self, address: _Address, keep: "Callable[[_Connection, bool], None]"
    ) -> None:
        self.address = address
        self.idle_since = 0.0
        self._keep = keep
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._response: ReplicaResponse | None = None
        self._was_used = False
        self._has_begun = False
        self._ends_with_connection = False
        self._stays_open = False
        self._is_paused = False

    async def ask(self, request: bytes, silent_s: float | None) -> ReplicaResponse:
        """Send a request; returns the answer when its head is here."""
        assert self._transport is not None
        response = ReplicaResponse(self, silent_s)
        self._response = response
        self._has_begun = False
        self._transport.write(request)
        try:
            await response.head()
        except BaseException:
            response.close()
            raise
        return response

    def is_done_with(self, response: ReplicaResponse) -> None:
        """An answer is of no more use: keep the connection for another one if it was
        read to its end, else close it. Idempotent.
        """
        if self._response is not response:
            return
        self._response = None
        if self._transport and response.is_read and self._stays_open:
            self._was_used = True
            self.idle_since = time.monotonic()
            self._keep(self, True)
        else:
            self.abort()

    def go_on(self) -> None:
        """What has come was read."""
        if self._is_paused and self._transport:
            self._is_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport:
            self._transport.abort()

    # --- what the transport says ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        # Not by its class: uvloop's is none of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._response is None:
            self.abort()  # it says something that nobody has asked for
            return
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._response.fail(ReplicaFailedError(f"its answer is no HTTP: {error}"))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._transport = None
        response = self._response
        if response is None:
            self._keep(self, False)
            return
        if self._ends_with_connection and exc is None:
            response.end()
        is_late = self._was_used and not self._has_begun
        kind = _ClosedBeforeError if is_late else ReplicaFailedError
        response.fail(kind(str(exc) if exc else "it closed the connection"))

    # --- what the parser says ---

    def on_message_begin(self) -> None:
        """See httptools."""
        if self._response:
            self._response.headers = {}  # those before may be of a 1xx

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        if self._response:
            key = name.decode("latin-1").lower()
            self._response.headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """See httptools."""
        response = self._response
        status = self._parser.get_status_code()
        if response is None or status < _INFORMATIONAL:
            return
        coding = response.headers.get("transfer-encoding", "").lower()
        has_end = "content-length" in response.headers or "chunked" in coding
        self._ends_with_connection = not has_end and status not in _NO_BODY
        response.status = status
        response.has_head = True
        response.tell()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        if self._response and self._response.add(body) and not self._is_paused:
            assert self._transport is not None
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """See httptools."""
        if self._response and self._response.has_head:
            # Asked later, the parser speaks of the next answer.
            self._stays_open = self._parser.should_keep_alive()
            self._response.end()


@lru_cache(maxsize=1024)
def _target(url: str) -> tuple[_Address, bytes]:
    """The address of a URL, and the head of a request for it but for its length."""
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 80)
    head = (
        f"POST {parts.path} HTTP/1.1\r\n"
        f"Host: {parts.netloc}\r\n"
        "Content-Type: application/json\r\n"
        "Accept: */*\r\n"
        "Accept-Encoding: identity\r\n"
        "User-Agent: gpuyard\r\n"
        "Content-Length: "
    )
    return address, head.encode()
