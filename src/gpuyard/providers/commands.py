"""Commands beside jobs that have no agent: what a provider gives, and the stream that
carries one, as an agent would open it.
"""

import asyncio
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import structlog

from gpuyard.domain.errors import GpuyardError
from gpuyard.domain.frame_channel import FrameChannel
from gpuyard.domain.reasons import Reason
from gpuyard.domain.stream_frames import (
    ErrorOutput,
    Exited,
    NotStarted,
    Output,
    Resize,
    RunCommand,
)
from gpuyard.providers.node_streams import NodeStream

MARK = "GPUYARD_COMMAND"
"""The variable by which all processes of one command are found."""
SIGNAL_MARKED = (
    'for each in /proc/[0-9]*; do grep -qs "$1" "$each/environ" &&'
    ' kill -s "$2" "${each#/proc/}" 2> /dev/null; done; exit 0'
)
"""A program of `sh` that signals all processes with this mark."""
# A client says at once what it wants.
_FIRST_S = 10.0
# A command whose client has gone has this long after SIGHUP before SIGKILL.
GRACE_S = 3.0
# What has not ended then is left: the job's end takes it along.
_STUCK_S = 10.0
# From here on an exit code is that of a signal.
_SIGNALLED = 128
_KILLED = _SIGNALLED + signal.SIGKILL
_serving: set["asyncio.Task[None]"] = set()
log = structlog.get_logger(__name__)


class JobCommand(Protocol):
    """A command that runs beside a job."""

    async def read_output(self, size: int) -> bytes:
        """Some bytes of its standard output, or of its terminal; none at the end."""
        ...

    async def read_errors(self, size: int) -> bytes:
        """Some bytes of its standard error; none at the end, and on a terminal."""
        ...

    async def write(self, data: bytes) -> None:
        """Give it input; OSError when it takes none any more."""
        ...

    async def end_input(self) -> None:
        """No more input follows."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Its terminal has another size."""
        ...

    async def exit_code(self) -> int:
        """Wait until it has ended; 128 + n after signal n. All output can be read."""
        ...

    async def end(self) -> None:
        """End it and what it has started: its client has gone."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


Start = Callable[[RunCommand], Awaitable[JobCommand]]
IsOver = Callable[[], Awaitable[bool]]


def new_mark() -> str:
    """What marks one command."""
    return secrets.token_hex(16)


def marked(request: RunCommand, mark: str) -> list[str]:
    """The words of a command whose processes have a mark, and which knows its kind of
    terminal. `env` says why it cannot start a program, with the exit code of a shell.
    """
    terminal = [f"TERM={request.terminal}"] if request.terminal else []
    return ["env", f"{MARK}={mark}", *terminal, *request.command]


class CommandStream(NodeStream):
    """A stream to a command that a provider starts beside a job."""

    @classmethod
    async def open(cls, start: Start, is_over: IsOver) -> "CommandStream":
        """A stream whose first frame says what to run. `is_over`: whether the job has
        ended.
        """
        ours, theirs = socket.socketpair()
        stream = cls(*await asyncio.open_connection(sock=ours))
        reader, writer = await asyncio.open_connection(sock=theirs)
        channel = FrameChannel(reader, writer)
        serving = asyncio.create_task(
            _served(start, is_over, channel, writer), name="command-beside-job"
        )
        # It goes on for a moment when the stream is closed: the command is ended.
        _serving.add(serving)
        serving.add_done_callback(_serving.discard)
        return stream

    def close(self) -> None:
        """See NodeStream. The command is ended when this end is closed."""
        super().close()
        self.writer.close()


async def _served(
    start: Start, is_over: IsOver, channel: FrameChannel, writer: asyncio.StreamWriter
) -> None:
    try:
        await _serve(start, is_over, channel)
    except (ConnectionError, TimeoutError, ValueError) as error:
        log.info("a command's client has gone", error=str(error))
    finally:
        writer.close()


async def _serve(start: Start, is_over: IsOver, channel: FrameChannel) -> None:
    async with asyncio.timeout(_FIRST_S):
        request = await channel.first()
    if not isinstance(request, RunCommand):
        raise ValueError("the first frame is no command")
    try:
        command = await start(request)
    except (GpuyardError, OSError) as error:
        await channel.send(NotStarted(Reason.SPAWN_FAILED, str(error)))
        await channel.hang_up()
        return
    try:
        await _Following(command, channel, is_over).follow()
    finally:
        await command.close()


class _Following:
    """Carries one command to its end."""

    def __init__(
        self, command: JobCommand, channel: FrameChannel, is_over: IsOver
    ) -> None:
        self._command = command
        self._channel = channel
        self._is_over = is_over
        self._resizes: set[asyncio.Task[None]] = set()
        self._listening = asyncio.create_task(channel.listen(self._resize))
        self._feeding = asyncio.create_task(self._feed())

    def _resize(self, size: Resize) -> None:
        resizing = self._command.resize(size.rows, size.columns)
        task = asyncio.create_task(_quietly(resizing))
        self._resizes.add(task)
        task.add_done_callback(self._resizes.discard)

    async def _feed(self) -> None:
        """Pass the client's input on; what the command does not take is thrown away."""
        takes = True
        async for data in self._channel.input():
            try:
                if takes:
                    await self._command.write(data)
            except OSError:
                takes = False
        if takes:
            await _quietly(self._command.end_input())

    async def follow(self) -> None:
        """Send its output and its end; end it when the client goes first."""
        ending = asyncio.create_task(self._say_all())
        try:
            await asyncio.wait(
                {ending, self._listening}, return_when=asyncio.FIRST_COMPLETED
            )
            if ending.done() and not ending.exception():
                # The client may still be sending; it hangs up when it has read all.
                await asyncio.wait({self._listening}, timeout=_STUCK_S)
                return
            async with asyncio.timeout(_STUCK_S):
                await self._command.end()
        finally:
            tasks = [ending, self._listening, self._feeding, *self._resizes]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _say_all(self) -> None:
        send = self._channel.send_all
        try:
            _, _, code = await asyncio.gather(
                send(self._command.read_output, Output),
                send(self._command.read_errors, ErrorOutput),
                self._command.exit_code(),
            )
        except ConnectionError:
            # The end of a job may cut the connection to what runs beside it.
            if not await self._has_ended():
                raise
            code = _KILLED
        with_job = code >= _SIGNALLED and await self._has_ended()
        await self._channel.send(Exited(code, with_job=with_job))
        self._channel.end()

    async def _has_ended(self) -> bool:
        try:
            return await self._is_over()
        except GpuyardError:
            return False


async def _quietly(work: Awaitable[None]) -> None:
    with suppress(OSError, GpuyardError):
        await work
