"""A command beside a running job: its input is sent, its output is gathered."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from gpuyard.client.connection import Address
from gpuyard.client.segments import segment
from gpuyard.client.streams import JobStream, open_stream
from gpuyard.domain import stream_frames as frames
from gpuyard.domain.errors import RefusedError, UnreachableError


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended: its exit code (128 + n after signal n) and what it wrote.

    `with_job`: it was ended because the job was over.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    with_job: bool = False


async def run_beside(
    address: Address, job_id: str, command: Sequence[str], stdin: bytes
) -> CommandResult:
    """Run a command beside a job and wait for its end.

    RefusedError when it cannot be started, UnreachableError when the stream breaks off.
    """
    if isinstance(command, str):
        raise TypeError(f"give the command as a list, such as {command.split()!r}")
    path = f"/api/v1/jobs/{segment(job_id)}/exec"
    async with open_stream(address, path) as stream:
        await stream.send(frames.RunCommand(list(command)))
        sending = asyncio.create_task(_send_input(stream, stdin))
        try:
            return await _gathered(stream)
        finally:
            sending.cancel()


async def _send_input(stream: JobStream, stdin: bytes) -> None:
    await stream.send_input(stdin)
    await stream.send(frames.InputEnd())


async def _gathered(stream: JobStream) -> CommandResult:
    stdout = bytearray()
    stderr = bytearray()
    async for frame in stream.frames():
        match frame:
            case frames.Output():
                stdout += frame.data
            case frames.ErrorOutput():
                stderr += frame.data
            case frames.Exited():
                return CommandResult(
                    frame.code, bytes(stdout), bytes(stderr), frame.with_job
                )
            case frames.NotStarted():
                raise RefusedError(f"The command was not started: {frame.message}.")
            case _:
                pass
    raise UnreachableError(
        "The server or the node has gone away.",
        "The command is ended; the job goes on.",
    )
