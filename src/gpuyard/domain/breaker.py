"""The health of one provider, as a circuit breaker that is told what was seen and when: no clock, no I/O.

    closed ──3 failed checks in a row──→ open ──backoff──→ half-open ──one good check──→ closed
                                          ↑                    │
                                          └── a failed check ──┘  the backoff is twice as long

Closed it is `healthy`, or `degraded` after a check that failed; open and half-open it is `down`.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpuyard.domain.events import EventKind

FAILURES = 3
BACKOFF_S, MAX_BACKOFF_S = 30.0, 600.0
HOUR_S, DAY_S = 3600.0, 86400.0
# Attempts are counted in parts of five minutes, so a rate reaches back for up to that much more than was asked.
_PART_S = 300.0


class HealthState(StrEnum):
    """How a provider is."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DOWN = "down"


class Circuit(StrEnum):
    """Whether anything is to be tried there: everything, nothing, or one check."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True)
class _Part:
    """The attempts that ended in one stretch of time."""

    number: int
    good: int = 0
    bad: int = 0


@dataclass(slots=True)
class Health:
    """How one provider is, and `since` when (UTC seconds). `problem` is what the last check said, "" when it was good.

    `failures` are failed checks in a row. Every method is told the time (`now`, UTC seconds); a clock that is set back
    stretches no wait.
    """

    since: float
    state: HealthState = HealthState.HEALTHY
    problem: str = ""
    failures: int = 0
    _retry_at: float = math.inf
    _backoff_s: float = BACKOFF_S
    _parts: deque[_Part] = field(default_factory=deque[_Part])

    def circuit(self, now: float) -> Circuit:
        """What may be tried now."""
        if self.state is not HealthState.DOWN:
            return Circuit.CLOSED
        self._retry_at = min(self._retry_at, now + self._backoff_s)
        return Circuit.HALF_OPEN if now >= self._retry_at else Circuit.OPEN

    def checked(self, now: float, problem: str = "") -> EventKind | None:
        """A check has ended, well or with a `problem`; the event to tell of when the provider went down or came back.

        A good one closes the circuit at any time. A failed one while it is open changes nothing: it began before.
        """
        before, circuit = self.state, self.circuit(now)
        self.problem = problem
        if problem:
            self.failures += 1
            self._fail(now, circuit)
        else:
            self.failures, self._backoff_s, self.state = 0, BACKOFF_S, HealthState.HEALTHY
        if self.state is before:
            return None
        self.since = now
        if self.state is HealthState.DOWN:
            return EventKind.PROVIDER_DOWN
        return EventKind.PROVIDER_UP if before is HealthState.DOWN else None

    def _fail(self, now: float, circuit: Circuit) -> None:
        if circuit is Circuit.HALF_OPEN:
            self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
            self._retry_at = now + self._backoff_s
        elif circuit is Circuit.CLOSED and self.failures >= FAILURES:
            self.state, self._retry_at = HealthState.DOWN, now + self._backoff_s
        elif circuit is Circuit.CLOSED:
            self.state = HealthState.DEGRADED

    def attempted(self, now: float, *, well: bool) -> None:
        """An attempt has ended there; `well` unless it failed by the provider's doing."""
        number = int(now // _PART_S)
        if not self._parts or self._parts[-1].number < number:
            self._parts.append(_Part(number))
        last = self._parts[-1]
        last.good, last.bad = last.good + well, last.bad + (not well)
        while self._parts[0].number < (now - DAY_S) // _PART_S:
            self._parts.popleft()

    def success_rate(self, now: float, within_s: float = HOUR_S) -> float | None:
        """What share of the attempts of the last `within_s` (at most a day) went well; None when there were none."""
        recent = [part for part in self._parts if part.number >= (now - within_s) // _PART_S]
        good, bad = sum(part.good for part in recent), sum(part.bad for part in recent)
        return good / (good + bad) if good + bad else None

    def data(self, provider: str) -> Mapping[str, Any]:
        """What an event about it says."""
        return {"provider": provider, "state": self.state.value, "problem": self.problem, "since": self.since}
