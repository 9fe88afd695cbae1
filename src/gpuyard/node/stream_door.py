"""Opens the streams that the server asks for, each over a connection of its own, so
that neither heartbeats nor reports wait for them.
"""

import asyncio
from collections.abc import Mapping

import structlog

from gpuyard.domain import wire, wire_frames
from gpuyard.domain.frame_channel import FrameChannel
from gpuyard.node import port_stream
from gpuyard.node.attempt import AttemptRun
from gpuyard.node.command_stream import run_command
from gpuyard.node.input_stream import pass_input_on
from gpuyard.node.link import ServerAddress, open_link
from gpuyard.node.port_owner import ForeignPortError

log = structlog.get_logger(__name__)


class StreamDoor:
    """Opens streams to `attempts`, those of this node by their ids."""

    def __init__(self, attempts: Mapping[str, AttemptRun]) -> None:
        self._attempts = attempts

    async def open(self, request: wire.OpenStream, address: ServerAddress) -> None:
        """Open one at the server at `address` that asked for it, and serve it to its
        end.
        """
        try:
            async with open_link(address) as (reader, writer):
                await self._serve(request, reader, writer)
        # Broken off by the client, by the server, or by what is no frame.
        except (OSError, ValueError) as error:
            log.info("a stream ended", attempt=request.attempt_id, cause=repr(error))

    async def _serve(
        self,
        request: wire.OpenStream,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        attempt = self._attempts.get(request.attempt_id)
        join = wire.JoinStream(request.key)
        connection = None
        if attempt is None or attempt.process is None or attempt.streams.over.is_set():
            join = wire.JoinStream(request.key, "it does not run there any more")
        elif request.stdin and not attempt.start.interactive:
            join = wire.JoinStream(request.key, "it was started without an open input")
        elif request.port:
            try:
                if request.own_port:
                    connection = await port_stream.connect_to_own(
                        request.port, attempt.process.own_pids
                    )
                else:
                    connection = await port_stream.connect(request.port)
            except ForeignPortError as error:
                join = wire.JoinStream(request.key, str(error))
            except OSError as error:
                join = wire.JoinStream(request.key, str(error), closed_port=True)
        writer.write(wire_frames.encode(join))
        channel = FrameChannel(reader, writer)
        if join.problem or attempt is None:
            await channel.hang_up()
        elif connection:
            await port_stream.carry(connection, channel, attempt.streams.over)
        elif request.stdin:
            await pass_input_on(attempt, channel)
        else:
            await run_command(attempt, channel)
