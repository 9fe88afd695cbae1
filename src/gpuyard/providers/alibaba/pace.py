"""How fast an API may be asked: as fast as it answers, found by what it refuses.

Alibaba limits each action of an account, by a number that it changes without notice.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

_FIRST = 10.0
_LEAST = 0.2
_MOST = 100.0
_FASTER = 1.015
_SLOWER = 0.85
_MUCH_SLOWER = 0.5


class CallPace:
    """Spaces the calls of one action; `per_s` is how many a second it lets through.

    Each answer raises the pace a little. A refusal lowers it, once for all calls that
    were sent before it was lowered; a second refusal without an answer lowers it more.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.per_s = _FIRST
        self._clock = clock
        self._sleep = sleep
        self._queue = asyncio.Lock()
        self._last = float("-inf")
        self._lowered_at = float("-inf")
        self._answered = True

    async def turn(self) -> float:
        """Wait until a call may be sent; returns when it was let through."""
        async with self._queue:
            wait_s = self._last + 1 / self.per_s - self._clock()
            if wait_s > 0:
                await self._sleep(wait_s)
            self._last = self._clock()
            return self._last

    def answered(self) -> None:
        """A call was carried out."""
        self._answered = True
        self.per_s = min(self.per_s * _FASTER, _MOST)

    def refused(self, sent_at: float) -> None:
        """A call that was let through at `sent_at` was refused as one too many."""
        if sent_at < self._lowered_at:
            return
        factor = _SLOWER if self._answered else _MUCH_SLOWER
        self._answered = False
        self.per_s = max(self.per_s * factor, _LEAST)
        self._lowered_at = self._clock()
