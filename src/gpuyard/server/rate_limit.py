"""How many requests each user may send: a bucket of tokens for each, of which a request
takes one. It fills as time passes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.controller.users import Identity
from gpuyard.domain.errors import RateLimitedError

# A full bucket has what flows in within so long.
BURST_S = 20.0


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class RateLimit:
    """Each user may send `per_s` requests (0: any number). The owner of the instance,
    workers and agents may send what they like.
    """

    def __init__(self, per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._most = per_s * BURST_S
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def take(self, identity: Identity) -> None:
        """Count a request of its sender. RateLimitedError, and it does not count."""
        user = (identity.sender or identity).user
        if user is None or not self._per_s:
            return
        now = self._clock()
        bucket = self._buckets.setdefault(user, _Bucket(self._most, now))
        flowed = (now - bucket.at) * self._per_s
        bucket.left = min(bucket.left + flowed, self._most)
        bucket.at = now
        if bucket.left < 1:
            raise RateLimitedError(
                f"{user} sends more than {self._per_s} requests a second.",
                "Wait a second, or submit many jobs in one request. It is"
                " `max_requests_per_s` in [server] of the server's settings.",
            )
        bucket.left -= 1
