"""What is read of costs: groups of attempts, and attempts one by one.

Amounts are whole millionths, because SQLite has no decimals. Every cost in the ledger
has six places, so nothing is lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class CostGroup(NamedTuple):
    """What a group of attempts cost: amounts in millionths, times in seconds. Of one
    group there may be several, to be added up. `counted` of its attempts are also in
    the group of the day before. `rate_day` is its day in UTC, in currencies whose rate
    changes.
    """

    currency: str
    project: str | None
    owner: str | None
    provider: str
    tier: str | None
    gpu: str | None
    day: int | None
    attempts: int
    micros: int
    gpu_s: float
    cpu_s: float
    waste: int
    waste_gpu_s: float
    idle: int
    idle_gpu_s: float
    measured_gpu_s: float
    counted: int = 0
    rate_day: int | None = None


class CutAttempt(NamedTuple):
    """An attempt of which only a part is in a period, or on a day of it."""

    currency: str
    project: str | None
    owner: str | None
    provider: str
    tier: str | None
    gpu: str | None
    micros: int
    began: float
    ran_s: float
    gpus: float
    cpus: float
    is_wasted: bool
    gpu_used: float | None


class CostDay(NamedTuple):
    """The local day of this number, as far as it is in a period."""

    number: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class CostPeriod:
    """From `begin` until before `end`. By day, it also has its `days` in order, without
    gaps, and `offsets`: from when on (UTC seconds) local clocks are how many seconds
    ahead of UTC. What is of `hidden` projects is left out. The rates of `dated`
    currencies change in the period: of these, each day in UTC is read by itself.
    """

    begin: float
    end: float
    offsets: Sequence[tuple[float, int]] = ()
    days: Sequence[CostDay] = ()
    hidden: Sequence[str] = ()
    dated: Sequence[str] = ()

    def seen(self, project: str) -> str:
        """The condition on a column of projects, beginning with AND; empty where
        nothing is hidden.
        """
        if not self.hidden:
            return ""
        names = ", ".join(f":hidden_{number}" for number in range(len(self.hidden)))
        return f" AND ({project} IS NULL OR {project} NOT IN ({names}))"

    def is_dated(self, currency: str) -> str:
        """The condition that a column has one of the dated currencies."""
        names = ", ".join(f":dated_{number}" for number in range(len(self.dated)))
        return f"{currency} IN ({names})" if names else "FALSE"

    def values(self) -> dict[str, Any]:
        """The values of a statement about it."""
        hidden = {f"hidden_{number}": name for number, name in enumerate(self.hidden)}
        dated = {f"dated_{number}": name for number, name in enumerate(self.dated)}
        return {"begin": self.begin, "end": self.end, **hidden, **dated}
