"""The agent's way to its server: the socket of its own home first, then the other servers of the yard.

The others stand in `peers.json` in the node's folder, which the home's server writes: `{"urls": […], "token": …}`.
Whatever the way, the link is a stream of frames (domain/wire.py): a WebSocket is laid behind a pair of sockets.
"""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.config.paths import Home
from gpuyard.domain import wire

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

# A server that takes the call and says nothing (it is stopped, its disk hangs) is left for the next one.
WELCOME_S = 5.0
_OPEN_S = 5.0
_PART = 1 << 16
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Door:
    """A way in: a unix socket, or a server's URL with the token it wants."""

    path: Path
    url: str = ""
    token: str = ""


def doors(home: Home) -> list[Door]:
    """Every way to a server, the likeliest first; read anew for each round, because servers come and go."""
    found = [Door(home.socket)]
    try:
        body = json.loads(home.peers.read_text())
        found += [Door(home.socket, str(url), str(body["token"])) for url in body["urls"]]
    except (OSError, ValueError, TypeError, KeyError):  # a yard of one server has no such file
        pass
    return found


@asynccontextmanager
async def opened(door: Door) -> AsyncGenerator[Streams]:
    """The door's stream, closed afterwards; OSError when nobody opens."""
    if not door.url:
        reader, writer = await asyncio.open_unix_connection(door.path)
        with contextlib.closing(writer):
            yield reader, writer
        return
    async with _tunnel(door) as (reader, writer):
        with contextlib.closing(writer):
            yield reader, writer


@asynccontextmanager
async def _tunnel(door: Door) -> AsyncGenerator[Streams]:
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException

    url = "ws" + door.url.removeprefix("http").rstrip("/") + "/api/v1/agent"
    headers = {"Authorization": f"Bearer {door.token}"}
    try:
        # Our own beats tell whether the other end lives, and no proxy may see the token of a server on this host.
        link = await connect(url, additional_headers=headers, max_size=None, compression=None, ping_interval=None,
                             open_timeout=_OPEN_S, close_timeout=1.0, proxy=None)  # fmt: skip
    except (WebSocketException, TimeoutError) as error:
        raise ConnectionRefusedError(f"{door.url} does not take this agent: {error}") from None
    async with link:
        ours, theirs = socket.socketpair()
        carrying = asyncio.create_task(_carry(link, *await asyncio.open_unix_connection(sock=theirs)))
        try:
            yield await asyncio.open_unix_connection(sock=ours)
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)


async def _carry(link: "ClientConnection", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes both ways; when one way ends, so does the other."""

    async def up() -> None:
        while part := await reader.read(_PART):
            await link.send(part)

    async def down() -> None:
        async for part in link:
            writer.write(part if isinstance(part, bytes) else part.encode())
            await writer.drain()

    ways = [asyncio.create_task(up()), asyncio.create_task(down())]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writer.close()


class Pulse:
    """Beats on a link every `every_s` (0: the server wants none), and knows when its other end was last heard."""

    def __init__(self, writer: asyncio.StreamWriter, every_s: float) -> None:
        self._writer = writer
        self._every_s = every_s
        self._missed = 0
        self._heard_at = time.monotonic()

    @property
    def heard_at(self) -> float:
        """When the server was last heard, on the monotonic clock; a link without beats is believed to live."""
        return self._heard_at if self._every_s else time.monotonic()

    def hear(self) -> None:
        """A message was read; ConnectionError when it lay here while this process was stopped.

        Its sender may have been replaced since then: what it wants has to be said anew, on a new link.
        """
        now = time.monotonic()
        if now - self.heard_at > wire.SILENT_BEATS * self._every_s:
            raise ConnectionError(f"nothing was read for {now - self._heard_at:.0f} s")
        self._heard_at, self._missed = now, 0

    async def beat(self) -> None:
        """Beat until the other end has been silent for too long, and end the link then."""
        while self._missed <= wire.SILENT_BEATS:
            # Counted, not timed: whoever was stopped itself takes nobody for dead.
            self._writer.write(wire.encode(wire.Beat()))
            await asyncio.sleep(self._every_s)
            self._missed += 1
        self._writer.transport.abort()
