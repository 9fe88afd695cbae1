"""A TLS listener that strangers cannot clog: of their connections only few are open at
once, and when there are too many, the oldest of them ends.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from gpuyard.server.callers import network_of

_HANDSHAKE_S = 10.0
_SHUTDOWN_S = 1.0
_BACKLOG = 512
_MOST_NEW = 1024
_MOST_NEW_OF_ONE = 64
# A busy server may accept many at once, none of which has had time to shake hands.
_GRACE_S = 3.0
# Such as when the process has too many files open.
_PAUSE_S = 0.1
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody who has proved nothing yet. `came_at` is in seconds of the loop."""

    network: str
    came_at: float


class Doorway:
    """Listens on `sock`, and serves each connection that `context` lets in.

    `checks_certificates`: who has passed the handshake is no stranger any more.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        serve: Serve,
        *,
        checks_certificates: bool,
    ) -> None:
        self._sock = sock
        self._context = context
        self._serve = serve
        self._checks_certificates = checks_certificates
        # By their tasks, in the order in which they came.
        self._strangers: dict[asyncio.Task[None], Stranger] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(), name="doorway")

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, address = await loop.sock_accept(self._sock)
            except OSError as error:
                log.warning("no connection can be accepted", error=str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            self._admit(connected, network_of(address[0]))

    def _admit(self, connected: socket.socket, network: str) -> None:
        self._make_room(network)
        task = asyncio.create_task(self._attend(connected), name="doorway-connection")
        now = asyncio.get_running_loop().time()
        self._strangers[task] = Stranger(network, now)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _make_room(self, network: str) -> None:
        if len(self._strangers) >= _MOST_NEW:
            self._end(next(iter(self._strangers)))
        of_network = [
            task for task, one in self._strangers.items() if one.network == network
        ]
        if len(of_network) < _MOST_NEW_OF_ONE:
            return
        now = asyncio.get_running_loop().time()
        if now - self._strangers[of_network[0]].came_at >= _GRACE_S:
            self._end(of_network[0])

    def _end(self, task: asyncio.Task[None]) -> None:
        del self._strangers[task]
        task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a connection was not served", exc_info=error)

    async def _attend(self, connected: socket.socket) -> None:
        try:
            reader, writer = await self._shaken_hands(connected)
        except OSError:
            return  # a stranger, or a network that is gone
        try:
            if self._checks_certificates:
                self._prove()
            await self._serve(reader, writer)
        finally:
            writer.close()

    def _prove(self) -> None:
        task = asyncio.current_task()
        assert task
        self._strangers.pop(task, None)

    async def _shaken_hands(
        self, connected: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The streams after the handshake; OSError."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connected,
                ssl=self._context,
                ssl_handshake_timeout=_HANDSHAKE_S,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except BaseException:
            connected.close()
            raise
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def close(self, *, with_connections: bool) -> None:
        """Let nobody in any more; with their connections, who is in goes, too."""
        self._accepting.cancel()
        with suppress(asyncio.CancelledError):
            await self._accepting
        self._sock.close()
        if not with_connections:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
