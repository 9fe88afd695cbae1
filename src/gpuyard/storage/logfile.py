"""An attempt's log: a file that only grows at its end, is read by offset, and is
limited by a hole at its front.

The hole keeps the file's size, so offsets mean the same before and after. The file
system knows where the hole ends (SEEK_DATA), so no second file is needed that could
disagree.
"""

import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from gpuyard.domain.log_query import Choice
from gpuyard.domain.units import format_gb
from gpuyard.storage.untrusted import open_regular

_BLOCK_BYTES = 1 << 16
# A log may be so many times its limit before its front goes, so that this is rare.
_SLACK = 1.25
_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02

_libc = ctypes.CDLL(None, use_errno=True)


class LogFile:
    """Reads and caps the log at `path` while a process may append to it.

    Calls raise OSError if there is no log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def _open(self, flags: int = os.O_RDONLY) -> IO[bytes]:
        """The file. A job may have put a link in its place; that is not followed."""
        mode = "rb" if flags == os.O_RDONLY else "r+b"
        return os.fdopen(open_regular(self.path, flags), mode, buffering=0)

    def size(self) -> int:
        """Bytes written so far, including the hole: the offset of the next byte."""
        return self.path.lstat().st_size

    def start(self) -> int:
        """The first offset that can be read: 0, or after a cap the start of the first
        whole line that is left.
        """
        with self._open() as file:
            return _start(file.fileno())

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """The offset of the first byte and at most `limit` bytes, from `offset` or from
        `start()` if that is later.

        At the end of the file there are no bytes. The next call's offset is the
        returned one plus their number.
        """
        with self._open() as file:
            first = max(offset, _start(file.fileno()))
            return first, os.pread(file.fileno(), limit, first)

    def tail(self, lines: int, limit: int = 1 << 20) -> tuple[int, bytes]:
        """The offset and the bytes of the last `lines` lines, including an unfinished
        one.

        They are cut to the last `limit` bytes, if necessary within a line.
        """
        with self._open() as file:
            end = file.seek(0, os.SEEK_END)
            first = max(_start(file.fileno()), end - limit)
            position = end
            data = b""
            newlines = 0
            while position > first and newlines <= lines:
                size = min(_BLOCK_BYTES, position - first)
                position -= size
                block = os.pread(file.fileno(), size, position)
                data = block + data
                newlines += block.count(b"\n")
        begin = start_of_last(lines, data)
        return position + begin, data[begin:]

    def next_with(
        self, choices: Sequence[Choice], offset: int, *, ignore_case: bool = False
    ) -> int:
        """The first offset, at `offset` or behind it, where a line may go on that has
        one list of texts of each choice: nothing is known of that.
        """
        return offset

    def is_over(self, limit_gb: float) -> bool:
        """Whether the log is so much over its limit that its front should go."""
        return self.size() - self.start() > limit_gb * (1 << 30) * _SLACK

    def limit(self, limit_gb: float) -> bool:
        """Keep only the end of the file, and let a line say so where it now begins.

        False, with the file unchanged, if the file system cannot punch holes.
        """
        if not self.cap(int(limit_gb * (1 << 30))):
            return False
        self.note_gap(
            f"[gpuyard: the log has reached its limit of {format_gb(limit_gb)}, so"
            " older output is gone; --log-limit-gb sets another]"
        )
        return True

    def cap(self, max_bytes: int) -> bool:
        """Free the front of the file, so that its last `max_bytes`, and less than a
        block more, stay.

        False, with the file unchanged, if the file system cannot punch holes.
        """
        with self._open(os.O_RDWR) as file:
            block_bytes = os.fstatvfs(file.fileno()).f_bsize
            end = (file.seek(0, os.SEEK_END) - max_bytes) // block_bytes * block_bytes
            if end <= 0:
                return True
            return _punch(file.fileno(), end)

    def note_gap(self, note: str) -> None:
        """Let `note` be the first line that can be read, in a log whose front was
        freed. It replaces the rest of a line that stands there; no other byte changes.
        """
        with self._open(os.O_RDWR) as file:
            start = _start(file.fileno())
            # The line end before it keeps it apart from what is left of that line.
            line = f"\n{note}\n".encode()
            begin = start - len(line)
            # In the first block, it would hide that there is a hole.
            if begin >= os.fstatvfs(file.fileno()).f_bsize:
                os.pwrite(file.fileno(), line, begin)


def start_of_last(lines: int, data: bytes) -> int:
    """Where the last `lines` lines of some output begin in it; its length for none. An
    unfinished line counts.
    """
    if lines <= 0:
        return len(data)
    # The line end of the last line is no beginning of another.
    end = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1


def _start(fd: int) -> int:
    # Read before the data are looked for: the program may write in between.
    size = os.fstat(fd).st_size
    try:
        kept = os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        # No data at all: the file is empty, or nothing but a hole.
        if error.errno == errno.ENXIO:
            return size
        raise
    if kept == 0:
        return 0
    # The first bytes are the rest of a line. If that is longer than a block (a progress
    # bar), the search for its end is not worth it.
    return kept + os.pread(fd, _BLOCK_BYTES, kept).find(b"\n") + 1


def _punch(fd: int, end: int) -> bool:
    failed = _libc.fallocate(
        fd, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(end)
    )
    if not failed:
        return True
    error = ctypes.get_errno()
    if error in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(error, os.strerror(error))
