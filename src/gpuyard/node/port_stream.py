"""One connection to a port of this node, for a client elsewhere."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Any

from gpuyard.domain.frame_channel import FrameChannel
from gpuyard.domain.stream_frames import Output, OutputEnd
from gpuyard.node.port_owner import ForeignPortError, listeners, own_listeners

# A program listens at one or both of them.
_LOOPBACK = ("127.0.0.1", "::1")
_CONNECT_S = 3.0
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int) -> Connection:
    """A connection to a port of the loopback; OSError when nothing answers there."""
    faults: list[OSError] = []
    for host in _LOOPBACK:
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await asyncio.open_connection(host, port)
        except TimeoutError:
            faults.append(TimeoutError(f"port {port} of {host} does not answer"))
        except OSError as error:
            faults.append(error)
    raise faults[0]


async def connect_to_own(port: int, pids: Callable[[], Iterable[int]]) -> Connection:
    """As `connect`, to a program of these processes; ForeignPortError if another one
    listens at the port.
    """
    before = await asyncio.to_thread(own_listeners, port, pids)
    connection = await connect(port)
    # Whoever listened all the time has the connection.
    if before and await asyncio.to_thread(listeners, port) == before:
        return connection
    connection[1].close()
    raise ForeignPortError(f"who listens at port {port} has just changed")


async def carry(
    connection: Connection, channel: FrameChannel, job_over: asyncio.Event
) -> None:
    """Carry bytes both ways until both sides have said all, one has gone, or the job is
    over.
    """
    reader, writer = connection
    with closing(writer):
        listening = asyncio.create_task(channel.listen(lambda _: None))
        both = asyncio.gather(_to_port(channel, writer), _from_port(channel, reader))
        over = asyncio.create_task(job_over.wait())
        waits: set[asyncio.Future[Any]] = {both, listening, over}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if both.done() and not both.exception():
                channel.end()
                # What was sent must arrive before the connection is closed.
                await asyncio.wait(
                    {listening, over}, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


async def _to_port(channel: FrameChannel, writer: asyncio.StreamWriter) -> None:
    """From the client to the port."""
    async for data in channel.input():
        writer.write(data)
        await writer.drain()
    with suppress(OSError):  # the port has hung up already
        writer.write_eof()


async def _from_port(channel: FrameChannel, reader: asyncio.StreamReader) -> None:
    """From the port to the client."""
    await channel.send_all(reader.read, Output)
    await channel.send(OutputEnd())
