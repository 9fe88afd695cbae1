"""Ports of a running job, as `gpuyard forward` opens them on this machine."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpuyard.cli.blocking import beside
from gpuyard.cli.output import say
from gpuyard.client.streams import JobStream, open_stream
from gpuyard.domain import stream_frames as frames
from gpuyard.domain.errors import GpuyardError, InvalidInputError, quoted

if TYPE_CHECKING:
    from gpuyard.client.sync import Client

_HERE = "127.0.0.1"
_MOST = 65535
# So long one error is not told again.
_SILENT_S = 10.0


@dataclass(frozen=True, slots=True)
class PortPair:
    """A port of this machine, 0 for any that is free, and the job's that it leads
    to.
    """

    local: int
    remote: int

    @classmethod
    def parse(cls, text: str) -> "PortPair":
        """`8888`, `9000:8888`, or `:8888` for any free port here. InvalidInputError."""
        local, given, remote = text.rpartition(":")
        if not given:
            local = remote
        elif not local:
            local = "0"
        for number in (local, remote):
            if not (number.isascii() and number.isdecimal()):
                raise _no_port(text)
        pair = cls(int(local), int(remote))
        if not 1 <= pair.remote <= _MOST or pair.local > _MOST:
            raise _no_port(text)
        return pair


def free_port(wanted: int) -> int:
    """`wanted`, if it can be used here, or else a port that is free now."""
    for port in (wanted, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_HERE, port))
            return int(probe.getsockname()[1])
    return 0


def _no_port(text: str) -> InvalidInputError:
    remedy = "write 8888, or 9000:8888 for port 9000 of this machine"
    return InvalidInputError.of("PORT", f"is {quoted(text)}", remedy)


def forward_ports(
    client: "Client", job_id: str, pairs: Sequence[PortPair], node: str
) -> None:
    """Lead ports of this machine to the job's on its `node`, until the job is over.

    InvalidInputError when a port is taken.
    """
    asyncio.run(_Forwarder(client, job_id).run(pairs, node))


class _Forwarder:
    """Leads connections to ports of this machine to the job's."""

    def __init__(self, client: "Client", job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._told_at: dict[str, float] = {}

    async def run(self, pairs: Sequence[PortPair], node: str) -> None:
        """Forward until the job is over. InvalidInputError."""
        servers = [await self._listen(pair) for pair in pairs]
        try:
            for pair, server in zip(pairs, servers, strict=True):
                port = server.sockets[0].getsockname()[1]
                say(f"{_HERE}:{port} leads to port {pair.remote} on {node}")
            _tell("Ctrl-C ends this, and not the job.")
            await beside(partial(self._client.wait_for, self._job_id))
        finally:
            for server in servers:
                server.close()

    async def _listen(self, pair: PortPair) -> asyncio.Server:
        """InvalidInputError when the port is taken."""
        serve = partial(self._serve, pair.remote)
        try:
            return await asyncio.start_server(serve, _HERE, pair.local)
        except OSError as error:
            fault = f"{pair.local} cannot be used here: {os.strerror(error.errno or 0)}"
            remedy = f"choose another, such as :{pair.remote} for any that is free"
            raise InvalidInputError.of("PORT", fault, remedy) from None

    async def _serve(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Lead one connection to the job."""
        path = f"/api/v1/jobs/{self._job_id}/forward/{port}"
        with closing(writer):
            try:
                async with open_stream(self._client.address, path) as stream:
                    await _carry(stream, reader, writer)
            except GpuyardError as error:
                self._tell_now_and_then(str(error))
            except OSError:
                pass  # the program here has hung up

    def _tell_now_and_then(self, text: str) -> None:
        """A browser tries again and again."""
        now = time.monotonic()
        if now - self._told_at.get(text, -_SILENT_S) >= _SILENT_S:
            self._told_at[text] = now
            _tell(text)


def _tell(text: str) -> None:
    sys.stderr.write(f"gpuyard: {text}\n")
    sys.stderr.flush()


async def _carry(
    stream: JobStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry bytes until the other end has said all and this one too, or one breaks."""
    up = asyncio.create_task(_up(stream, reader))
    down = asyncio.create_task(_down(stream, writer))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for way in (up, down):
            way.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
    for way in (up, down):
        if not way.cancelled():
            way.result()


async def _up(stream: JobStream, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(frames.PART):
        await stream.send_input(data)
    await stream.send(frames.InputEnd())


async def _down(stream: JobStream, writer: asyncio.StreamWriter) -> None:
    async for frame in stream.frames():
        if isinstance(frame, frames.Output):
            writer.write(frame.data)
            await writer.drain()
        elif isinstance(frame, frames.OutputEnd):
            with suppress(OSError):
                writer.write_eof()
    raise ConnectionResetError("the job's end has closed the connection")
