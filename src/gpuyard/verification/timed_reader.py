"""A reader that knows when what it holds arrived."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import SupportsIndex

# Unread bytes that come closer together than this count as arrived together. So a
# sender of single bytes does not fill the memory with times.
_TOGETHER_S = 0.01


class TimedReader(asyncio.StreamReader):
    """A stream reader that notes arrival times.

    Whoever reads from it calls `took` with what it has read.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit, loop=asyncio.get_running_loop())
        # (number of the last byte, monotonic seconds)
        self._arrivals: deque[tuple[int, float]] = deque()
        self._arrived = 0
        self._taken = 0

    @property
    def unread(self) -> int:
        """How many bytes have arrived and were not read."""
        return self._arrived - self._taken

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """Note when `data` came (asyncio calls this)."""
        now = time.monotonic()
        data = bytes(data)
        if self.unread and now - self._arrivals[-1][1] < _TOGETHER_S:
            now = self._arrivals.pop()[1]
        self._arrived += len(data)
        self._arrivals.append((self._arrived, now))
        super().feed_data(data)

    def took(self, size: int) -> float:
        """Note that `size` bytes were read; returns when the last of them arrived."""
        self._taken += size
        while len(self._arrivals) > 1 and self._arrivals[0][0] < self._taken:
            self._arrivals.popleft()
        return self._arrivals[0][1] if self._arrivals else time.monotonic()
