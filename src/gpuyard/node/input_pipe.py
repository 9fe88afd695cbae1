"""The pipe that an interactive job reads as its standard input.

For its reader a pipe ends once nobody has it open for writing. So a small process of
its own, the holder, keeps it open, writes nothing, and outlives the agent. Through it
the agent that follows finds the pipe again. The holder ends when it is dismissed, or by
itself when nobody reads the pipe any more.
"""

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gpuyard.node.launcher import Streams, procfs
from gpuyard.node.launcher.members import ATTEMPT_VARIABLE
from gpuyard.node.launcher.posix_spawn import posix_spawn

# Its standard output is the pipe. Asked for no events, poll waits until nobody reads.
_HOLD = b"import select; poll = select.poll(); poll.register(1, 0); poll.poll()"
_GROUP_MAY_READ = 0o640


@dataclass(frozen=True, slots=True)
class PipeHolder:
    """The process that keeps a pipe open, identified until the next boot."""

    pid: int
    start_ticks: int

    def open_pipe(self) -> int:
        """A descriptor that writes to the pipe and never blocks; OSError when the
        holder has ended, because nobody reads.
        """
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        pipe = os.open(f"/proc/{self.pid}/fd/1", flags)
        # From now on it does not matter whose pid this is.
        if self._found() is None:
            os.close(pipe)
            raise BrokenPipeError
        return pipe

    def dismiss(self) -> None:
        """Let it end, if it still runs. This does not block."""
        if found := self._found():
            procfs.send(found, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the end of one that was dismissed, if it is a child of this process
        and was not reaped before.
        """
        if self._found():
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)

    def _found(self) -> procfs.Stat | None:
        """The process, be it a zombie; None if it has gone."""
        found = procfs.stat(self.pid)
        return found if found and found.start_ticks == self.start_ticks else None


@contextmanager
def new_pipe(attempt_id: str, group: int | None) -> Generator[tuple[int, PipeHolder]]:
    """Make the pipe of an attempt; yields the end for its program, and the holder.

    The program must have its end before this context is left. `group`: that of the
    account that the program runs under, which may open `/dev/stdin` then. Raises
    OSError.
    """
    reader, writer = os.pipe()
    try:
        try:
            if group is not None:
                os.fchown(reader, -1, group)
                os.fchmod(reader, _GROUP_MAY_READ)
            holder = _start_holder(writer, attempt_id)
        finally:
            os.close(writer)
        yield reader, holder
    finally:
        os.close(reader)


def _start_holder(writer: int, attempt_id: str) -> PipeHolder:
    # Not the attempt's own variable: it is none of its processes, and the keeper must
    # not take it for one.
    name = f"{attempt_id}.input"
    marker = os.fsencode(f"{ATTEMPT_VARIABLE}={name}")
    interpreter = os.fsencode(sys.executable)
    argv = [interpreter, b"-I", b"-S", b"-c", _HOLD, os.fsencode(name)]
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        streams = Streams(nothing, writer, errors=nothing)
        pid = posix_spawn(interpreter, argv, [marker], b"/", streams)
    finally:
        os.close(nothing)
    found = procfs.stat(pid)
    return PipeHolder(pid, found.start_ticks if found else 0)
