"""How often somebody may come: whoever comes too often waits for its turn."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Allowance:
    left: float
    at: float


class Throttle:
    """Each may come `burst` times at once, and then `per_s` times a second. It knows as
    many as ever came, so these must be few.
    """

    def __init__(
        self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, _Allowance] = {}

    def wait_s(self, key: str) -> float:
        """Count one that comes; for how many seconds it has to wait. Others of the same
        key that come meanwhile wait longer, as long as a whole burst takes at most.
        """
        now = self._clock()
        bucket = self._buckets.setdefault(key, _Allowance(self._burst, now))
        flowed = (now - bucket.at) * self._per_s
        left = min(bucket.left + flowed, self._burst) - 1
        bucket.left = max(left, -float(self._burst))
        bucket.at = now
        return max(-bucket.left, 0.0) / self._per_s
