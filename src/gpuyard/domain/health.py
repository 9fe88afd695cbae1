"""The health of one provider, as checks and attempts have shown it. Told what was seen and when: no clock, no I/O.

healthy ──a failed check──→ degraded ──the third in a row──→ down
   ↑                           │                              │
   └────────────── one good check closes it ──────────────────┘
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpuyard.domain.events import EventKind

FAILURES = 3
HOUR_S, DAY_S = 3600.0, 86400.0
# Attempts are counted in parts of five minutes, so a rate reaches back for up to that much more than was asked.
_PART_S = 300.0


class HealthState(StrEnum):
    """How a provider is. While it is not healthy nothing new is sent there; it is asked, ever less often."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(slots=True)
class _Part:
    """The attempts that ended in one stretch of time."""

    number: int
    good: int = 0
    bad: int = 0


@dataclass(slots=True)
class Health:
    """How one provider is, and `since` when (UTC seconds). `problem` is what the last check said, "" when it was good.

    `failures` are failed checks in a row. Every method is told the time (`now`, UTC seconds).
    """

    since: float
    state: HealthState = HealthState.HEALTHY
    problem: str = ""
    failures: int = 0
    _parts: deque[_Part] = field(default_factory=deque[_Part])

    def checked(self, now: float, problem: str = "") -> EventKind | None:
        """A check has ended, well or with a `problem`; what to tell when the provider went down by it, or came back."""
        before, self.problem = self.state, problem
        self.failures = self.failures + 1 if problem else 0
        if not problem:
            self.state = HealthState.HEALTHY
        else:
            self.state = HealthState.DOWN if self.failures >= FAILURES else HealthState.DEGRADED
        if self.state is before:
            return None
        self.since = now
        if self.state is HealthState.DOWN:
            return EventKind.PROVIDER_DOWN
        return EventKind.PROVIDER_UP if before is HealthState.DOWN else None

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
