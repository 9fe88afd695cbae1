"""A log file that several processes append to, rotated by its size.

All of them have it open as their standard error, and so have programs that know
nothing of this. So the file itself stays: the rotating process copies it and cuts it to
nothing. While a line is written, its process holds a shared lock, so that no line is
cut off between the copy and the cut.
"""

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

MAX_BYTES = 10_000_000
KEPT = 3
# A process that was stopped while it rotates may hold up a line only this long.
_TRIES = 20
_PAUSE_S = 0.01


def open_log(path: Path) -> IO[bytes]:
    """Open a log that a process appends to; only its owner may read it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "ab")


class RotatedLog:
    """The file `path` behind the open file `fd`. `fd` may be another file, such as a
    terminal; then nothing is rotated.

    The older parts are `path` with `.1` (the newest) to `.3`.
    """

    def __init__(self, path: Path, fd: int, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._fd = fd
        self._max_bytes = max_bytes
        self._lock_path = path.with_name(path.name + ".lock")
        self._threads = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append `data`; OSError."""
        with self._threads:
            if os.fstat(self._fd).st_size < self._max_bytes:
                with self._locked(fcntl.LOCK_SH):
                    os.write(self._fd, data)
                return
            with self._locked(fcntl.LOCK_EX) as is_mine:
                os.write(self._fd, data)
                if is_mine and self._is_full():
                    self._rotate()

    @contextmanager
    def _locked(self, kind: int) -> Generator[bool]:
        """Hold the lock; False if another process does not let go of it."""
        try:
            lock = os.open(
                self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError:
            yield False
            return
        try:
            yield _lock(lock, kind)
        finally:
            os.close(lock)

    def _is_full(self) -> bool:
        """Whether the file is this log and still too large: another process may have
        rotated it.
        """
        try:
            named = self._path.stat()
        except OSError:
            return False
        is_open = os.fstat(self._fd)
        is_log = (named.st_dev, named.st_ino) == (is_open.st_dev, is_open.st_ino)
        return is_log and is_open.st_size >= self._max_bytes

    def _rotate(self) -> None:
        draft = self._part("new")
        try:
            shutil.copyfile(self._path, draft)
        except OSError:
            draft.unlink(missing_ok=True)
            return
        draft.chmod(0o600)
        for number in range(KEPT, 1, -1):
            with suppress(FileNotFoundError):
                self._part(number - 1).replace(self._part(number))
        draft.replace(self._part(1))
        os.ftruncate(self._fd, 0)

    def _part(self, number: int | str) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _lock(lock: int, kind: int) -> bool:
    for _ in range(_TRIES):
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return True
    return False
