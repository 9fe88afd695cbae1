"""For how long external queues have not known attempts that were sent to them."""

import time
from collections.abc import Callable, Iterable

LOST_AFTER_S = 30.0
"""An attempt that its queue has not known for this long is lost.

A queue may not know a job for a moment after it came or went.
"""


class UnknownAttempts:
    """Counts only while a queue answers: one that is away says nothing about them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def is_lost(self, attempt_id: str) -> bool:
        """Note that its queue does not know the attempt now, and say whether that has
        lasted so long that the attempt is lost.
        """
        now = self._clock()
        since = self._since.setdefault(attempt_id, now)
        return now - since >= LOST_AFTER_S

    def known(self, attempt_id: str) -> None:
        """Its queue knows the attempt, or it has ended."""
        self._since.pop(attempt_id, None)

    def queue_is_away(self, attempt_ids: Iterable[str]) -> None:
        """The queue of these attempts does not answer."""
        for attempt_id in attempt_ids:
            self.known(attempt_id)
