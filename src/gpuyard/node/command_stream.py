"""A command beside an attempt's program: on a terminal or with pipes, for a client that
gives its input and gets its output.

It ends with the attempt, and it is ended when the client goes away.
"""

import asyncio
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import structlog

from gpuyard.config.descriptor import Descriptor
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
from gpuyard.node.attempt import AttemptRun
from gpuyard.node.launcher import LaunchError, Process, Streams
from gpuyard.node.stopping import until_ended

# A command whose client has gone has this long after SIGHUP before SIGKILL; one that
# SIGKILL does not end is stuck in the kernel, and the attempt does not wait for it.
_GRACE_S = 3.0
_STUCK_S = 5.0
# A client says at once what it wants.
_FIRST_S = 10.0
_KILLED = 128 + signal.SIGKILL
_END_OF_FILE = b"\x04"
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Ends:
    """Our ends of a command's input and output. On a terminal all are one, and there
    are no `errors`.
    """

    input: Descriptor
    output: Descriptor
    errors: Descriptor | None = None

    def finish(self) -> None:
        """The command has ended: take what is there."""
        for end in (self.input, self.output, self.errors):
            if end:
                end.finish()

    def close(self) -> None:
        for end in (self.input, self.output, self.errors):
            if end:
                end.close()


async def run_command(attempt: AttemptRun, channel: FrameChannel) -> None:
    """Run the command that the client names. Raises ValueError for what is no command,
    ConnectionError when the client has gone.
    """
    async with asyncio.timeout(_FIRST_S):
        request = await channel.first()
    if not isinstance(request, RunCommand):
        raise ValueError("the first frame is no command")
    try:
        await _run(attempt, request, channel)
    except LaunchError as error:
        await channel.send(NotStarted(error.reason, str(error)))
        await channel.hang_up()


async def _run(attempt: AttemptRun, request: RunCommand, channel: FrameChannel) -> None:
    with _opened(request) as (ours, theirs):
        with attempt.streams.command():
            process = await _start(attempt, request, theirs)
            command = _Command(process, ours, channel, attempt)
            ended = await command.follow()
        await command.finish(ended)


async def _start(attempt: AttemptRun, request: RunCommand, theirs: Streams) -> Process:
    """Start it, and let go of its ends. Raises LaunchError."""
    try:
        if attempt.process is None or attempt.streams.over.is_set():
            raise LaunchError(Reason.NOT_STARTED, "the job has just ended")
        # The job may have run for so long that its environment was swept.
        await attempt.fetch()
        return await asyncio.to_thread(
            attempt.starter.spawn_beside,
            attempt.process,
            request.command,
            theirs,
            request.terminal,
        )
    except ValueError as error:
        raise LaunchError(Reason.INVALID_ARGUMENT, str(error)) from None
    finally:
        for number in theirs.numbers():
            os.close(number)


@contextmanager
def _opened(request: RunCommand) -> Generator[tuple[_Ends, Streams]]:
    """Our ends, which are closed at last, and those of the command. LaunchError."""
    try:
        ours, theirs = _terminal(request) if request.terminal else _pipes()
    except OSError as error:
        message = f"there is no terminal and no pipe for it: {error.strerror}"
        raise LaunchError(Reason.SPAWN_FAILED, message) from None
    try:
        yield ours, theirs
    finally:
        ours.close()


def _terminal(request: RunCommand) -> tuple[_Ends, Streams]:
    master, slave = os.openpty()
    _set_size(master, request.rows, request.columns)
    ours = Descriptor(master)
    return _Ends(ours, ours), Streams(slave, slave, errors=slave)


def _pipes() -> tuple[_Ends, Streams]:
    with ExitStack() as opened:
        their_input, our_input = _pipe(opened)
        our_output, their_output = _pipe(opened)
        our_errors, their_errors = _pipe(opened)
        opened.pop_all()
    ours = _Ends(Descriptor(our_input), Descriptor(our_output), Descriptor(our_errors))
    return ours, Streams(their_input, their_output, errors=their_errors)


def _pipe(opened: ExitStack) -> tuple[int, int]:
    """A pipe that `opened` closes again."""
    ends = os.pipe()
    for end in ends:
        opened.callback(os.close, end)
    return ends


def _set_size(terminal: int, rows: int, columns: int) -> None:
    size = struct.pack("HHHH", rows, columns, 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


class _Command:
    """A command that runs: `follow` it to its end, then `finish`."""

    def __init__(
        self,
        process: Process,
        ends: _Ends,
        channel: FrameChannel,
        attempt: AttemptRun,
    ) -> None:
        self._process = process
        self._ends = ends
        self._channel = channel
        self._attempt = attempt
        self._listening = asyncio.create_task(channel.listen(self._resize))
        self._feeding = asyncio.create_task(self._feed())
        sending = channel.send_all(ends.output.read, Output)
        self._sending = [asyncio.create_task(sending)]
        if ends.errors:
            sending = channel.send_all(ends.errors.read, ErrorOutput)
            self._sending.append(asyncio.create_task(sending))

    def _resize(self, size: Resize) -> None:
        if self._ends.errors is None:
            _set_size(self._ends.output.number, size.rows, size.columns)

    async def _feed(self) -> None:
        """Pass the client's input on; what the command does not take is thrown away."""
        end = self._ends.input
        takes = True
        async for data in self._channel.input():
            try:
                if takes:
                    await end.write(data)
            except OSError:
                takes = False
        if self._ends.errors is not None:
            end.close()
        elif takes:
            with suppress(OSError):
                await end.write(_END_OF_FILE)

    async def follow(self) -> Exited:
        """Wait until it has ended. End it when the client has gone or the job is
        over.
        """
        exited = asyncio.create_task(until_ended(self._process))
        over = asyncio.create_task(self._attempt.streams.over.wait())
        try:
            await asyncio.wait(
                {exited, over, self._listening}, return_when=asyncio.FIRST_COMPLETED
            )
            if over.done() or not exited.done():
                await self._end(exited, over)
        finally:
            exited.cancel()
            over.cancel()
        return self._reap()

    async def _end(
        self, exited: "asyncio.Task[None]", over: "asyncio.Task[bool]"
    ) -> None:
        """End it and all that is left of its session."""
        process = self._process
        if not over.done():
            await asyncio.to_thread(process.signal, signal.SIGHUP)
            # A suspended process gets SIGHUP only once it continues.
            await asyncio.to_thread(process.signal, signal.SIGCONT)
            await asyncio.wait(
                {exited, over},
                timeout=_GRACE_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        await asyncio.to_thread(process.signal, signal.SIGKILL)
        await asyncio.wait({exited}, timeout=_STUCK_S)

    def _reap(self) -> Exited:
        found = self._process.exit()
        if found is None:
            log.warning("a command could not be killed", pid=self._process.pid)
            code = _KILLED
        else:
            self._process.reap()
            code = 128 + found.signal if found.signal else found.code or 0
        self._process.cleanup()
        # All that is left of a job is killed, be it by us or through its group.
        job = self._attempt.process
        job_runs = job is not None and job.alive()
        return Exited(code, with_job=code == _KILLED and not job_runs)

    async def finish(self, ended: Exited) -> None:
        """Send what is left of its output, and how it ended, unless the client has
        gone.
        """
        self._ends.finish()
        self._feeding.cancel()
        last_words = asyncio.create_task(self._say_last(ended))
        tasks = [last_words, self._listening, self._feeding, *self._sending]
        try:
            await asyncio.wait(
                {last_words, self._listening}, return_when=asyncio.FIRST_COMPLETED
            )
            if last_words.done() and not last_words.exception():
                # The client may still be sending; it hangs up when it has read all.
                await asyncio.wait({self._listening})
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _say_last(self, ended: Exited) -> None:
        await asyncio.gather(*self._sending)
        await self._channel.send(ended)
        self._channel.end()
