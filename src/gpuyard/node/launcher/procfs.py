"""Reads processes from /proc: their owner, start and use; and sends a signal to exactly
one.
"""

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_READ_BYTES = 1 << 16
_LINE_BYTES = 1 << 12
# The kernel lets no program have a longer one. But a process may say that any part of
# its memory is its environment.
MAX_ENVIRONMENT = 8 << 20
_GONE = {
    errno.ENOENT,
    errno.ESRCH,
    errno.ENODEV,
    errno.EOPNOTSUPP,
    errno.EACCES,
    errno.EPERM,
}


@dataclass(frozen=True, slots=True)
class Stat:
    """A process as in /proc/PID/stat.

    `start_ticks`: clock ticks from boot to its start; with the pid it identifies a
    process until the next boot. `cpu_s`: CPU seconds of its own and of the children
    that it has waited for.
    """

    pid: int
    state: str
    parent: int
    group: int
    session: int
    cpu_s: float
    threads: int
    start_ticks: int
    rss_bytes: int

    @property
    def dead(self) -> bool:
        """True when it has ended, even if it is not reaped.

        The first thread may end (state Z) while the others go on.
        """
        return self.state in "ZX" and self.threads <= 1


def stat(pid: int) -> Stat | None:
    """Read one process, zombies included; None if there is none."""
    fields = _stat_fields(pid)
    if not fields:
        return None
    return Stat(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        cpu_s=sum(map(int, fields[11:15])) / _TICKS_PER_S,
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def start_ticks(pid: int) -> int | None:
    """When a process started, as in `Stat`; None if there is none."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def _stat_fields(pid: int) -> list[bytes]:
    text = _read_line(f"/proc/{pid}/stat")
    # The name in parentheses may hold any text, also parentheses and spaces, so fields
    # count from the last ")".
    return text[text.rfind(b")") + 2 :].split()


def stats() -> Iterator[Stat]:
    """Read every process; those that end meanwhile are left out.

    The newest come first: of processes that fork and end quickly, the fewest have then
    ended between the listing and the reading.
    """
    for name in reversed(os.listdir("/proc")):  # noqa: PTH208  (a Path for each of thousands of entries is slow)
        found = stat(int(name)) if name.isdigit() else None
        if found:
            yield found


def has_variable(pid: int, entry: bytes) -> bool:
    """Whether a process was started with this `NAME=value`; False if it has ended or
    cannot be read.
    """
    return b"\0" + entry + b"\0" in environment(pid)


def environment(pid: int) -> bytes:
    """The variables that a process was started with, a NUL byte before each and after
    the last; none if it has ended or cannot be read.

    During an exec a process has neither environment nor arguments. This waits for the
    end of that, at most 20 ms.
    """
    content = b""
    for _ in range(20):
        content = read_file(f"/proc/{pid}/environ", MAX_ENVIRONMENT)
        if content or read_file(f"/proc/{pid}/cmdline", 1):
            break
        process = stat(pid)
        # Without memory it is a thread of the kernel.
        if process is None or process.dead or not process.rss_bytes:
            break
        time.sleep(0.001)
    return b"\0" + content


def groups(pid: int) -> bytes:
    """The control groups of a process, a line for each tree; empty if it has ended."""
    return read_file(f"/proc/{pid}/cgroup")


def owner(pid: int) -> int | None:
    """The effective user of a process; None if it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except FileNotFoundError:
        return None


def children(pid: int) -> list[int]:
    """The children of a process's first thread, zombies included; none if it has
    ended.
    """
    return [int(word) for word in read_file(f"/proc/{pid}/task/{pid}/children").split()]


def newest_pid() -> int:
    """The pid of the newest process or thread in this PID namespace, even if that has
    ended.
    """
    return int(os.pread(_load_file(), _LINE_BYTES, 0).split()[4])


@cache
def _load_file() -> int:
    """It stays open, because each attempt needs it."""
    return os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)


def open_pidfd(pid: int, start_ticks: int) -> int | None:
    """A pidfd of the process with this pid and start; None if it has ended, even if
    another process has its pid now.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        # With the last two the pid now belongs to a thread.
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            return None
        raise
    # This check comes after the open: from then on the pid and the descriptor mean the
    # same process.
    now = stat(pid)
    if now and now.start_ticks == start_ticks:
        return pidfd
    os.close(pidfd)
    return None


def send(process: Stat, signum: int) -> None:
    """Send a signal to exactly the process that was read, never to another one that has
    its pid now.

    Nothing happens if it has ended or belongs to another user.
    """
    pidfd = open_pidfd(process.pid, process.start_ticks)
    if pidfd is None:
        return
    try:
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, signum)
    finally:
        os.close(pidfd)


def threads_of_user(uid: int) -> int:
    """How many threads the user's processes have, as RLIMIT_NPROC counts them."""
    total = 0
    for process in stats():
        with suppress(OSError):
            if Path(f"/proc/{process.pid}").stat().st_uid == uid:
                total += process.threads
    return total


def _read_line(path: str) -> bytes:
    """Read a file of /proc that is one short line; as `read_file`."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.read(fd, _LINE_BYTES)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return b""
    finally:
        if fd >= 0:
            os.close(fd)


def read_file(path: str, limit: int = 1 << 30) -> bytes:
    """Read a file of /proc or of a control group, up to about `limit` bytes; b"" if it
    does not exist or may not be read.

    Any other error is raised: if there were no free descriptors, an empty file would
    look like a dead process. There is no Path and no text layer, because this runs for
    every process of the host.
    """
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        parts: list[bytes] = []
        left = limit
        while left > 0 and (part := os.read(fd, min(_READ_BYTES, left))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return b""
    finally:
        if fd >= 0:
            os.close(fd)
