"""Hides the values of secrets in the log."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import List

# Shorter values would hide ordinary words.
_SHORTEST = 8
_MASK_BYTES = 1 << 20


class LogMask:
    """Overwrites secret values in the log with asterisks, so that offsets stay valid.

    See `domain/masking.py`.
    """

    def __init__(self, folder: Path, values: List[str]) -> None:
        lines = {line for value in values for line in [value, *value.splitlines()]}
        found = [line.encode() for line in lines if len(line.encode()) >= _SHORTEST]
        self._values = sorted(found, key=len, reverse=True)
        self._log = folder / "log"
        self._offset = 0

    def hide_new(self) -> None:
        """Hide the values in what was written since the last call."""
        if not self._values:
            return
        pattern = re.compile(b"|".join(re.escape(value) for value in self._values))
        margin = len(self._values[0]) - 1
        with suppress(OSError), self._log.open("r+b", buffering=0) as log:
            # A program that opens /dev/stdout anew may cut the log and begin again.
            if os.fstat(log.fileno()).st_size < self._offset:
                self._offset = 0
            while True:
                # Without the holes; an OSError behind the last byte.
                self._offset = os.lseek(log.fileno(), self._offset, os.SEEK_DATA)
                data = os.pread(log.fileno(), _MASK_BYTES + margin, self._offset)
                for match in pattern.finditer(data):
                    stars = b"*" * len(match.group())
                    os.pwrite(log.fileno(), stars, self._offset + match.start())
                if len(data) <= margin:
                    return
                self._offset += len(data) - margin

    def hide_all(self) -> None:
        """Hide the values wherever they are; the program has ended."""
        self._offset = 0
        self.hide_new()
