"""The words in which costs are read: parts of statements, for both databases."""

from dataclasses import dataclass

from gpuyard.domain.reasons import Reason
from gpuyard.ledger.queries.cost_rows import CostPeriod

# An attempt counts from its start on, for as long as it ran by a clock that nobody
# sets. So it has one place in time, whatever becomes of wall clocks.
BEGAN = "COALESCE(a.started_at, a.ended_at)"
RAN = (
    "COALESCE(a.ran_s, CASE WHEN a.ended_at > a.started_at"
    " THEN a.ended_at - a.started_at ELSE 0.0 END)"
)
# What an owner ended is no waste. The end of a budget is: nobody wanted the work to end
# there, and without a checkpoint nothing is left of what was paid.
_NO_WASTE = ", ".join(f"'{reason}'" for reason in Reason if reason.ends_job)
IS_WASTED = (
    f"a.reason IS NOT NULL AND a.reason NOT IN ({_NO_WASTE})"
    " AND NOT EXISTS (SELECT 1 FROM checkpoints AS c WHERE c.job_id = a.job_id"
    " AND c.attempt_id = a.id)"
)
WASTED = f"CASE WHEN {IS_WASTED} THEN 1 ELSE 0 END"
OF_ONES_OWN = "a.ended_at IS NOT NULL AND a.gpus IS NOT NULL"
# Rows of earlier versions do not say whose they are; their jobs do.
OF_ITS_JOB = "a.ended_at IS NOT NULL AND a.gpus IS NULL"
_MOST_CASES = 50


@dataclass(frozen=True)
class CostSql:
    """Parts of statements, in the words of one of the two databases."""

    is_sqlite: bool

    @property
    def attempts(self) -> str:
        """The table, read by the index that has all that a report needs."""
        return self._by_index("attempts_by_cost")

    @property
    def failed_attempts(self) -> str:
        """The same of attempts that ended for a reason."""
        return self._by_index("attempts_by_waste")

    def _by_index(self, name: str) -> str:
        hint = f" INDEXED BY {name}" if self.is_sqlite else ""
        return f"attempts AS a{hint}"

    @property
    def micros(self) -> str:
        """The cost in millionths."""
        if not self.is_sqlite:
            return "CAST(ROUND(CAST(a.cost AS NUMERIC) * 1000000) AS BIGINT)"
        # Exact: fifteen digits fit into a float. What is longer has six places.
        return (
            "CASE WHEN LENGTH(a.cost) < 16"
            " THEN CAST(CAST(a.cost AS REAL) * 1000000 + 0.5 AS INTEGER)"
            " ELSE CAST(REPLACE(a.cost, '.', '') AS INTEGER) END"
        )

    @property
    def sums(self) -> str:
        """The sums of a group, as in `CostGroup`, without its waste."""
        gpu_s = f"{RAN} * a.gpus"
        return (
            f"COUNT(*), SUM({self.micros}), SUM({gpu_s}), SUM({RAN} * a.cpus), 0, 0.0,"
            f" SUM({self.idle}),"
            " SUM(CASE WHEN a.gpu_used IS NULL THEN 0.0"
            f" ELSE {gpu_s} * (1.0 - a.gpu_used) END),"
            f" SUM(CASE WHEN a.gpu_used IS NULL THEN 0.0 ELSE {gpu_s} END)"
        )

    @property
    def idle(self) -> str:
        """What of the cost was paid for idle GPUs, in millionths."""
        idle = self.whole(f"{self.micros} * (1.0 - a.gpu_used)")
        return f"CASE WHEN a.gpu_used IS NULL THEN 0 ELSE {idle} END"

    @property
    def wasted_sums(self) -> str:
        """The waste of a group, as in `CostGroup`, and nothing else of it."""
        gpu_s = f"SUM({RAN} * a.gpus)"
        return f"0, 0, 0.0, 0.0, SUM({self.micros}), {gpu_s}, 0, 0.0, 0.0"

    def whole(self, value: str) -> str:
        """A positive number without its fraction."""
        if self.is_sqlite:
            return f"CAST({value} AS INTEGER)"
        return f"CAST(FLOOR({value}) AS BIGINT)"

    def inside(self, period: CostPeriod) -> str:
        """True of an attempt that ran wholly in the period, and in one piece of it."""
        ended = f"{BEGAN} + {RAN}"
        inside = f"{BEGAN} >= :begin AND {BEGAN} < :end AND {ended} <= :end"
        if period.rate_days:
            first = self.rate_day(BEGAN, period)
            inside += f" AND {first} = {self.rate_day(ended, period)}"
        if not period.offsets:
            return inside
        return f"{inside} AND {self.day(BEGAN, period)} = {self.day(ended, period)}"

    def cut(self, period: CostPeriod) -> str:
        """True of the others that ran in it."""
        return (
            f"{BEGAN} < :end AND {BEGAN} + {RAN} > :begin"
            f" AND NOT ({self.inside(period)})"
        )

    def rate_day(self, at: str, period: CostPeriod) -> str:
        """A day in UTC on which all rates are those of a time, as in `CostGroup`: that
        of the last change of a rate. All numbers in it are our own.
        """
        if not period.rate_days:
            return "NULL"
        if len(period.rate_days) > _MOST_CASES:
            return self.whole(f"({at}) / 86400.0")
        days = [int(period.begin // 86400), *period.rate_days]
        bounds = [float(day * 86400) for day in days[1:]]
        cases = "".join(
            f" WHEN {at} < {bound!r} THEN {day}"
            for day, bound in zip(days[:-1], bounds, strict=True)
        )
        return f"CASE{cases} ELSE {days[-1]} END"

    def day(self, at: str, period: CostPeriod) -> str:
        """The number of the local day of a time. All numbers in it are our own."""
        *changes, (_, last) = period.offsets
        offset = str(int(last))
        following = [float(begin) for begin, _ in period.offsets[1:]]
        if changes:
            cases = "".join(
                f" WHEN {at} < {bound!r} THEN {int(seconds)}"
                for bound, (_, seconds) in zip(following, changes, strict=True)
            )
            offset = f"CASE{cases} ELSE {offset} END"
        return self.whole(f"({at} + {offset}) / 86400.0")
