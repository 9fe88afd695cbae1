"""Reading what attempts cost in a period: sums of those that ran wholly in it, and one
by one those that a bound of it, or of one of its pieces, cuts. In SQLite, `cost_ranges`
has the sums of the pieces.

Amounts are whole millionths, because SQLite has no decimals. Every cost in the ledger
has six places, so nothing is lost.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from gpuyard.domain.price_parts import recorded
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import AttemptState
from gpuyard.ledger.faults import ledger_error, place
from gpuyard.ledger.people_tables import budgets, reservations, unused_gpus
from gpuyard.ledger.prune import consistent_read
from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.queries.cost_ranges import CostRanges
from gpuyard.ledger.queries.cost_rows import CostGroup, CostPeriod, CutAttempt
from gpuyard.ledger.queries.cost_sql import (
    BEGAN,
    IS_WASTED,
    OF_ITS_JOB,
    OF_ONES_OWN,
    RAN,
    WASTED,
    CostSql,
)

_PAGE = 2000
_IDS = 500


class CostRows(NamedTuple):
    """What a report is made of, all at one moment: sums of the ended attempts that ran
    wholly in the period; those that are cut by a bound of it, or of a piece; and those
    that have begun and not ended. `ended`: which of the attempts asked for have ended.
    `unused`: the GPUs under reservations that nobody used, each for a time. `in_parts`:
    the ended attempts whose cost can be told apart, which are in the sums, too.
    """

    groups: list[CostGroup]
    cut: list[CutAttempt]
    live: list[Row]
    ended: frozenset[str] = frozenset()
    unused: Sequence[Row] = ()
    in_parts: Sequence[CutAttempt] = ()


class CostQueries(LedgerReader):
    """Reads of what attempts cost."""

    def costs(
        self,
        period: CostPeriod,
        asked_for: Callable[[], list[str]] = list,
        *,
        in_parts: bool = False,
        whole_at: Collection[str] = (),
    ) -> CostRows:
        """What the attempts of the period cost. `asked_for` is called after all others
        were read, and gives ids of attempts.

        With `in_parts`, also those whose cost can be told apart; the attempts of the
        providers `whole_at` are known to be none.
        """
        try:
            # Of one moment: no attempt may end between two statements.
            with consistent_read(self._engine) as connection:
                read = _CostReader(connection, period)
                rows = CostRows(*read.ended(), read.live(), unused=read.unused())
                if in_parts:
                    rows = rows._replace(in_parts=read.in_parts(whole_at))
                return rows._replace(ended=read.ended_among(asked_for()))
        except DBAPIError as error:
            raise ledger_error(error, place(self._engine)) from error

    def budgets(self) -> list[Row]:
        """Every budget, by name."""
        return self._rows(sa.select(budgets).order_by(budgets.c.name))

    def unused_gpus(self) -> list[Row]:
        """The GPUs under reservations that nobody uses now."""
        return self._rows(sa.select(unused_gpus).where(unused_gpus.c.ran_s.is_(None)))

    def reservations(self) -> list[Row]:
        """Every reservation, the first to begin first."""
        return self.reservations_after(0.0)

    def reservations_after(self, at: float) -> list[Row]:
        """The reservations that end after that time (UTC seconds)."""
        columns = reservations.c
        return self._rows(
            sa.select(reservations)
            .where(columns.ends_at > at)
            .order_by(columns.begins_at, columns.id)
        )

    def ended_attempts(self, begin: float, end: float, after: str) -> list[Row]:
        """A page of the ended attempts that ran from `begin` until before `end`, after
        the id `after`, in order; each with the `name`, `labels` and `project` of its
        job. Empty at the end.
        """
        jobs_own = "j.name, j.labels, j.project"
        statement = sa.text(
            f"SELECT a.id, a.job_id, a.number, a.provider, a.started_at, a.ended_at,"
            " a.ran_s, a.reason, a.price_per_hour, a.currency, a.basis, a.tier,"
            f" a.cost, a.owner, a.placements, {jobs_own}"
            " FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id"
            f" WHERE a.ended_at IS NOT NULL AND a.id > :after AND {BEGAN} < :end"
            f" AND ({BEGAN} >= :begin OR {BEGAN} + {RAN} > :begin)"
            f" ORDER BY a.id LIMIT {_PAGE}"
        ).columns(labels=sa.JSON, placements=sa.JSON)
        return self._rows(statement.bindparams(begin=begin, end=end, after=after))


class _CostReader:
    """Reads the costs of one period in one transaction."""

    def __init__(self, connection: sa.Connection, period: CostPeriod) -> None:
        self._connection = connection
        self._period = period
        self._sql = CostSql(connection.dialect.name == "sqlite")
        some = f"SELECT 1 FROM attempts AS a WHERE {OF_ITS_JOB} LIMIT 1"
        self._has_earlier = bool(connection.exec_driver_sql(some).fetchall())

    def ended(self) -> tuple[list[CostGroup], list[CutAttempt]]:
        """The sums of the ended attempts that ran wholly in the period: by day if it
        has days, else by all other keys. And the other ended attempts that ran in it.
        """
        groups, cut = self._by_ranges() or (self._groups(), self._cut_attempts())
        if self._has_earlier:
            groups += self._groups_by_job()
            cut += self._earlier_cut_attempts()
        return groups, cut

    def _by_ranges(self) -> tuple[list[CostGroup], list[CutAttempt]] | None:
        if not self._sql.is_sqlite:
            return None
        return CostRanges(self._connection, self._period).read()

    def _groups(self) -> list[CostGroup]:
        read = self._days if self._period.offsets else self._keys
        own = f"{OF_ONES_OWN}{self._period.seen('a.project')}"
        found = read(self._sql.attempts, self._sql.sums, own)
        # By itself, because most have no reason.
        wasted = f"{own} AND {IS_WASTED}"
        found += read(self._sql.failed_attempts, self._sql.wasted_sums, wasted)
        return found

    def _cut_attempts(self) -> list[CutAttempt]:
        sql = self._sql
        rows = self._read(
            f"SELECT a.currency, a.project, a.owner, a.provider, a.tier, a.gpu,"
            f" {sql.micros}, {BEGAN}, {RAN}, a.gpus, a.cpus, {WASTED}, a.gpu_used"
            f" FROM {sql.attempts} WHERE {OF_ONES_OWN} AND {sql.cut(self._period)}"
            f"{self._period.seen('a.project')}"
        )
        return [CutAttempt(*row) for row in rows]

    def in_parts(self, whole_at: Collection[str]) -> list[CutAttempt]:
        """The ended attempts of the period whose cost can be told apart."""
        sql = self._sql
        placements = "CAST(a.placements AS TEXT)"
        statement = sa.text(
            f"SELECT a.currency, a.project, a.owner, a.provider, a.tier, a.gpu,"
            f" {sql.micros}, {BEGAN}, {RAN}, a.gpus, a.cpus, 0, NULL, {placements}"
            f" FROM {sql.attempts} WHERE {OF_ONES_OWN} AND {BEGAN} < :end"
            f" AND ({BEGAN} >= :begin OR {BEGAN} + {RAN} > :begin)"
            f" AND a.provider NOT IN :whole_at AND {placements} LIKE :told_apart"
            f"{self._period.seen('a.project')}"
        ).bindparams(sa.bindparam("whole_at", list(whole_at), sa.Text, expanding=True))
        values = {**self._period.values(), "told_apart": '%"prices"%'}
        rows = self._connection.execute(statement, values).fetchall()
        return [CutAttempt._make([*row[:-1], recorded_prices(row[-1])]) for row in rows]

    def _earlier_cut_attempts(self) -> list[CutAttempt]:
        sql = self._sql
        rows = self._read(
            f"SELECT a.currency, j.project, a.provider, a.tier,"
            f" CAST(j.shape AS TEXT), {sql.micros}, {BEGAN}, {RAN}, {WASTED}"
            " FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id"
            f" WHERE {OF_ITS_JOB} AND {sql.cut(self._period)}"
            f"{self._period.seen('j.project')}"
        )
        return [_cut_by_shape(*row) for row in rows]

    def live(self) -> list[Row]:
        """Those that have begun and not ended, each with the `project` and `shape` of
        its job.
        """
        states = ", ".join(f"'{state}'" for state in AttemptState if state.live)
        result = self._connection.exec_driver_sql(
            "SELECT a.id, a.job_id, a.currency, a.basis, a.owner, a.provider, a.tier,"
            " a.gpu, a.price_per_hour, a.started_at, j.project, j.name,"
            " CAST(j.shape AS TEXT) AS shape, CAST(a.placements AS TEXT) AS placements"
            " FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id"
            f" WHERE a.state IN ({states}) AND a.started_at IS NOT NULL"
        )
        rows = [dict(row) for row in result.mappings()]
        return [row for row in rows if row["project"] not in self._period.hidden]

    def unused(self) -> list[Row]:
        """The GPUs under reservations that nobody used in the period, or in a time that
        it cuts.
        """
        row = unused_gpus.c
        is_over = row.began_at + row.ran_s <= self._period.begin
        found = self._connection.execute(
            sa.select(unused_gpus)
            .where(row.began_at < self._period.end, ~sa.func.coalesce(is_over, False))
            .order_by(row.id)
        )
        rows = [dict(each) for each in found.mappings()]
        return [each for each in rows if each["project"] not in self._period.hidden]

    def ended_among(self, ids: Sequence[str]) -> frozenset[str]:
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
        rate_day = self._sql.rate_day(BEGAN, self._period)
        by = f"{keys}, rate_day" if self._period.rate_days else keys
        rows = self._read(
            f"SELECT {keys}, NULL, {sums}, 0, NULL, {rate_day} AS rate_day FROM {table}"
            f" WHERE {which} AND {self._sql.inside(self._period)} GROUP BY {by}"
        )
        return [CostGroup(*row) for row in rows]

    def _days(self, table: str, sums: str, which: str) -> list[CostGroup]:
        sql = self._sql
        day = sql.day(BEGAN, self._period)
        found: list[CostGroup] = []
        # One currency at a time: SQLite sorts rows by whole numbers in half the time.
        rate_day = sql.rate_day(BEGAN, self._period)
        by = "day, rate_day" if self._period.rate_days else "day"
        for currency in self._currencies():
            rows = self._read(
                f"SELECT {day} AS day, {sums}, 0, NULL, {rate_day} AS rate_day"
                f" FROM {table}"
                f" WHERE a.currency = :currency AND {which}"
                f" AND {sql.inside(self._period)} GROUP BY {by}",
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
            keys += f", {sql.day(BEGAN, self._period)}"
        day = "" if self._period.offsets else ", NULL"
        rate_day = sql.rate_day(BEGAN, self._period)
        by = f"{keys}, rate_day" if self._period.rate_days else keys
        rows = self._read(
            f"SELECT {keys}{day}, {rate_day} AS rate_day,"
            f" COUNT(*), SUM({sql.micros}), SUM({RAN}),"
            f" SUM({sql.micros} * {WASTED}), SUM({RAN} * {WASTED})"
            " FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id"
            f" WHERE {OF_ITS_JOB} AND {sql.inside(self._period)}"
            f"{self._period.seen('j.project')} GROUP BY {by}"
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
        return self._connection.execute(
            sa.text(statement), {**self._period.values(), **values}
        ).fetchall()


def recorded_prices(placements: str | None) -> Mapping[str, str]:
    """The prices in the placements (JSON) of an attempt, by part."""
    return recorded(msgspec.json.decode(placements or "[]") or [], "prices")


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
    rate_day: int | None,
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
        rate_day=rate_day,
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
