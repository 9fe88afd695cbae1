"""The health of one provider, from its checks and attempts. The caller gives the time:
no clock, no I/O.

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
HOUR_S = 3600.0
DAY_S = 86400.0
# Attempts are counted per five minutes, so a rate covers up to that much more time than
# was asked for.
_INTERVAL_S = 300.0


class HealthState(StrEnum):
    """How a provider is.

    A provider that is not healthy gets no new jobs; it is checked, less and less often.
    """

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(slots=True)
class _Interval:
    """The attempts that ended in one interval of time."""

    number: int
    good: int = 0
    bad: int = 0


@dataclass(slots=True)
class Health:
    """The state of one provider `since` a time (UTC seconds). `problem` is the last
    check's, empty when it was good.

    `failures` are failed checks in a row. `now` of each method is in UTC seconds.
    """

    since: float
    state: HealthState = HealthState.HEALTHY
    problem: str = ""
    failures: int = 0
    _intervals: deque[_Interval] = field(default_factory=deque[_Interval])

    def checked(self, now: float, problem: str = "") -> EventKind | None:
        """Note a check, which may have found a `problem`. Returns the event to record
        when the provider went down or came back.
        """
        before = self.state
        self.problem = problem
        self.failures = self.failures + 1 if problem else 0
        if not problem:
            self.state = HealthState.HEALTHY
        else:
            self.state = (
                HealthState.DOWN if self.failures >= FAILURES else HealthState.DEGRADED
            )
        if self.state is before:
            return None
        self.since = now
        if self.state is HealthState.DOWN:
            return EventKind.PROVIDER_DOWN
        return EventKind.PROVIDER_UP if before is HealthState.DOWN else None

    def attempted(self, now: float, *, well: bool) -> None:
        """Note that an attempt has ended; `well` unless the provider was at fault."""
        number = int(now // _INTERVAL_S)
        if not self._intervals or self._intervals[-1].number < number:
            self._intervals.append(_Interval(number))
        last = self._intervals[-1]
        if well:
            last.good += 1
        else:
            last.bad += 1
        while self._intervals[0].number < (now - DAY_S) // _INTERVAL_S:
            self._intervals.popleft()

    def success_rate(self, now: float, within_s: float = HOUR_S) -> float | None:
        """The share of good attempts in the last `within_s` (at most a day); None when
        there were none.
        """
        first = (now - within_s) // _INTERVAL_S
        recent = [interval for interval in self._intervals if interval.number >= first]
        good = sum(interval.good for interval in recent)
        bad = sum(interval.bad for interval in recent)
        return good / (good + bad) if good + bad else None

    def data(self, provider: str) -> Mapping[str, Any]:
        """The content of an event about the provider."""
        return {
            "provider": provider,
            "state": self.state.value,
            "problem": self.problem,
            "since": self.since,
        }
