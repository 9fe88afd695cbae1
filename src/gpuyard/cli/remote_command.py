"""A command beside a running job, as `gpuyard exec` shows it: its input and output are
this process's own.
"""

import asyncio
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

from gpuyard.cli.blocking import beside
from gpuyard.cli.follow import GPUYARD_FAULT
from gpuyard.client.streams import JobStream, open_stream
from gpuyard.domain import stream_frames as frames
from gpuyard.domain.errors import UnreachableError
from gpuyard.domain.reasons import Reason

if TYPE_CHECKING:
    from gpuyard.client.connection import Address

_STDIN, _STDOUT, _STDERR = range(3)
_USUAL_SIZE = (80, 24)
# As shells say it.
_NOT_STARTED = {Reason.COMMAND_NOT_FOUND: 127, Reason.NOT_EXECUTABLE: 126}
_TERMINATED = 128 + signal.SIGTERM


def run_remotely(
    address: "Address", job_id: str, command: Sequence[str], *, terminal: bool
) -> int:
    """Run a command beside a job; the exit code to leave with.

    GpuyardError when that is refused, or breaks off.
    """
    try:
        return asyncio.run(_run(address, job_id, list(command), terminal))
    except asyncio.CancelledError:
        return _TERMINATED


async def _run(
    address: "Address", job_id: str, command: list[str], terminal: bool
) -> int:
    path = f"/api/v1/jobs/{job_id}/exec"
    async with open_stream(address, path) as stream:
        kind = os.environ.get("TERM") or "dumb" if terminal else ""
        columns, rows = _size() if terminal else (0, 0)
        await stream.send(frames.RunCommand(command, kind, rows, columns))
        with _raw() if terminal else nullcontext():
            _follow_signals(stream, terminal=terminal)
            sending = asyncio.create_task(_send_input(stream))
            try:
                last = await _show_output(stream)
            finally:
                sending.cancel()
    return _code_of(last, job_id)


def _follow_signals(stream: JobStream, *, terminal: bool) -> None:
    """Tell of a terminal's new size, and leave in order when this process is ended."""
    loop = asyncio.get_running_loop()
    current = asyncio.current_task()
    assert current
    loop.add_signal_handler(signal.SIGTERM, current.cancel)
    if not terminal:
        return

    sending: set[asyncio.Task[None]] = set()

    def resized() -> None:
        columns, rows = _size()
        task = loop.create_task(stream.send(frames.Resize(rows, columns)))
        sending.add(task)
        task.add_done_callback(sending.discard)

    loop.add_signal_handler(signal.SIGWINCH, resized)


def _size() -> tuple[int, int]:
    """Columns and rows of the terminal here."""
    for descriptor in (_STDOUT, _STDIN):
        with suppress(OSError):
            return os.get_terminal_size(descriptor)
    return _USUAL_SIZE


@contextmanager
def _raw() -> Generator[None]:
    """Let the terminal pass each key on, Ctrl-C too: the other end knows what to do."""
    if not os.isatty(_STDIN):
        yield
        return
    before = termios.tcgetattr(_STDIN)
    tty.setraw(_STDIN)
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)


async def _send_input(stream: JobStream) -> None:
    with suppress(OSError):  # standard input is closed
        while data := await beside(_read):
            await stream.send_input(data)
    await stream.send(frames.InputEnd())


async def _show_output(stream: JobStream) -> frames.Exited | frames.NotStarted | None:
    """Write what comes; the last frame, or None when the stream ended without one."""
    async for frame in stream.frames():
        match frame:
            case frames.Output():
                await beside(partial(_write, _STDOUT, frame.data))
            case frames.ErrorOutput():
                await beside(partial(_write, _STDERR, frame.data))
            case frames.Exited() | frames.NotStarted():
                return frame
            case _:
                pass
    return None


def _read() -> bytes:
    while True:
        try:
            return os.read(_STDIN, frames.PART)
        except BlockingIOError:  # another program that has it made it so
            select.select([_STDIN], [], [])


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def _code_of(last: frames.Exited | frames.NotStarted | None, job_id: str) -> int:
    if last is None:
        raise UnreachableError(
            "The server or the node has gone away.",
            "The command is ended; the job goes on.",
        )
    if isinstance(last, frames.NotStarted):
        sys.stderr.write(f"gpuyard: the command was not started: {last.message}\n")
        return _NOT_STARTED.get(Reason.of(last.reason), GPUYARD_FAULT)
    if last.with_job:
        sys.stderr.write(f"gpuyard: {job_id} has ended, and the command with it\n")
    return last.code
