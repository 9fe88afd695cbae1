"""What is typed here while a job is followed: it goes to the job's standard input, if
the job is interactive.
"""

import asyncio
import errno
import fcntl
import os
import select
import sys
import termios
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from gpuyard.cli.blocking import beside
from gpuyard.cli.output import short_id
from gpuyard.client.streams import JobStream, open_stream
from gpuyard.domain import stream_frames as frames
from gpuyard.domain.errors import GpuyardError, RefusedError, UnreachableError
from gpuyard.domain.states import JobState
from gpuyard.domain.stream_frames import InputOverCause

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.client.sync_job import JobHandle

_STDIN = 0
# How often it is looked whether the job runs, and who has the terminal.
_LOOK_S = 0.3
# A job that is just ending refuses for a moment.
_MOST_REFUSALS = 5
_LEAVE_S = 2.0
Say = Callable[[str], None]


class StandardInput:
    """This command's standard input, which is read until `stop`."""

    def __init__(self) -> None:
        self._woken, self._wake = os.pipe()
        # Where this command was started without one (`<&-`), its descriptor is that of
        # something else by now.
        self._is_open = sys.stdin is not None
        self._is_terminal = self._is_open and os.isatty(_STDIN)

    def stop(self) -> None:
        """Let whoever reads or waits return."""
        os.write(self._wake, b"x")

    def read(self) -> bytes | None:
        """The next bytes; none at the end, and None when it was stopped."""
        try:
            if not self._until_ready():
                return None
            return os.read(_STDIN, frames.PART)
        except OSError:  # it is closed
            return b""

    def until_typed(self) -> bool:
        """Wait until there is something to read, and leave it there; False when that
        never comes.
        """
        with suppress(OSError):
            if self._until_ready():
                count = fcntl.ioctl(_STDIN, termios.FIONREAD, b"\0" * 4)
                return int.from_bytes(count, sys.byteorder) > 0
        return False

    def _until_ready(self) -> bool:
        if not self._is_open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        while True:
            ready, _, _ = select.select([_STDIN, self._woken], [], [])
            if self._woken in ready:
                return False
            if self._is_for_us():
                return True
            # What is typed is for another program: to read it would stop this one.
            select.select([self._woken], [], [], _LOOK_S)

    def _is_for_us(self) -> bool:
        if not self._is_terminal:
            return True
        try:
            return os.tcgetpgrp(_STDIN) == os.getpgrp()
        except OSError:  # the terminal of another session, as after `su -c`
            return True

    @property
    def is_terminal(self) -> bool:
        """Whether a person sits there."""
        return self._is_terminal


class UnwantedInput:
    """Says once that a job takes no input, when something is typed."""

    is_dialogue = False

    def __init__(self, job: "JobHandle") -> None:
        self._job = job

    @contextmanager
    def passed_on(self, say: Say) -> Generator[None]:
        """While this context is entered; `say` shows a line."""
        typed = StandardInput()
        text = (
            f"gpuyard: {short_id(self._job.id)} takes no input, because it was"
            " submitted without -i"
        )

        def watch() -> None:
            if typed.until_typed():
                say(text)

        with _thread(watch, typed.stop):
            yield


class JobInput:
    """Sends what is typed to an interactive job, to each of its attempts in turn.

    `empty_ends`: also an input that is empty from the beginning, and no terminal, ends
    that of the job.
    """

    is_dialogue = True

    def __init__(
        self, client: "Client", job: "JobHandle", *, empty_ends: bool = False
    ) -> None:
        self._client = client
        self._job = job
        self._empty_ends = empty_ends
        self._typed = StandardInput()
        self._say: Say = print
        self._reading: asyncio.Task[bytes | None] | None = None
        self._unsent = b""
        self._has_sent = False
        self._is_told = False
        self._at_end = False
        # The attempt that takes no more input.
        self._over = 0

    @contextmanager
    def passed_on(self, say: Say) -> Generator[None]:
        """While this context is entered; `say` shows what a person should know."""
        self._say = say
        loop = asyncio.new_event_loop()
        sending = loop.create_task(self._send_to_attempts())

        def run() -> None:
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(sending)

        def stop() -> None:
            self._typed.stop()
            loop.call_soon_threadsafe(sending.cancel)

        with _thread(run, stop):
            yield

    async def _send_to_attempts(self) -> None:
        attempt = refusals = 0
        while True:
            try:
                job = await beside(self._job.peek)
                if job.state.terminal or self._has_nothing_to_say:
                    return
                attempt = job.attempts[-1].number if job.attempts else 0
                if job.state is JobState.RUNNING and attempt != self._over:
                    if await self._send_to_one():
                        self._over = attempt
                    refusals = 0
            except RefusedError as error:
                refusals += 1
                if refusals == _MOST_REFUSALS:
                    self._say(f"gpuyard: {error}")
                    # The next one may take input: one that is preempted ends slowly.
                    self._over = attempt
                    refusals = 0
            except GpuyardError:  # the server is away for a moment
                pass
            await asyncio.sleep(_LOOK_S)

    @property
    def _has_nothing_to_say(self) -> bool:
        return self._at_end and not self._may_end

    @property
    def _may_end(self) -> bool:
        return self._has_sent or self._empty_ends or self._typed.is_terminal

    async def _send_to_one(self) -> bool:
        """Send to the attempt that runs, until it takes no more, which is true, or the
        stream breaks off.
        """
        path = f"/api/v1/jobs/{self._job.id}/stdin"
        async with open_stream(self._client.address, path) as stream:
            self._tell_how()
            sending = asyncio.create_task(self._send(stream))
            last = None
            try:
                async for frame in stream.frames():
                    last = frame
            except UnreachableError:
                pass
            finally:
                sending.cancel()
        if not isinstance(last, frames.InputOver):
            self._tell_lost(stream)
            return False
        self._tell_over(last.cause)
        return last.cause is not InputOverCause.ATTEMPT_OVER

    async def _send(self, stream: JobStream) -> None:
        while self._unsent or not self._at_end:
            if not self._unsent:
                typed = await self._next()
                if typed is None:
                    return
                self._unsent = typed
                self._at_end = not typed
            await stream.has_room(len(self._unsent))
            part = self._unsent
            self._unsent = b""
            if part:
                self._has_sent = True
                await stream.send_input(part)
        if self._may_end:
            await stream.send(frames.InputEnd())

    async def _next(self) -> bytes | None:
        """What is typed next. A reading that was begun goes on when a stream breaks
        off, so that nothing is lost.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(beside(self._typed.read))
        typed = await asyncio.shield(self._reading)
        self._reading = None
        return typed

    def _tell_how(self) -> None:
        """Tell a person once that the job is there."""
        if self._typed.is_terminal and not self._is_told:
            self._is_told = True
            name = short_id(self._job.id)
            self._say(f"gpuyard: what you type goes to {name}; Ctrl-D ends its input")

    def _tell_lost(self, stream: JobStream) -> None:
        if stream.unacknowledged:
            self._say(
                f"gpuyard: the connection broke; the last {stream.unacknowledged} bytes"
                " of input may not have arrived"
            )

    def _tell_over(self, cause: InputOverCause) -> None:
        name = short_id(self._job.id)
        if cause is InputOverCause.CLOSED:
            self._say(f"gpuyard: {name} reads no more input")
        elif cause is InputOverCause.ENDED and not self._at_end:
            self._say(f"gpuyard: somebody else has ended the input of {name}")


def input_of(client: "Client", job: "JobHandle") -> JobInput | None:
    """What sends to a job that was read with its spec; None if it takes no input."""
    is_interactive = (job.info.spec or {}).get("interactive")
    return JobInput(client, job) if is_interactive else None


@contextmanager
def _thread(work: Callable[[], None], stop: Callable[[], None]) -> Generator[None]:
    """While `work` runs in a thread. It returns soon after `stop`, and nobody waits for
    it any longer.
    """
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with suppress(RuntimeError):  # its loop has ended
            stop()
        thread.join(_LEAVE_S)
