"""The copy of an attempt's output, and where it ends in the output itself.

The place is a mark of the provider (`stream_output`), in a file beside the copy. So a
server that starts again goes on where the last one was, also when the provider has
dropped the beginning of the output since.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from gpuyard.storage.log_times import LogClock

# A mark is written at most so often. What was copied after it is copied again.
_MARK_EVERY_S = 0.05


class LogCopy:
    """The copy at `path`. As a context manager it is open for writing; when it is
    opened, it is cut off at its mark.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark_path = mark_path(path)
        self._mark = ""
        self._size = 0
        self._marked_at = 0.0
        self._clock = LogClock(path)
        self._copy: IO[bytes] | None = None
        self._marks: IO[bytes] | None = None

    @property
    def mark(self) -> str:
        """Where it ends in the output of the provider; empty for the start."""
        return self._mark

    @property
    def size(self) -> int:
        """Its bytes."""
        return self._size

    def __enter__(self) -> "LogCopy":
        self._copy = self.path.open("ab", buffering=0)
        self._marks = os.fdopen(
            os.open(self._mark_path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0
        )
        self._size = self._copy.tell()
        self._read_mark()
        self._copy.truncate(self._size)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (self._copy, self._marks):
            if file is not None:
                file.close()

    def _read_mark(self) -> None:
        assert self._marks is not None
        line = self._marks.readline()
        # Earlier versions wrote no mark: the bytes that they copied are one.
        self._mark = str(self._size) if self._size else ""
        try:
            size, mark = json.loads(line)
        except (ValueError, TypeError):
            return
        if size <= self._size:
            self._size = size
            self._mark = mark

    def append(self, data: bytes) -> None:
        """Write behind its end."""
        assert self._copy is not None
        self._copy.write(data)
        self._size += len(data)

    def note(self, mark: Callable[[], str], *, now: bool = False) -> None:
        """Note where it ends, unless that was noted a moment ago; with `now` always."""
        if not now and time.monotonic() - self._marked_at < _MARK_EVERY_S:
            return
        assert self._marks is not None
        self._mark = mark()
        # One call writes the whole line. Behind it, the rest of a longer one may stay.
        os.pwrite(
            self._marks.fileno(),
            json.dumps([self._size, self._mark]).encode() + b"\n",
            0,
        )
        self._marked_at = time.monotonic()
        with suppress(OSError):  # a full disk costs the times of some lines
            self._clock.note(self._size, time.time())


def mark_path(path: Path) -> Path:
    """The file with the mark of the copy at `path`."""
    return path.with_suffix(".mark")
