"""The agent's link to a server: through the socket of its own home if possible, else to
another server of the instance.

The home's server lists the others (`config/peers.py`). They prove who they are before
they are told the token. A machine that has joined an instance has one server, and both
prove who they are by certificates (`config/joined.py`). Each way the link is a stream
of frames (domain/wire.py): a WebSocket is connected to the agent through a pair of
sockets.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gpuyard.config.dialling import SYSTEM_TLS, Tls
from gpuyard.config.joined import (
    JoinedServer,
    open_agent_streams,
    read_membership,
)
from gpuyard.config.paths import Home
from gpuyard.config.peers import read_peers
from gpuyard.config.sockets import connected_socket
from gpuyard.config.websockets import open_websocket
from gpuyard.domain import wire, wire_frames
from gpuyard.domain.joining import SERVER_NAME

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

# If a server accepts the connection and sends nothing (it is suspended, or its disk
# hangs), the next one is tried.
WELCOME_S = 5.0
# The first and the longest pauses between two rounds in which no server answered. The
# server of the own home is tried more often: that costs nothing, and if it was killed,
# jobs wait for it.
FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_LONGEST_PAUSE_AT_HOME_S = 0.1
_READ_BYTES = 1 << 16
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is: a Unix socket, or a URL with the token for it and how the
    server proves itself. `joined`: the server that this machine has joined.
    """

    path: Path
    url: str = ""
    token: str = ""
    tls: Tls = SYSTEM_TLS
    joined: JoinedServer | None = None


def server_addresses(home: Home) -> list[ServerAddress]:
    """The addresses of all servers, this home's own first. They are read again for each
    round, because servers come and go.
    """
    membership = read_membership(home)
    if membership:
        joined = JoinedServer(membership, home.membership, SERVER_NAME)
        return [ServerAddress(home.socket, joined.url, joined=joined)]
    peers = read_peers(home)
    own = ServerAddress(home.socket)
    others = [
        ServerAddress(home.socket, url, peers.token, peers.tls) for url in peers.urls
    ]
    return [own, *others]


def longer_pause_s(pause_s: float, addresses: Sequence[ServerAddress]) -> float:
    """The pause after one more round in which none of these servers answered."""
    is_at_home = not any(address.url for address in addresses)
    longest_s = _LONGEST_PAUSE_AT_HOME_S if is_at_home else _LONGEST_PAUSE_S
    return min(pause_s * 1.5, longest_s)


Answer = TypeVar("Answer")


async def read_message(reader: asyncio.StreamReader) -> wire.ToAgent:
    """The next message of the server. EOFError when the link ends; ValueError or
    msgspec.ValidationError for what is no message.
    """
    header = await reader.readexactly(4)
    frame = await reader.readexactly(wire_frames.frame_length(header))
    return wire_frames.decode_to_agent(frame)


async def read_answer(
    reader: asyncio.StreamReader, kind: type[Answer], within_s: float
) -> Answer:
    """The next message of the server on a connection for one transfer. ValueError if it
    refuses or says something else; EOFError, TimeoutError.
    """
    async with asyncio.timeout(within_s):
        message = await read_message(reader)
    if isinstance(message, wire.Refused):
        raise ValueError(message.reason)
    if not isinstance(message, kind):
        raise ValueError(f"the server sent {type(message).__name__}")
    return message


@asynccontextmanager
async def open_link(address: ServerAddress) -> AsyncGenerator[Streams]:
    """The link to a server, closed at the end; OSError when there is no server."""
    if not address.url:
        connected = connected_socket(address.path)
        reader, writer = await asyncio.open_unix_connection(sock=connected)
        with contextlib.closing(writer):
            yield reader, writer
        return
    if address.joined:
        reader, writer = await open_agent_streams(address.joined)
        with contextlib.closing(writer):
            yield reader, writer
        return
    async with _open_websocket(address) as (reader, writer):
        with contextlib.closing(writer):
            yield reader, writer


@asynccontextmanager
async def _open_websocket(address: ServerAddress) -> AsyncGenerator[Streams]:
    async with await _opened(address) as link:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=theirs)
        copying = asyncio.create_task(_copy_bytes(link, reader, writer))
        try:
            yield await asyncio.open_unix_connection(sock=ours)
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)


async def _opened(address: ServerAddress) -> "ClientConnection":
    """A WebSocket to a server; OSError."""
    from websockets.exceptions import InvalidStatus

    try:
        return await open_websocket(
            address.url, "/api/v1/agent", address.token, address.tls
        )
    except InvalidStatus as error:
        raise ConnectionRefusedError(
            f"{address.url} does not take this agent: {error}"
        ) from None


async def _copy_bytes(
    link: "ClientConnection", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy bytes in both directions; when one direction ends, so does the other."""

    async def send() -> None:
        while part := await reader.read(_READ_BYTES):
            await link.send(part)

    async def receive() -> None:
        async for part in link:
            writer.write(part if isinstance(part, bytes) else part.encode())
            await writer.drain()

    tasks = [asyncio.create_task(send()), asyncio.create_task(receive())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()


class Heartbeat:
    """Sends a Beat on a link every `every_s` seconds (0: the server wants none), and
    knows when the last message was received.
    """

    def __init__(self, writer: asyncio.StreamWriter, every_s: float) -> None:
        self._writer = writer
        self._every_s = every_s
        self._missed = 0
        self._last_received_at = time.monotonic()

    @property
    def last_received_at(self) -> float:
        """When the last message was received, in seconds of the monotonic clock. A link
        without heartbeats always counts as alive.
        """
        return self._last_received_at if self._every_s else time.monotonic()

    def received(self) -> None:
        """Note that a message was received; ConnectionError when that is too late.

        A message may have waited here while this process was suspended, and its sender
        may have been replaced since. What it wants must then come again on a new link.
        """
        now = time.monotonic()
        silent_s = now - self.last_received_at
        if silent_s > wire.SILENT_BEATS * self._every_s:
            raise ConnectionError(f"nothing was read for {silent_s:.0f} s")
        self._last_received_at = now
        self._missed = 0

    async def beat(self) -> None:
        """Send heartbeats; end the link when the other end has been silent for too
        long.
        """
        while self._missed <= wire.SILENT_BEATS:
            # Counted, not timed: if this process was suspended, the other end is not at
            # fault.
            self._writer.write(wire_frames.encode(wire.Beat()))
            await asyncio.sleep(self._every_s)
            self._missed += 1
        self._writer.transport.abort()
