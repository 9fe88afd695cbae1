"""Sums of what attempts cost in each piece of a period, in SQLite, without sorting the
attempts.

SQLite groups by sorting, and to sort a million attempts takes longer than to add them
up. But in the index of reports, the attempts of one kind stand in the order of their
beginnings. So each piece, such as a day, is a range of it.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import add, sub
from typing import Any, NamedTuple

import sqlalchemy as sa

from gpuyard.ledger.queries.cost_rows import CostGroup, CostPeriod, CutAttempt
from gpuyard.ledger.queries.cost_sql import IS_WASTED, RAN, WASTED, CostSql

FEWEST_A_RANGE = 20
"""To sort so many attempts takes as long as to read a range."""
_KIND = ("currency", "project", "owner", "provider", "tier", "gpu", "gpus", "cpus")
# The index of waste has no cores.
_KIND_OF_WASTE = _KIND[:-1]
# What a sum of times may be off by.
_SLACK_S = 1.0
_SQL = CostSql(is_sqlite=True)
_MICROS = _SQL.micros
_IDLE = _SQL.idle
_BEFORE = "(:until - a.began) / a.ran_s"
_SPLIT = f"CAST(a.micros * ({_BEFORE}) AS INTEGER)"
_SPLIT_IDLE = f"CAST(a.idle * ({_BEFORE}) AS INTEGER)"
# So many ranges one statement asks for. There are few sizes, because the driver keeps
# few prepared statements; those that are left over are empty.
_AT_ONCE = (1, 8, 32)
_BOUND = re.compile(r":(since|until|second_until)\b")
_NO_RANGE = {"since": 0.0, "until": 0.0, "second_until": 0.0}
Kind = tuple[Any, ...]
"""What attempts have in common: the values of the columns `_KIND`."""


class _Range(NamedTuple):
    """The attempts of a kind that begin in the piece of this position in the period.
    Those that `started` begin at their start, others at their end.
    """

    kind: Kind
    position: int
    started: bool


class _KindSums(NamedTuple):
    """Sums of attempts of one kind: amounts in millionths, times in seconds. Of those
    whose GPUs were measured: their time, and what of it their GPUs were busy.
    """

    attempts: int
    micros: int
    ran_s: float
    idle: int
    measured_s: float
    busy_s: float

    def plus(self, other: "_KindSums") -> "_KindSums":
        return _KindSums._make(map(add, self, other))

    def less(self, other: "_KindSums") -> "_KindSums":
        return _KindSums._make(map(sub, self, other))


class _RangeSums(NamedTuple):
    """The sums of a range, how long the longest of it ran, and when the last of it
    ended (None if there is none).
    """

    found: _KindSums
    longest_s: float
    last_end: float | None


@dataclass(frozen=True)
class _Index:
    """An index of `attempts` that begins with the columns of their `kind`. It adds up
    those `which` (a condition that begins with AND, or nothing). That of waste does not
    know how busy GPUs were.
    """

    attempts: str
    kind: tuple[str, ...]
    which: str
    is_of_waste: bool

    def sums(self, micros: str, ran_s: str, idle: str = _IDLE) -> str:
        """The columns of `_KindSums`. What attempts of a kind have in common is not
        among them: SQLite need not multiply a million times by their GPUs.
        """
        sums = f"COUNT({ran_s}), SUM({micros}), SUM({ran_s})"
        if self.is_of_waste:
            return f"{sums}, 0, 0.0, 0.0"
        measured_s = f"CASE WHEN a.gpu_used IS NOT NULL THEN {ran_s} END"
        return f"{sums}, SUM({idle}), SUM({measured_s}), SUM({ran_s} * a.gpu_used)"


_COSTS = _Index(_SQL.attempts, _KIND, "", is_of_waste=False)
_WASTE = _Index(
    _SQL.failed_attempts, _KIND_OF_WASTE, f" AND {IS_WASTED}", is_of_waste=True
)


class CostRanges:
    """The costs of the pieces of a period, read in one transaction of SQLite."""

    def __init__(self, connection: sa.Connection, period: CostPeriod) -> None:
        self._cursor: Any = connection.connection.cursor()
        self._period = period
        self._ends = [piece.until for piece in period.pieces]

    def read(self) -> tuple[list[CostGroup], list[CutAttempt]] | None:
        """The sums of each piece: of the attempts that ran in it alone, and the parts
        of those that ran in two. And one by one, those that ran in more pieces, and
        those that a bound of the period cuts. None where there are so many kinds of
        attempts that to sort them is faster.
        """
        # There are no more; a look at the end of the table is enough.
        ((attempts,),) = self._rows("SELECT MAX(rowid) FROM attempts", {})
        ranges: list[_Range] = []
        cut: list[CutAttempt] = []
        for kind in self._kinds():
            for started in (True, False):
                ranges += self._ranges(kind, started=started)
                cut += self._from_before(kind, started=started)
            if len(ranges) * FEWEST_A_RANGE > (attempts or 0):
                return None
        groups: list[CostGroup] = []
        for alike in _alike(ranges):
            cut += self._add(groups, alike, _COSTS)
        # Kinds that differ only in their cores are one there.
        of_waste = {_without_cores(each): None for each in ranges}
        for alike in _alike(of_waste):
            self._add(groups, alike, _WASTE)
        return groups, cut

    def _add(
        self, groups: list[CostGroup], alike: Sequence[_Range], index: _Index
    ) -> list[CutAttempt]:
        """Add the sums of these ranges of a kind to `groups`. Returns those attempts
        that ran in more than two pieces, or beyond the period; these are not added.
        """
        cut: list[tuple[_Range, _RangeSums]] = []
        for each, sums in zip(alike, self._sums(alike, index), strict=True):
            if sums.last_end is None:
                continue
            if sums.last_end <= self._ends[each.position]:
                groups.append(self._group(each, sums.found, index))
            else:
                cut.append((each, sums))
        longer: list[CutAttempt] = []
        for (each, sums), parts in zip(cut, self._parts(cut, index), strict=True):
            own_longer = self._longer(each, sums, index)
            groups += self._cut_groups(each, sums, parts, own_longer, index)
            longer += own_longer
        return longer

    def _cut_groups(
        self,
        each: _Range,
        sums: _RangeSums,
        parts: tuple[_KindSums, _KindSums],
        longer: Sequence[CutAttempt],
        index: _Index,
    ) -> Iterator[CostGroup]:
        """The sums of a range without its `longer` attempts, and those of the piece
        after it, of the `parts` of those that were split between the two.
        """
        split, first = parts
        own = sums.found.less(split).plus(first)
        for attempt in longer:
            own = own.less(_sums_of(attempt))
        yield self._group(each, own, index)
        if split.attempts:
            following = each._replace(position=each.position + 1)
            second = split.less(first)._replace(attempts=split.attempts)
            yield self._group(following, second, index, counted=split.attempts)

    def _sums(self, alike: Sequence[_Range], index: _Index) -> list[_RangeSums]:
        if not alike:
            return []
        statement = _sums_of_all(index, _begins_at(started=alike[0].started))
        bounds = [self._bounds(each) for each in alike]
        rows = self._of_each(statement, index, alike[0].kind, bounds)
        return [
            _RangeSums(_sums(found), longest_s, last_end)
            for *found, longest_s, last_end in rows
        ]

    def _parts(
        self, cut: Sequence[tuple[_Range, _RangeSums]], index: _Index
    ) -> list[tuple[_KindSums, _KindSums]]:
        """Of what ended in the piece after its own, for each range: all of it, and the
        part in its own piece. They are those that `billing.parts` would find.
        """
        if not cut:
            return []
        first, _ = cut[0]
        statement = _sums_of_parts(index, _begins_at(started=first.started))
        bounds = [self._last_bounds(each, sums) for each, sums in cut]
        rows = self._of_each(statement, index, first.kind, bounds)
        size = len(_KindSums._fields)
        return [(_sums(row[:size]), _sums(row[size:])) for row in rows]

    def _of_each(
        self,
        statement: str,
        index: _Index,
        kind: Kind,
        bounds: Sequence[dict[str, float]],
    ) -> list[tuple[Any, ...]]:
        """The row of a statement with one row, for each of these ranges of a kind."""
        found: list[tuple[Any, ...]] = []
        most = _AT_ONCE[-1]
        for begin in range(0, len(bounds), most):
            asked = bounds[begin : begin + most]
            size = next(size for size in _AT_ONCE if size >= len(asked))
            # Statements have few sizes. What is left of one asks for nothing.
            filled = [*asked, *([_NO_RANGE] * (size - len(asked)))]
            values = _named(index.kind, kind)
            for number, own in enumerate(filled):
                values.update({f"{name}_{number}": at for name, at in own.items()})
            rows = sorted(self._rows(_for_each(statement, size), values))
            found += [row[1:] for row in rows[: len(asked)]]
        return found

    def _longer(
        self, each: _Range, sums: _RangeSums, index: _Index
    ) -> list[CutAttempt]:
        """Those of the range that ran in more than two pieces, or beyond the period."""
        bounds = self._last_bounds(each, sums)
        if sums.last_end is None or sums.last_end <= bounds["second_until"]:
            return []
        at = _begins_at(started=each.started)
        where = f"{_begins_in_piece(index, at)} AND {at} + {RAN} > :second_until"
        return self._attempts(each.kind, at, where, bounds, index)

    def _from_before(self, kind: Kind, *, started: bool) -> list[CutAttempt]:
        """Those that began before the period, and ran into it."""
        at = _begins_at(started=started)
        where = f"{_of_kind(_KIND, at)} AND {at} < :begin AND {at} + {RAN} > :begin"
        begin = {"begin": self._period.begin}
        return self._attempts(kind, at, where, begin, _COSTS)

    def _attempts(
        self,
        kind: Kind,
        at: str,
        where: str,
        bounds: dict[str, float],
        index: _Index,
    ) -> list[CutAttempt]:
        wasted, used = ("1", "NULL") if index.is_of_waste else (WASTED, "a.gpu_used")
        rows = self._rows(
            f"SELECT {_MICROS}, {at}, {RAN}, {wasted}, {used}"
            f" FROM {index.attempts} WHERE {where}",
            {**_named(index.kind, kind), **bounds},
        )
        *keys, gpus, cpus = kind
        return [
            CutAttempt._make(
                [*keys, micros, began, ran_s, gpus, cpus, bool(is_wasted), gpu_used, {}]
            )
            for micros, began, ran_s, is_wasted, gpu_used in rows
        ]

    def _kinds(self) -> Iterator[Kind]:
        """The kinds that are not hidden, in the order of the index, each with one look
        into it.
        """
        columns = ", ".join(f"a.{each}" for each in _KIND)
        attempts = f"{_COSTS.attempts} WHERE a.ended_at IS NOT NULL"
        order = f"ORDER BY {columns} LIMIT 1"
        found = self._rows(f"SELECT {columns} FROM {attempts} {order}", {})
        while found:
            kind = tuple(found[0])
            is_of_earlier_version = kind[_KIND.index("gpus")] is None
            is_hidden = kind[_KIND.index("project")] in self._period.hidden
            if not is_of_earlier_version and not is_hidden:
                yield kind
            # The next one differs in the last column, or else in the one before.
            following = [
                f"SELECT * FROM (SELECT {columns} FROM {attempts} AND"
                f" {_is_after(kind, place)} {order})"
                for place in reversed(range(len(_KIND)))
            ]
            statement = f"{' UNION ALL '.join(following)} LIMIT 1"
            found = self._rows(statement, _named(_KIND, kind))

    def _ranges(self, kind: Kind, *, started: bool) -> list[_Range]:
        """The pieces from the first to the last in which attempts of the kind began."""
        at = _begins_at(started=started)
        these = f"FROM {_COSTS.attempts} WHERE {_of_kind(_KIND, at)}"
        # Two questions, because the index answers each with one look.
        ((first, last),) = self._rows(
            f"SELECT (SELECT MIN({at}) {these}), (SELECT MAX({at}) {these})",
            _named(_KIND, kind),
        )
        if first is None or last < self._period.begin:
            return []
        begin = bisect_right(self._ends, first)
        end = bisect_right(self._ends, last) + 1
        positions = range(begin, min(end, len(self._ends)))
        return [_Range(kind, position, started) for position in positions]

    def _bounds(self, each: _Range) -> dict[str, float]:
        piece = self._period.pieces[each.position]
        ends = self._ends[each.position : each.position + 2]
        return {"since": piece.since, "until": piece.until, "second_until": ends[-1]}

    def _last_bounds(self, each: _Range, sums: _RangeSums) -> dict[str, float]:
        """The same of those that may have ended in a later piece: none ran longer than
        the longest.
        """
        bounds = self._bounds(each)
        since = bounds["until"] - sums.longest_s - _SLACK_S
        return {**bounds, "since": max(bounds["since"], since)}

    def _group(
        self, each: _Range, sums: _KindSums, index: _Index, counted: int = 0
    ) -> CostGroup:
        piece = self._period.pieces[each.position]
        currency, project, owner, provider, tier, gpu, gpus, cpus = each.kind
        group = CostGroup(
            currency,
            project,
            owner,
            provider,
            tier,
            gpu,
            piece.day,
            rate_day=piece.rate_day,
        )
        gpu_s = sums.ran_s * gpus
        if index.is_of_waste:
            return group._replace(waste=sums.micros, waste_gpu_s=gpu_s)
        before = self._period.pieces[each.position - 1] if counted else None
        return group._replace(
            attempts=sums.attempts,
            micros=sums.micros,
            gpu_s=gpu_s,
            cpu_s=sums.ran_s * cpus,
            idle=sums.idle,
            idle_gpu_s=(sums.measured_s - sums.busy_s) * gpus,
            measured_gpu_s=sums.measured_s * gpus,
            counted=counted,
            day_before=before and before.day,
        )

    def _rows(self, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        # The driver alone: so many small questions take a third of the time.
        return self._cursor.execute(statement, values).fetchall()


def _begins_at(*, started: bool) -> str:
    """The column of the index that says when an attempt began. One that never started
    counts when it ended.
    """
    return "a.started_at" if started else "a.ended_at"


def _without_cores(each: _Range) -> _Range:
    return each._replace(kind=(*each.kind[:-1], None))


def _sums_of(attempt: CutAttempt) -> _KindSums:
    used = attempt.gpu_used
    ran_s = attempt.ran_s
    if used is None:
        return _KindSums(1, attempt.micros, ran_s, 0, 0.0, 0.0)
    idle = int(attempt.micros * (1.0 - used))
    return _KindSums(1, attempt.micros, ran_s, idle, ran_s, ran_s * used)


def _sums(row: Sequence[Any]) -> _KindSums:
    """The sums of a row, in which those of nothing are NULL."""
    return _KindSums(*(value or 0 for value in row))


def _alike(ranges: Iterable[_Range]) -> Iterable[list[_Range]]:
    """The ranges of each kind."""
    found: dict[tuple[Kind, bool], list[_Range]] = {}
    for each in ranges:
        found.setdefault((each.kind, each.started), []).append(each)
    return found.values()


@cache
def _for_each(statement: str, count: int) -> str:
    """The statement for so many ranges at once; each row begins with the number of its
    range.
    """
    return " UNION ALL ".join(
        _BOUND.sub(rf":\1_{number}", statement).replace(
            "SELECT ", f"SELECT {number}, ", 1
        )
        for number in range(count)
    )


@cache
def _sums_of_all(index: _Index, at: str) -> str:
    """Reads the sums of a range, how long the longest of it ran, and when the last of
    it ended.
    """
    sums = index.sums(_MICROS, RAN)
    return (
        f"SELECT {sums}, MAX({RAN}), MAX({at} + {RAN}) FROM {index.attempts}"
        f" WHERE {_begins_in_piece(index, at)}"
    )


@cache
def _sums_of_parts(index: _Index, at: str) -> str:
    """Reads the sums of those that ended in the piece after their own, and those of
    their parts in their own.
    """
    used, idle = ("NULL", "NULL") if index.is_of_waste else ("a.gpu_used", _IDLE)
    attempts = (
        f"SELECT {_MICROS} AS micros, {at} AS began, {RAN} AS ran_s,"
        f" {used} AS gpu_used, {idle} AS idle FROM {index.attempts}"
        f" WHERE {_begins_in_piece(index, at)}"
        f" AND {at} + {RAN} > :until AND {at} + {RAN} <= :second_until"
    )
    whole = index.sums("a.micros", "a.ran_s", "a.idle")
    first = index.sums(_SPLIT, "(:until - a.began)", _SPLIT_IDLE)
    return f"SELECT {whole}, {first} FROM ({attempts}) AS a"


def _of_kind(columns: Sequence[str], at: str) -> str:
    same = " AND ".join(f"a.{each} IS :{each}" for each in columns)
    # A comparison with the start says that there is one; SQLite would look twice.
    never_started = (
        "" if at == _begins_at(started=True) else "a.started_at IS NULL AND "
    )
    return f"{never_started}{same} AND a.ended_at IS NOT NULL"


def _begins_in_piece(index: _Index, at: str) -> str:
    """True of an attempt of the kind that began in the piece, and is in the sums."""
    begins = f"{at} >= :since AND {at} < :until"
    return f"{_of_kind(index.kind, at)} AND {begins}{index.which}"


def _is_after(kind: Kind, place: int) -> str:
    """True of kinds that are the same before this column, and come later by it."""
    name = _KIND[place]
    more = "IS NOT NULL" if kind[place] is None else f"> :{name}"
    same = "".join(f"a.{each} IS :{each} AND " for each in _KIND[:place])
    return f"{same}a.{name} {more}"


def _named(columns: Sequence[str], kind: Kind) -> dict[str, Any]:
    return dict(zip(columns, kind, strict=False))
