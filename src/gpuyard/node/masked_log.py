"""The log of an attempt with secrets. Whoever reads it through gpuyard gets asterisks
in place of their values, and the values in the file itself are overwritten.
"""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpuyard.domain.masking import Mask
from gpuyard.storage.logfile import LogFile

_CHUNK = 1 << 20


class MaskedLog(LogFile):
    """Reads and caps a log. What may be the beginning of a value is not shown until the
    rest of it is written, or the log is complete.
    """

    def __init__(self, path: Path, mask: Mask) -> None:
        super().__init__(path)
        self._mask = mask
        # Up to here, values in the file were overwritten.
        self._overwritten = 0
        self._is_complete = False
        self._lock = threading.Lock()

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """See LogFile."""
        first, data = super().read(offset, limit)
        return first, self._shown(first, len(data))

    def tail(self, lines: int, limit: int = 1 << 20) -> tuple[int, bytes]:
        """See LogFile."""
        first, data = super().tail(lines, limit)
        return first, self._shown(first, len(data))

    def overwrite(self) -> None:
        """Overwrite the values in what was written since the last call."""
        with self._lock, self._open(os.O_RDWR) as file:
            size = os.fstat(file.fileno()).st_size
            # A program that opens /dev/stdout anew may cut the log and begin again.
            begin = self._overwritten if self._overwritten <= size else 0
            self._overwritten = self._overwrite(file.fileno(), begin)

    def complete(self) -> None:
        """Nobody writes to the file any more: overwrite all values, and show all."""
        self._is_complete = True
        with suppress(FileNotFoundError), self._lock, self._open(os.O_RDWR) as file:
            # A program may have written anywhere.
            self._overwrite(file.fileno(), 0)

    def _shown(self, first: int, length: int) -> bytes:
        """What may be shown of the `length` bytes from `first` on."""
        around = self._mask.longest
        begin = max(first - around, 0)
        with self._open() as file:
            wanted = first - begin + length + around
            data = os.pread(file.fileno(), wanted, begin)
        is_end = len(data) < wanted
        if is_end and not self._is_complete:
            data = data[: self._mask.decided(data)]
        return self._mask.hide(data)[first - begin :][:length]

    def _overwrite(self, file: int, begin: int) -> int:
        """Overwrite the values from `begin` on; returns where to go on later."""
        reached = begin
        for position in _chunks(file, max(begin - self._mask.longest, 0)):
            data = os.pread(file, _CHUNK + self._mask.longest, position)
            for first, last in self._mask.spans(data):
                os.pwrite(file, b"*" * (last - first), position + first)
            reached = position + len(data)
        return reached


def _chunks(file: int, position: int) -> Iterator[int]:
    """Where the chunks of a file begin, from `position` on; holes are left out."""
    try:
        while True:
            position = os.lseek(file, position, os.SEEK_DATA)
            yield position
            position += _CHUNK
    except OSError as error:
        if error.errno != errno.ENXIO:  # there are no more data
            raise
