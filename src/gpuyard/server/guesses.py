"""Whoever shows wrong tokens is slowed down, so that none can be found by trying.

A right token is slowed down as a wrong one is: an answer that came sooner, or came at
all, would say which is which. What tells honest clients apart is another user, another
address, or a connection that has shown the token before.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.domain.errors import TooManyRequestsError
from gpuyard.server.callers import CallerKey

# So many wrong tokens cost nothing: a program with an old one tries a few times.
FREE = 20
# One of them is forgotten after so long.
FORGET_S = 3.0
# Beyond that each token takes a second to look at, and eight are looked at together.
PAUSE_S = 1.0
AT_ONCE = 8
# More clients than these are not remembered.
_CLIENTS = 4096


@dataclass(slots=True)
class _Record:
    wrong: float = 0.0
    at: float = 0.0
    waiting: int = 0


class Guesses:
    """The wrong tokens of each client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[CallerKey, _Record] = {}

    def suspects(self, key: CallerKey) -> bool:
        """Whether this client has shown too many wrong tokens of late."""
        record = self._records.get(key)
        return record is not None and self._wrong(record) >= FREE

    async def wait(self, key: CallerKey) -> None:
        """Wait before the token of a client that is suspected is looked at;
        TooManyRequestsError when others of it wait already.
        """
        record = self._records.setdefault(key, _Record())
        if record.waiting >= AT_ONCE:
            raise TooManyRequestsError(
                "Too many wrong tokens came from this address.",
                "Wait a minute, and send the right token.",
            )
        record.waiting += 1
        try:
            await asyncio.sleep(PAUSE_S)
        finally:
            record.waiting -= 1

    def wrong(self, key: CallerKey) -> None:
        """Note a wrong token."""
        if key not in self._records and len(self._records) >= _CLIENTS:
            self._forget()
        record = self._records.setdefault(key, _Record())
        # No more than twice what is free: it is forgiven within a minute.
        record.wrong = min(self._wrong(record) + 1, 2 * FREE)
        record.at = self._clock()

    def _wrong(self, record: _Record) -> float:
        forgotten = (self._clock() - record.at) / FORGET_S
        return max(record.wrong - forgotten, 0.0)

    def _forget(self) -> None:
        """Make room: the half that was wrong longest ago."""
        oldest = sorted(self._records, key=lambda key: self._records[key].at)
        for key in oldest[: _CLIENTS // 2]:
            if not self._records[key].waiting:
                del self._records[key]
