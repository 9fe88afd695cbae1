"""Reading what attempts cost in a period: sums of those that ran wholly in it, and one
by one those that a bound of it, or of one of its days, cuts.

Amounts are whole millionths, because SQLite has no decimals. Every cost in the ledger
has six places, so nothing is lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from gpuyard.domain.reasons import Reason
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import AttemptState
from gpuyard.ledger.faults import ledger_error, place
from gpuyard.ledger.prune import consistent_read
from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import budgets

# An attempt counts from its start on, for as long as it ran by a clock that nobody
# sets. So it has one place in time, whatever becomes of wall clocks.
_BEGAN = "COALESCE(a.started_at, a.ended_at)"
_RAN = (
    "COALESCE(a.ran_s, CASE WHEN a.ended_at > a.started_at"
    " THEN a.ended_at - a.started_at ELSE 0.0 END)"
)
# What an owner ended is no waste.
_NO_WASTE = f"'{Reason.CANCELLED}', '{Reason.EVICTED}'"
_IS_WASTED = (
    f"a.reason IS NOT NULL AND a.reason NOT IN ({_NO_WASTE})"
    " AND NOT EXISTS (SELECT 1 FROM checkpoints AS c WHERE c.job_id = a.job_id"
    " AND c.attempt_id = a.id)"
)
_WASTED = f"CASE WHEN {_IS_WASTED} THEN 1 ELSE 0 END"
_PAGE = 2000
_IDS = 500
_OF_ONES_OWN = "a.ended_at IS NOT NULL AND a.gpus IS NOT NULL"
# Rows of earlier versions do not say whose they are; their jobs do.
_OF_ITS_JOB = "a.ended_at IS NOT NULL AND a.gpus IS NULL"


class CostGroup(NamedTuple):
    """What a group of attempts cost: amounts in millionths, times in seconds. Of one
    group there may be several, to be added up.
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


@dataclass(frozen=True, slots=True)
class CostPeriod:
    """From `begin` until before `end`. With `offsets`, by day: from when on (UTC
    seconds) local clocks are how many seconds ahead of UTC.
    """

    begin: float
    end: float
    offsets: Sequence[tuple[float, int]] = ()


class CostRows(NamedTuple):
    """What a report is made of, all at one moment: sums of the ended attempts that ran
    wholly in the period; those that are cut by a bound of it, or of a day; and those
    that have begun and not ended. `ended`: which of the attempts asked for have ended.
    """

    groups: list[CostGroup]
    cut: list[CutAttempt]
    live: list[Row]
    ended: frozenset[str] = frozenset()


class CostQueries(LedgerReader):
    """Reads of what attempts cost."""

    def costs(
        self, period: CostPeriod, asked_for: Callable[[], list[str]] = list
    ) -> CostRows:
        """What the attempts of the period cost. `asked_for` is called after all others
        were read, and gives ids of attempts.
        """
        try:
            # Of one moment: no attempt may end between two statements.
            with consistent_read(self._engine) as connection:
                read = _CostReader(connection, period)
                rows = CostRows(read.groups(), read.cut_attempts(), read.live())
                return rows._replace(ended=read.ended(asked_for()))
        except DBAPIError as error:
            raise ledger_error(error, place(self._engine)) from error

    def budgets(self) -> list[Row]:
        """Every budget, by name."""
        return self._rows(sa.select(budgets).order_by(budgets.c.name))

    def ended_attempts(self, begin: float, end: float, after: str) -> list[Row]:
        """A page of the ended attempts that ran from `begin` until before `end`, after
        the id `after`, in order; each with the `name`, `labels` and `project` of its
        job. Empty at the end.
        """
        jobs_own = "j.name, j.labels, j.project"
        statement = sa.text(
            f"SELECT a.id, a.job_id, a.number, a.provider, a.started_at, a.ended_at,"
            " a.ran_s, a.reason, a.price_per_hour, a.currency, a.basis, a.tier,"
            f" a.cost, a.owner, {jobs_own}"
            " FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id"
            f" WHERE a.ended_at IS NOT NULL AND a.id > :after AND {_BEGAN} < :end"
            f" AND ({_BEGAN} >= :begin OR {_BEGAN} + {_RAN} > :begin)"
            f" ORDER BY a.id LIMIT {_PAGE}"
        ).columns(labels=sa.JSON)
        return self._rows(statement.bindparams(begin=begin, end=end, after=after))


class _CostReader:
    """Reads the costs of one period in one transaction."""

    def __init__(self, connection: sa.Connection, period: CostPeriod) -> None:
        self._connection = connection
        self._period = period
        self._sql = _Sql(connection.dialect.name == "sqlite")
        some = f"SELECT 1 FROM attempts AS a WHERE {_OF_ITS_JOB} LIMIT 1"
        self._has_earlier = bool(connection.exec_driver_sql(some).fetchall())

    def groups(self) -> list[CostGroup]:
        """The sums of those that ran wholly in the period: by day if it has days, else
        by all other keys.
        """
        read = self._days if self._period.offsets else self._keys
        found = read(self._sql.attempts, self._sql.sums, _OF_ONES_OWN)
        # By itself, because most have no reason.
        wasted = f"{_OF_ONES_OWN} AND {_IS_WASTED}"
        found += read(self._sql.failed_attempts, self._sql.wasted_sums, wasted)
        return [*found, *self._groups_by_job()] if self._has_earlier else found

    def cut_attempts(self) -> list[CutAttempt]:
        """The other ended attempts that ran in it."""
        sql = self._sql
        is_cut = sql.cut(self._period)
        own = self._read(
            f"SELECT a.currency, a.project, a.owner, a.provider, a.tier, a.gpu,"
            f" {sql.micros}, {_BEGAN}, {_RAN}, a.gpus, a.cpus, {_WASTED}, a.gpu_used"
            f" FROM {sql.attempts} WHERE {_OF_ONES_OWN} AND {is_cut}"
        )
        found = [CutAttempt(*row) for row in own]
        if self._has_earlier:
            rows = self._read(
                f"SELECT a.currency, j.project, a.provider, a.tier,"
                f" CAST(j.shape AS TEXT), {sql.micros}, {_BEGAN}, {_RAN}, {_WASTED}"
                " FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id"
                f" WHERE {_OF_ITS_JOB} AND {is_cut}"
            )
            found += [_cut_by_shape(*row) for row in rows]
        return found

    def live(self) -> list[Row]:
        """Those that have begun and not ended, each with the `project` and `shape` of
        its job.
        """
        states = ", ".join(f"'{state}'" for state in AttemptState if state.live)
        result = self._connection.exec_driver_sql(
            "SELECT a.id, a.job_id, a.currency, a.basis, a.owner, a.provider, a.tier,"
            " a.gpu, a.price_per_hour, a.started_at, j.project, j.name,"
            " CAST(j.shape AS TEXT) AS shape"
            " FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id"
            f" WHERE a.state IN ({states}) AND a.started_at IS NOT NULL"
        )
        return [dict(row) for row in result.mappings()]

    def ended(self, ids: Sequence[str]) -> frozenset[str]:
        """Which of these attempts have ended."""
        found: set[str] = set()
        statement = sa.text(
            "SELECT id FROM attempts WHERE ended_at IS NOT NULL AND id IN :ids"
        ).bindparams(sa.bindparam("ids", expanding=True))
        for start in range(0, len(ids), _IDS):
            some = {"ids": list(ids[start : start + _IDS])}
            found.update(self._connection.execute(statement, some).scalars())
        return frozenset(found)

    def _keys(self, table: str, sums: str, which: str) -> list[CostGroup]:
        keys = "a.currency, a.project, a.owner, a.provider, a.tier, a.gpu"
        rows = self._read(
            f"SELECT {keys}, NULL, {sums} FROM {table}"
            f" WHERE {which} AND {self._sql.inside(self._period)} GROUP BY {keys}"
        )
        return [CostGroup(*row) for row in rows]

    def _days(self, table: str, sums: str, which: str) -> list[CostGroup]:
        sql = self._sql
        day = sql.day(_BEGAN, self._period)
        found: list[CostGroup] = []
        # One currency at a time: SQLite sorts rows by whole numbers in half the time.
        for currency in self._currencies():
            rows = self._read(
                f"SELECT {day} AS day, {sums} FROM {table}"
                f" WHERE a.currency = :currency AND {which}"
                f" AND {sql.inside(self._period)} GROUP BY day",
                currency=currency,
            )
            found += [
                CostGroup(currency, None, None, "", None, None, *row) for row in rows
            ]
        return found

    def _groups_by_job(self) -> list[CostGroup]:
        sql = self._sql
        keys = "a.currency, j.project, a.provider, a.tier, CAST(j.shape AS TEXT)"
        if self._period.offsets:
            keys += f", {sql.day(_BEGAN, self._period)}"
        day = "" if self._period.offsets else ", NULL"
        rows = self._read(
            f"SELECT {keys}{day}, COUNT(*), SUM({sql.micros}), SUM({_RAN}),"
            f" SUM({sql.micros} * {_WASTED}), SUM({_RAN} * {_WASTED})"
            " FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id"
            f" WHERE {_OF_ITS_JOB} AND {sql.inside(self._period)} GROUP BY {keys}"
        )
        return [_group_by_shape(*row) for row in rows]

    def _currencies(self) -> list[str]:
        """All currencies, each found with one look into the index."""
        found: list[str] = []
        statement = sa.text(
            "SELECT MIN(a.currency) FROM attempts AS a"
            " WHERE a.ended_at IS NOT NULL AND a.currency > :last"
        )
        while True:
            last = found[-1] if found else ""
            following = self._connection.execute(statement, {"last": last}).scalar()
            if following is None:
                return found
            found.append(following)

    def _read(self, statement: str, **values: Any) -> Sequence[Sequence[Any]]:
        period = {"begin": self._period.begin, "end": self._period.end}
        return self._connection.execute(
            sa.text(statement), {**period, **values}
        ).fetchall()


@dataclass(frozen=True)
class _Sql:
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
        idle = self.whole(f"{self.micros} * (1.0 - a.gpu_used)")
        gpu_s = f"{_RAN} * a.gpus"
        return (
            f"COUNT(*), SUM({self.micros}), SUM({gpu_s}), SUM({_RAN} * a.cpus),"
            f" 0, 0.0, SUM(CASE WHEN a.gpu_used IS NULL THEN 0 ELSE {idle} END),"
            " SUM(CASE WHEN a.gpu_used IS NULL THEN 0.0"
            f" ELSE {gpu_s} * (1.0 - a.gpu_used) END),"
            f" SUM(CASE WHEN a.gpu_used IS NULL THEN 0.0 ELSE {gpu_s} END)"
        )

    @property
    def wasted_sums(self) -> str:
        """The waste of a group, as in `CostGroup`, and nothing else of it."""
        return f"0, 0, 0.0, 0.0, SUM({self.micros}), SUM({_RAN} * a.gpus), 0, 0.0, 0.0"

    def whole(self, value: str) -> str:
        """A positive number without its fraction."""
        if self.is_sqlite:
            return f"CAST({value} AS INTEGER)"
        return f"CAST(FLOOR({value}) AS BIGINT)"

    def inside(self, period: CostPeriod) -> str:
        """True of an attempt that ran wholly in the period, and on one day."""
        ended = f"{_BEGAN} + {_RAN}"
        inside = f"{_BEGAN} >= :begin AND {_BEGAN} < :end AND {ended} <= :end"
        if not period.offsets:
            return inside
        return f"{inside} AND {self.day(_BEGAN, period)} = {self.day(ended, period)}"

    def cut(self, period: CostPeriod) -> str:
        """True of the others that ran in it."""
        return (
            f"{_BEGAN} < :end AND {_BEGAN} + {_RAN} > :begin"
            f" AND NOT ({self.inside(period)})"
        )

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


def gpus_and_cpus(shape: str) -> tuple[float, float]:
    """How many GPUs and cores a job of this shape (JSON) books on all of its nodes."""
    needs = Shape.from_row(msgspec.json.decode(shape or "{}"))
    return needs.gpus * needs.nodes, needs.cpus * needs.nodes


def gpu_of_shape(shape: str) -> str | None:
    """The kind of GPU that a job asked for; empty without GPUs, None for any kind."""
    needs = Shape.from_row(msgspec.json.decode(shape or "{}"))
    if not needs.gpus:
        return ""
    return needs.gpu_class or None


def _group_by_shape(
    currency: str,
    project: str | None,
    provider: str,
    tier: str | None,
    shape: str,
    day: int,
    attempts: int,
    micros: int,
    ran_s: float,
    waste: int,
    waste_s: float,
) -> CostGroup:
    gpus, cpus = gpus_and_cpus(shape)
    return CostGroup(
        currency,
        project,
        None,
        provider,
        tier,
        gpu_of_shape(shape),
        day,
        attempts,
        micros,
        ran_s * gpus,
        ran_s * cpus,
        waste,
        waste_s * gpus,
        0,
        0.0,
        0.0,
    )


def _cut_by_shape(
    currency: str,
    project: str | None,
    provider: str,
    tier: str | None,
    shape: str,
    micros: int,
    began: float,
    ran_s: float,
    is_wasted: int,
) -> CutAttempt:
    gpus, cpus = gpus_and_cpus(shape)
    return CutAttempt(
        currency,
        project,
        None,
        provider,
        tier,
        gpu_of_shape(shape),
        micros,
        began,
        ran_s,
        gpus,
        cpus,
        bool(is_wasted),
        None,
    )
