"""Ports of this host that lead to model servers on machines that have joined: each
connection goes through a stream to the job of the server, by the agent of its node.
"""

import asyncio

import structlog

from gpuyard.config.connection_tasks import ConnectionTasks
from gpuyard.controller.job_streams import MOST_STREAMS, JobStreams
from gpuyard.controller.port_stream import PortStream
from gpuyard.domain.errors import GpuyardError

MOST_REQUESTS = MOST_STREAMS - 8
"""So many requests at once go to a server there: health checks need streams, too."""
_READ_BYTES = 1 << 16
log = structlog.get_logger(__name__)


class NodePort:
    """A port of the loopback that leads to a `port` of the node where a job runs. As
    any port of a model server, it is open to all users of this host. `problem`: why the
    last connection was not carried, for people; empty if it was.
    """

    def __init__(self, streams: JobStreams, job_id: str, port: int) -> None:
        self._streams = streams
        self._job_id = job_id
        self._port = port
        self.problem = ""
        self._server: asyncio.Server | None = None
        self._connections = ConnectionTasks()

    async def open(self) -> int:
        """Listen; the number of the port here. OSError."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Listen no more, and end the connections."""
        if self._server:
            self._server.close()
        self._connections.cancel()

    async def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with self._connections.serving(writer):
            try:
                await self._carry(reader, writer)
            except GpuyardError as error:
                # Whoever has connected sees that the server does not answer.
                self.problem = str(error)
                log.info(
                    "a model server is not reached", job=self._job_id, why=self.problem
                )

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry bytes both ways until one side has said all."""
        async with self._streams.open(self._job_id, self._port) as stream:
            self.problem = ""
            there = PortStream(stream.reader, stream.writer)
            up = asyncio.create_task(_up(reader, there))
            down = asyncio.create_task(_down(there, writer))
            try:
                await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in (up, down):
                    way.cancel()
                await asyncio.gather(up, down, return_exceptions=True)


async def _up(reader: asyncio.StreamReader, there: PortStream) -> None:
    while data := await reader.read(_READ_BYTES):
        await there.write(data)


async def _down(there: PortStream, writer: asyncio.StreamWriter) -> None:
    while data := await there.read():
        writer.write(data)
        await writer.drain()
