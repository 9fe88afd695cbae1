"""The month: how many GPU seconds each user and project has used in it, also by what
still runs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Whose = tuple[str, str]
"""`user` or `project`, and the name."""
MonthOf = Callable[[float], tuple[float, float]]
"""From when until when (UTC seconds) the month lasts in which a moment is."""


@dataclass(frozen=True, slots=True)
class _MonthRun:
    """What runs since then (UTC seconds) on so many GPUs."""

    whose: tuple[Whose, ...]
    gpus: int
    started_at: float


@dataclass(slots=True)
class MonthlyUse:
    """GPU seconds of the month from `begins_at` until `ends_at` (UTC seconds).

    A month that has begun stays, even if the clock is set back into the one before: so
    nothing is used twice.
    """

    month_of: MonthOf
    begins_at: float = 0.0
    ends_at: float = 0.0
    settled: dict[Whose, float] = field(default_factory=dict[Whose, float])
    _runs: dict[str, _MonthRun] = field(default_factory=dict[str, _MonthRun])
    _by_whose: dict[Whose, dict[str, None]] = field(
        default_factory=dict[Whose, dict[str, None]]
    )

    def turn(self, now: float) -> bool:
        """Begin a new month if one has begun by `now`; returns whether it has."""
        if now < self.ends_at:
            return False
        self.begins_at, self.ends_at = self.month_of(now)
        self.settled.clear()
        return True

    def take(self, before: "MonthlyUse") -> None:
        """What has ended by `before`, in its month."""
        self.begins_at = before.begins_at
        self.ends_at = before.ends_at
        self.settled = before.settled.copy()

    def add(self, whose: Whose, gpu_seconds: float) -> None:
        """What has ended used so much in this month."""
        self.settled[whose] = self.settled.get(whose, 0.0) + gpu_seconds

    def begin(
        self, holder: str, whose: Iterable[Whose], gpus: int, started_at: float
    ) -> None:
        """Something runs since then on so many GPUs."""
        run = self._runs[holder] = _MonthRun(tuple(whose), gpus, started_at)
        for one in run.whose:
            self._by_whose.setdefault(one, {})[holder] = None

    def end(self, holder: str, ran_s: float) -> None:
        """It has ended after it ran for so many seconds; idempotent."""
        run = self._runs.pop(holder, None)
        if run is None:
            return
        used = self._within(run, run.started_at + ran_s)
        for one in run.whose:
            self.add(one, used)
            del self._by_whose[one][holder]
            if not self._by_whose[one]:
                del self._by_whose[one]

    def used(self, whose: Whose, now: float) -> float:
        """GPU seconds of this user or project in the month until `now`."""
        running = (self._runs[holder] for holder in self._by_whose.get(whose, ()))
        return self.settled.get(whose, 0.0) + sum(
            self._within(run, now) for run in running
        )

    def _within(self, run: _MonthRun, until: float) -> float:
        since = max(run.started_at, self.begins_at)
        return run.gpus * max(0.0, until - since)


@dataclass(frozen=True, slots=True)
class MonthlyLimit:
    """The quota of a month that is used up: whose it is, how many GPU hours it allows
    and how many are used; it ends at `ends_at` (UTC seconds).
    """

    whose: str
    hours: float
    used: float
    ends_at: float


def limit_in_the_way(
    month: MonthlyUse, hours: Mapping[Whose, float | None], now: float
) -> MonthlyLimit | None:
    """The first of these quotas, in GPU hours, that is used up."""
    for whose, limit in hours.items():
        if limit is None:
            continue
        used = month.used(whose, now) / 3600.0
        if used >= limit:
            return MonthlyLimit(whose[0], limit, used, month.ends_at)
    return None
