"""When the bytes of a log were seen: a sparse list of offsets and times, in a file
beside the log.

The file is written only while the log grows, at most once a second, and never for a
job that ends before its log was looked at for the first time.
"""

import errno
import os
import struct
from bisect import bisect_left, bisect_right
from pathlib import Path

_ENTRY = struct.Struct("<Qd")
_EVERY_S = 1.0
# More of a file is not read: it would be a log of three years.
_MOST_BYTES = 1 << 30
Entry = tuple[int, float]


def times_path(log: Path) -> Path:
    """The file with the times of the log at `log`."""
    return log.with_suffix(".times")


class LogClock:
    """Notes how long the log at `log` is as time goes on. Its calls raise OSError."""

    def __init__(self, log: Path) -> None:
        self._path = times_path(log)
        entries = _read(self._path)
        self._written: Entry = entries[-1] if entries else (0, 0.0)
        self._seen = self._written

    def note(self, size: int, at: float) -> None:
        """The log has `size` bytes at the time `at` (UTC seconds).

        Growth that comes within a second is noted with the next look at the latest.
        """
        before = self._seen
        if size != before[0]:
            self._seen = (size, at)
        if size < before[0]:
            # The program has begun its output anew.
            self._path.unlink(missing_ok=True)
            self._written = (0, 0.0)
        if self._seen[0] == self._written[0]:
            return
        if size == before[0] or at - self._written[1] >= _EVERY_S:
            self._write(self._seen)

    def _write(self, entry: Entry) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._path, flags, 0o600)
        try:
            _append_whole(file, _ENTRY.pack(*entry))
        finally:
            os.close(file)
        self._written = entry


def _append_whole(file: int, entry: bytes) -> None:
    """Append an entry, all of it or nothing: behind a part of one, every other would be
    read at the wrong place. OSError, also where a full disk takes only a part.
    """
    size = os.fstat(file).st_size
    whole = size - size % _ENTRY.size
    if whole < size:  # a server that was killed has left a part
        os.ftruncate(file, whole)
    if os.write(file, entry) < len(entry):
        os.ftruncate(file, whole)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class LogTimes:
    """The times of the log at `log`, as they are now.

    Bytes that no entry covers were seen at `last`: when the log was last written.
    """

    def __init__(self, log: Path, last: float) -> None:
        entries = _read(times_path(log))
        self._sizes = [size for size, _ in entries]
        self._times = [time for _, time in entries]
        self._last = last

    def at(self, offset: int) -> float:
        """When the byte at `offset` was seen, UTC seconds."""
        place = bisect_right(self._sizes, offset)
        return self._times[place] if place < len(self._times) else self._last

    def first_since(self, since: float) -> int | None:
        """The first byte that was seen at `since` or later; None where there is
        none.
        """
        place = bisect_left(self._times, since)
        if place == len(self._times) and self._last < since:
            return None
        return self._sizes[place - 1] if place else 0

    def end_until(self, until: float) -> int | None:
        """The offset behind the last byte that was seen at `until` or before; None for
        the end of the log.
        """
        place = bisect_right(self._times, until)
        if place == len(self._times) and self._last <= until:
            return None
        return self._sizes[place - 1] if place else 0


def _read(path: Path) -> list[Entry]:
    """The entries, in order. One that was cut off, or is out of order after a clock was
    set, is left out.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError:
        return []
    whole = data[: len(data) - len(data) % _ENTRY.size]
    entries: list[Entry] = []
    for size, time in _ENTRY.iter_unpack(whole):
        if not entries or (size > entries[-1][0] and time >= entries[-1][1]):
            entries.append((size, time))
    return entries
