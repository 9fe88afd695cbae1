"""What is read of costs: groups of attempts, and attempts one by one.

Amounts are whole millionths, because SQLite has no decimals. Every cost in the ledger
has six places, so nothing is lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class CostGroup(NamedTuple):
    """What a group of attempts cost: amounts in millionths, times in seconds. Of one
    group there may be several, to be added up. `counted` of its attempts are also in
    the group before, which is of the day `day_before`. Where rates change in the
    period, one day of its rate is `rate_day` (a day in UTC).
    """

    currency: str
    project: str | None
    owner: str | None
    provider: str
    tier: str | None
    gpu: str | None
    day: int | None
    attempts: int = 0
    micros: int = 0
    gpu_s: float = 0.0
    cpu_s: float = 0.0
    waste: int = 0
    waste_gpu_s: float = 0.0
    idle: int = 0
    idle_gpu_s: float = 0.0
    measured_gpu_s: float = 0.0
    counted: int = 0
    day_before: int | None = None
    rate_day: int | None = None


class CutAttempt(NamedTuple):
    """An attempt of which only a part is in a period, or in a piece of it. `prices`:
    what an hour of each part of its rented machine costs; empty if that is not known.
    """

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
    prices: Mapping[str, str] = {}


class CostPiece(NamedTuple):
    """A piece of a period that no report cuts further: it is on one local `day`, if the
    period has days, and all its rates are those of `rate_day` (a day in UTC).
    """

    day: int | None
    rate_day: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class CostPeriod:
    """From `begin` until before `end`, and its `pieces` in order, without gaps.

    By day, it has `offsets`: from when on (UTC seconds) local clocks are how many
    seconds ahead of UTC. On the `rate_days` in it (days in UTC), rates change. What is
    of `hidden` projects is left out.
    """

    begin: float
    end: float
    pieces: Sequence[CostPiece]
    offsets: Sequence[tuple[float, int]] = ()
    rate_days: Sequence[int] = ()
    hidden: Sequence[str] = ()

    def seen(self, project: str) -> str:
        """The condition on a column of projects, beginning with AND; empty where
        nothing is hidden.
        """
        if not self.hidden:
            return ""
        names = ", ".join(f":hidden_{number}" for number in range(len(self.hidden)))
        return f" AND ({project} IS NULL OR {project} NOT IN ({names}))"

    def values(self) -> dict[str, Any]:
        """The values of a statement about it."""
        hidden = {f"hidden_{number}": name for number, name in enumerate(self.hidden)}
        return {"begin": self.begin, "end": self.end, **hidden}
