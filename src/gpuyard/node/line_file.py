"""A file of lines that only grows, until it is replaced by what is still needed of it.

Nothing is synced to disk: what a killed process wrote is in the kernel's page cache.
Only the last line can be torn by a kill; it is cut off when the file is opened.
"""

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class LineFile:
    """The file at `path`, made with mode 0600. Its calls raise OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, _OPEN, 0o600)
        content = self._content()
        self.size = content.rfind(b"\n") + 1
        if self.size < len(content):
            os.ftruncate(self._fd, self.size)

    def append(self, *lines: bytes) -> None:
        """Append lines, which hold no line end: all of them or none."""
        data = b"\n".join(lines) + b"\n"
        written = os.write(self._fd, data)
        if written < len(data):
            os.ftruncate(self._fd, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self.size += written

    def lines(self) -> list[bytes]:
        """All lines, oldest first."""
        return self._content().splitlines()

    def replace(self, lines: Iterable[bytes]) -> None:
        """Let these be the only lines. The file has the old or the new ones, whenever
        this process is killed.
        """
        draft = self._path.with_name(f"{self._path.name}.new")
        draft.unlink(missing_ok=True)
        file = os.open(draft, _OPEN, 0o600)
        try:
            size = _write(file, b"".join(line + b"\n" for line in lines))
            draft.replace(self._path)
        except OSError:
            os.close(file)
            # A full disk has no room for half a copy.
            with suppress(OSError):
                draft.unlink()
            raise
        os.close(self._fd)
        self._fd = file
        self.size = size

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _content(self) -> bytes:
        size = os.fstat(self._fd).st_size
        parts: list[bytes] = []
        offset = 0
        while part := os.pread(self._fd, size - offset, offset):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)


def _write(file: int, data: bytes) -> int:
    """Write all of it; how much that is."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    return len(data)
