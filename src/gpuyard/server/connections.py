"""Connections: how many there may be, and how long they may take to say what they want.

A connection is new until a request on it has shown the token. New ones are limited;
when there are too many, the oldest of them ends, so that nobody can keep others out by
holding connections.
"""

import asyncio
import resource
import socket
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpuyard.config.server import ServerSettings
from gpuyard.domain.errors import RequestRefusedError, TooLargeError
from gpuyard.server import headers, problems
from gpuyard.server.callers import CALLER, Peer

# The longest head of a request, with its headers; and the most between two parts of a
# body, or after the last: the lengths of chunks, and trailers.
_HEAD_BYTES = 64 * 1024
# So much of a body may wait for the application, of a client that has shown the token.
_BODY_AHEAD_BYTES = 1 << 20
# What the server opens besides connections; without any left, it could not go on.
_OTHER_FILES = 256
# A client may open thousands at once; a busy server has not read from them so soon.
_GRACE_S = 3.0


class Connections:
    """All connections of a server."""

    def __init__(
        self,
        settings: ServerSettings,
        shared_socket: Path | None = None,
        open_names: frozenset[str] = frozenset(),
    ) -> None:
        """`shared_socket`: where the members of the group come in. `open_names`: the
        names of all Unix sockets that other users may open.
        """
        self._shared_name = str(shared_socket) if shared_socket else None
        self._open_names = open_names
        self._slow_s = settings.slow_s
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(min(settings.max_connections, files - _OTHER_FILES), 1)
        self._most_new = settings.max_new_connections
        self._count = 0
        # In the order in which they came.
        self._new: dict[Connection, None] = {}
        self._new_of: dict[str, dict[Connection, None]] = {}
        # Since when they wait for a head, the longest first.
        self._heads: dict[Connection, float] = {}
        self._sweeping = False

    def is_shared(self, connected: socket.socket) -> bool:
        """Whether this end belongs to the socket for the members of the group."""
        if self._shared_name is None or connected.family != socket.AF_UNIX:
            return False
        return connected.getsockname() == self._shared_name

    def is_open(self, connected: socket.socket) -> bool:
        """Whether this end belongs to a Unix socket that other users may open."""
        return connected.getsockname() in self._open_names

    def add(self, connection: "Connection") -> None:
        """A connection has come; another one may have to go."""
        self._count += 1
        of_client = self._new_of.setdefault(connection.caller.network, {})
        self._new[connection] = None
        of_client[connection] = None
        if len(of_client) > self._most_new:
            oldest = next(iter(of_client))
            if connection.made_at - oldest.made_at > _GRACE_S:
                oldest.end()
        if self._count > self._most:
            next(iter(self._new)).end()

    def prove(self, connection: "Connection") -> None:
        """It is no longer new."""
        if connection not in self._new:
            return
        del self._new[connection]
        network = connection.caller.network
        of_client = self._new_of[network]
        del of_client[connection]
        if not of_client:
            del self._new_of[network]

    def remove(self, connection: "Connection") -> None:
        """It is gone."""
        self.prove(connection)
        self._count -= 1

    def await_head(self, connection: "Connection") -> None:
        """The head of a request must come in time."""
        self._heads.setdefault(connection, connection.loop.time())
        if not self._sweeping:
            self._sweeping = True
            connection.loop.call_later(self._slow_s / 4, self._sweep, connection.loop)

    def head_came(self, connection: "Connection") -> None:
        """It is there."""
        self._heads.pop(connection, None)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """End those that are too slow: one timer for all costs less than one each."""
        latest = loop.time() - self._slow_s
        for connection, since in list(self._heads.items()):
            if since > latest:
                break
            del self._heads[connection]
            connection.transport.abort()
        self._sweeping = bool(self._heads)
        if self._sweeping:
            loop.call_later(self._slow_s / 4, self._sweep, loop)


class BodyParts:
    """What of a body waits for the application, in place of uvicorn's `bytearray`: that
    copies each part twice.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def __iadd__(self, part: bytes) -> "BodyParts":
        self._parts.append(part)
        self._size += len(part)
        return self

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)


class Connection(HttpToolsProtocol):
    """uvicorn's connection with these limits."""

    def __init__(self, *, connections: Connections, **more: Any) -> None:
        super().__init__(**more)
        self._all = connections
        self._counted = False
        # Since the last head, or the last part of a body.
        self._bare_bytes = 0
        self._in_head = True
        self.proven = False

    def prove(self) -> None:
        """A request on it has shown the token."""
        if not self.proven:
            self.proven = True
            self._all.prove(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        self.caller = Peer(
            self.client,
            self.server,
            connected,
            is_member=self._all.is_shared(connected),
        )
        self.made_at = self.loop.time()
        self._all.await_head(self)
        self._counted = True
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._leave()
        super().connection_lost(exc)

    def end(self) -> None:
        """Make room for others."""
        self._leave()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes in; those outside a body are counted, and a head has a
        deadline.
        """
        if not self._is_busy:
            self._all.await_head(self)
        self._bare_bytes += len(data)
        super().data_received(data)
        if self._bare_bytes > _HEAD_BYTES:
            self._refuse(TooLargeError("The headers are over 64 KB.", "Send fewer."))
        elif self._in_head:
            self._all.await_head(self)

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head = True
        self.scope["gpuyard.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header came; one behind the body is not kept."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head is complete."""
        self._in_head = False
        self._bare_bytes = 0
        self._all.head_came(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body came."""
        self._bare_bytes = 0
        if not self.cycle.body:
            self.cycle.body = BodyParts()  # type: ignore[assignment]
        super().on_body(body)
        # uvicorn stops at 64 KB, so that the application is woken for every few parts.
        if self.proven and len(self.cycle.body) < _BODY_AHEAD_BYTES:
            self.flow.resume_reading()

    def handle_websocket_upgrade(self) -> None:
        """From now on another protocol has the transport, and knows who called."""
        self._leave()
        self.app_state = {**self.app_state, CALLER: self.caller}
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(RequestRefusedError(msg, "Send a request of HTTP/1.1."))

    @property
    def _is_busy(self) -> bool:
        """Whether a request is under way."""
        return bool(self.cycle and not self.cycle.response_complete)

    def _should_upgrade(self) -> bool:
        """With a body it is a plain request: uvicorn would wait for the body before the
        edge sees anything.
        """
        given = dict(self.headers)
        has_body = given.get(b"content-length", b"0") != b"0"
        if has_body or b"transfer-encoding" in given:
            return False
        return super()._should_upgrade()

    def _refuse(self, error: RequestRefusedError) -> None:
        if self.pipeline or (self._is_busy and self.cycle.response_started):
            # It would become part of the answer that is under way.
            self.transport.abort()
            return
        answer = problems.of_error(error)
        lines = [f"HTTP/1.1 {error.status} Refused".encode(), b"connection: close"]
        for name, value in headers.secured(answer.raw_headers):
            lines.append(name + b": " + value)
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()

    def _leave(self) -> None:
        self._all.head_came(self)
        if self._counted:
            self._counted = False
            self._all.remove(self)
