"""An attempt's log: one file that only grows at its end, read by offset, capped by punching a hole at its front.

The hole keeps the file's size, so that offsets mean the same before and after. Where it ends is asked of the file
system (SEEK_DATA), so that there is no second file to disagree with it.
"""

import ctypes
import errno
import os
from pathlib import Path

_BLOCK_BYTES = 1 << 16
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02

_libc = ctypes.CDLL(None, use_errno=True)


class LogFile:
    """Reads and caps the log at `path` while a process may be appending to it. Calls raise OSError where it is not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        """Bytes written so far, punched ones included: the offset of what comes next."""
        return self.path.stat().st_size

    def start(self) -> int:
        """The first offset that can be read: 0, or after a cap the start of the first whole line still there."""
        with self.path.open("rb", buffering=0) as file:
            return _start(file.fileno())

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """At most `limit` bytes from `offset` on, or from `start()` if that is later: where they begin, and they.

        There are none at the end of the file; the next call's offset is the returned one plus their number.
        """
        with self.path.open("rb", buffering=0) as file:
            first = max(offset, _start(file.fileno()))
            return first, os.pread(file.fileno(), limit, first)

    def tail(self, lines: int, limit: int = 1 << 20) -> tuple[int, bytes]:
        """The last `lines` lines, a last one without its newline included: where they begin, and they.

        They are cut, in the middle of a line if need be, to the last `limit` bytes.
        """
        with self.path.open("rb", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            first = max(_start(file.fileno()), end - limit)
            position, data, newlines = end, b"", 0
            while position > first and newlines <= lines:
                size = min(_BLOCK_BYTES, position - first)
                position -= size
                block = os.pread(file.fileno(), size, position)
                data = block + data
                newlines += block.count(b"\n")
        begin = len(data) - data.endswith(b"\n") if lines > 0 else len(data)
        for _ in range(lines):
            begin = data.rfind(b"\n", 0, begin)
            if begin < 0:
                break
        begin += lines > 0
        return position + begin, data[begin:]

    def cap(self, max_bytes: int) -> bool:
        """Give the front of the file back to the disk, so that its last `max_bytes` and less than a block more stay.

        False, with the file as it was, where the file system cannot punch holes.
        """
        with self.path.open("r+b", buffering=0) as file:
            block_bytes = os.fstatvfs(file.fileno()).f_bsize
            end = (file.seek(0, os.SEEK_END) - max_bytes) // block_bytes * block_bytes
            if end <= 0:
                return True
            return _punch(file.fileno(), end)


def _start(fd: int) -> int:
    try:
        kept = os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # no data at all: the file is empty, or nothing but a hole
            return os.lseek(fd, 0, os.SEEK_END)
        raise
    if kept == 0:
        return 0
    # What comes first is the rest of a line. One longer than a block (a progress bar's) is not worth a search.
    return kept + os.pread(fd, _BLOCK_BYTES, kept).find(b"\n") + 1


def _punch(fd: int, end: int) -> bool:
    failed = _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(end))
    if not failed:
        return True
    error = ctypes.get_errno()
    if error in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(error, os.strerror(error))
