"""The server's HTTP: uvicorn, with our application, connections and limits.

It is imported in a thread once jobs are scheduled, because that takes as long as
importing all that schedules.
"""

import asyncio
import logging
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import cast

import structlog
import uvicorn

from gpuyard.config.sockets import keep_alive, refuse_other_users
from gpuyard.server.app import make_app
from gpuyard.server.app_state import AppState
from gpuyard.server.connections import Connection, Connections

_WRITE_BUFFER = 16 * 1024
# Agents send parts of 64 KB.
_WEBSOCKET_BYTES = 1 << 20
log = structlog.get_logger(__name__)


class HttpServer(uvicorn.Server):
    """uvicorn, but that it serves in the background and leaves signals to us."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ready = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Note when the sockets are served."""
        await super().startup(sockets)
        self._ready.set()

    async def begin(self, sockets: list[socket.socket]) -> None:
        """Returns when the sockets are served; RuntimeError if they cannot be."""
        self._serving = asyncio.create_task(self.serve(sockets=sockets))
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait([self._serving, ready], return_when=asyncio.FIRST_COMPLETED)
        if not self.started:
            ready.cancel()
            await self._serving
            raise RuntimeError("uvicorn does not serve, for a reason it has logged")

    async def until_ended(self, stopping: asyncio.Event) -> None:
        """Wait until it is to end, or has done so by itself, with its error."""
        assert self._serving
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait(
            [self._serving, stopped], return_when=asyncio.FIRST_COMPLETED
        )
        if self._serving.done():
            await self._serving

    async def end(self) -> None:
        """Answer what is under way, and end."""
        self.should_exit = True
        if self._serving:
            await self._serving

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Nothing: the handlers of `__main__` let agents leave first."""
        yield


def make_http_server(
    app_state: AppState, sockets: Sequence[socket.socket]
) -> HttpServer:
    """The server for these `sockets`: the first has the URL, the second is our own
    user's, and other users may open the rest.
    """
    settings = app_state.settings
    _, _, *for_others = sockets
    names = frozenset(str(one.getsockname()) for one in for_others)
    connections = Connections(settings.server, settings.shared.socket, names)
    http = partial(_Connection, connections=connections)
    config = uvicorn.Config(
        make_app(app_state),
        # Its warnings say what clients sent: anybody could fill the log with them.
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        http=cast("type[asyncio.Protocol]", http),
        # What a header says about the client is not to be trusted.
        proxy_headers=False,
        ws="websockets-sansio",
        ws_max_size=_WEBSOCKET_BYTES,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
    )
    config.load()
    logging.getLogger("uvicorn.error").addFilter(_is_no_refused_websocket)
    return HttpServer(config)


class _Connection(Connection):
    """A connection that keeps little for a client that does not read: there may be
    thousands of these clients.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless another user has come to our own socket."""
        connected = transport.get_extra_info("socket")
        is_unix = connected.family == socket.AF_UNIX
        if is_unix and not self._all.is_open(connected):
            try:
                refuse_other_users(connected)
            except PermissionError as error:
                log.warning("a connection is refused", why=str(error))
                transport.abort()
        else:
            # A client that streams may say nothing for hours.
            keep_alive(connected)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        super().connection_made(transport)


def _is_no_refused_websocket(record: logging.LogRecord) -> bool:
    """False for what uvicorn says about a WebSocket that gets an answer of HTTP, which
    it takes for a fault of ours.
    """
    return "without completing handshake" not in record.getMessage()
