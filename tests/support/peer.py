"""The other end of an agent link, by hand: what a real agent says, and what it never
would.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from gpuyard.domain import wire, wire_frames
from gpuyard.providers.agent import AgentProvider
from gpuyard.providers.base import Sink

T = TypeVar("T")
PATIENCE_S = 60.0


def hello(node_id: str = "node_1", **fields: Any) -> wire.Hello:
    """A Hello of a node with 4 cores, 16 GB and no GPU, unless `fields` say
    otherwise.
    """
    return wire.Hello(
        **{
            "node_id": node_id,
            "name": "host",
            "boot_id": "boot",
            "cpus": 4,
            "memory_gb": 16.0,
        }
        | fields
    )


class Peer:
    """A connection to a provider's socket."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self.writer = writer
        self._seq = 0

    def send(self, *messages: wire.FromAgent) -> None:
        for message in messages:
            self.writer.write(wire_frames.encode(message))

    def report(self, *bodies: Any) -> int:
        """Send reports; the last one's number."""
        for body in bodies:
            self._seq += 1
            self.send(wire.NumberedReport(self._seq, body))
        return self._seq

    async def receive(self, kind: type[T]) -> T:
        """The next message, which has to be of this kind."""
        async with asyncio.timeout(PATIENCE_S):
            header = await self._reader.readexactly(4)
            message = wire_frames.decode_to_agent(
                await self._reader.readexactly(wire_frames.frame_length(header))
            )
        assert isinstance(message, kind), (
            f"a {kind.__name__} should come, not {message}"
        )
        return message

    async def read(self, count: int) -> bytes:
        """The next bytes, of a connection that is no link."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.readexactly(count)

    async def acknowledged(self, seq: int) -> int:
        """Read acknowledgements until `seq` is; how many there were."""
        count = 1
        while (await self.receive(wire.Acknowledge)).seq < seq:
            count += 1
        return count

    async def closed(self) -> bool:
        """Wait for the other side to hang up; False if it says something instead."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

    async def join(self, message: wire.Hello | None = None) -> wire.Welcome:
        """Say Hello; the Welcome."""
        self.send(message or hello())
        return await self.receive(wire.Welcome)


class Door:
    """A provider behind a unix socket, without any agent."""

    def __init__(self, provider: AgentProvider, path: Path) -> None:
        self.provider = provider
        self._path = path
        self._peers: list[Peer] = []

    async def dial(self) -> Peer:
        peer = Peer(*await asyncio.open_unix_connection(self._path))
        self._peers.append(peer)
        return peer

    async def joined(self, message: wire.Hello | None = None) -> Peer:
        """A peer that has been welcomed."""
        peer = await self.dial()
        await peer.join(message)
        return peer

    def hang_up(self) -> None:
        for peer in self._peers:
            peer.writer.close()


@asynccontextmanager
async def open_door(path: Path, sink: Sink, **config: Any) -> AsyncIterator[Door]:
    """An AgentProvider that can be dialled."""
    provider = AgentProvider(
        {"epoch": 1, "price_per_hour": "3600", "currency": "EUR"} | config
    )
    await provider.start(sink)
    server = await asyncio.start_unix_server(provider.serve, path)
    door = Door(provider, path)
    try:
        yield door
    finally:
        door.hang_up()
        server.close()
        await provider.close()
