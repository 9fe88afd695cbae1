"""The log of an attempt with secrets: their values are overwritten in the file itself,
before anybody reads them through gpuyard.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

from gpuyard.domain.masking import Mask
from gpuyard.node.launcher import LogFile

_CHUNK = 1 << 20


class MaskedLog(LogFile):
    """Reads and caps a log. What may be the beginning of a value is not shown until the
    rest of it is written, or the log is complete.
    """

    def __init__(self, path: Path, mask: Mask) -> None:
        super().__init__(path)
        self._mask = mask
        # Up to here, the file was searched, and can be shown.
        self._searched = 0
        self._is_complete = False
        self._lock = threading.Lock()

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """See LogFile."""
        self._hide_new()
        first, data = super().read(offset, limit)
        return first, data[: max(self._searched - first, 0)]

    def tail(self, lines: int, limit: int = 1 << 20) -> tuple[int, bytes]:
        """See LogFile."""
        self._hide_new()
        first, data = super().tail(lines, limit)
        return first, data[: max(self._searched - first, 0)]

    def complete(self) -> None:
        """Nobody writes to the file any more: hide the last values, and show all."""
        self._is_complete = True
        with suppress(FileNotFoundError):
            self._hide_new()

    def _hide_new(self) -> None:
        with self._lock, self.path.open("r+b", buffering=0) as file:
            while self._hide_part(file.fileno()):
                pass

    def _hide_part(self, file: int) -> bool:
        """Search the next part of the file; False at its end."""
        data = os.pread(file, _CHUNK, self._searched)
        is_end = len(data) < _CHUNK
        is_whole = is_end and self._is_complete
        cut = len(data) if is_whole else self._mask.decided(data)
        for first, last in self._mask.spans(data[:cut]):
            os.pwrite(file, b"*" * (last - first), self._searched + first)
        self._searched += cut
        return not is_end
