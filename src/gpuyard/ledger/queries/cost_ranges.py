"""Sums of what attempts cost in each piece of a period, in SQLite, without sorting the
attempts.

SQLite groups by sorting, and to sort a million attempts takes longer than to add them
up. But in the index of reports, the attempts of one kind stand in the order of their
beginnings. So each piece, such as a day, is a range of it.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
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
_BEFORE = "(:until - a.began) / a.ran_s"
_SPLIT = f"CAST(a.micros * ({_BEFORE}) AS INTEGER)"
_SPLIT_IDLE = f"CAST(a.idle * ({_BEFORE}) AS INTEGER)"
# So many ranges one statement asks for. There are few sizes, because the driver keeps
# few prepared statements; those that are left over are empty.
_AT_ONCE = (1, 4, 16, 64)
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


class _RangeSums(NamedTuple):
    """The sums of a range, how long the longest of it ran, and when the last of it
    ended (None if there is none).
    """

    found: Sequence[Any]
    longest_s: float
    last_end: float | None


@dataclass(frozen=True)
class _Index:
    """An index of `attempts` that begins with the columns of their `kind`. It adds up
    those `which`, by `sums` of their amount, their seconds, their count and what was
    `idle` of the amount, for which it needs more `columns`.
    """

    attempts: str
    kind: tuple[str, ...]
    which: str
    columns: str
    idle: str
    sums: Callable[[str, str, str, str], str]


_COSTS = _Index(
    _SQL.attempts,
    _KIND,
    "TRUE",
    "a.gpus, a.cpus, a.gpu_used",
    _SQL.idle,
    _SQL.sums_of,
)
_WASTE = _Index(
    _SQL.failed_attempts,
    _KIND_OF_WASTE,
    IS_WASTED,
    "a.gpus",
    "0",
    _SQL.wasted_sums_of,
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
            cut += self._longer(self._add(groups, alike, _COSTS))
        # Kinds that differ only in their cores are one there.
        of_waste = {each._replace(kind=each.kind[:-1]): None for each in ranges}
        for alike in _alike(of_waste):
            self._add(groups, alike, _WASTE)
        return groups, cut

    def _add(
        self, groups: list[CostGroup], alike: Sequence[_Range], index: _Index
    ) -> list[_Range]:
        """Add the sums of these ranges of a kind to `groups`. Returns those of which
        some attempts ran in more than two pieces, or beyond the period; these are not
        added.
        """
        cut: list[tuple[_Range, _RangeSums]] = []
        for each, sums in zip(alike, self._sums(alike, index), strict=True):
            if sums.last_end is None:
                continue
            if sums.last_end <= self._ends[each.position]:
                groups.append(self._group(each, sums.found))
            else:
                cut.append((each, sums))
        return self._add_cut(groups, cut, index)

    def _add_cut(
        self,
        groups: list[CostGroup],
        cut: list[tuple[_Range, _RangeSums]],
        index: _Index,
    ) -> list[_Range]:
        longer: list[_Range] = []
        for (each, sums), parts in zip(cut, self._parts(cut, index), strict=True):
            whole, first, second = parts
            rows = zip(sums.found, whole, first, strict=True)
            groups.append(
                self._group(each, [total - cut + own for total, cut, own in rows])
            )
            if each.position + 1 < len(self._ends):
                following = each._replace(position=each.position + 1)
                groups.append(self._group(following, second, counted=second[0]))
            if whole[0] > first[0]:
                longer.append(each)
        return longer

    def _sums(self, alike: Sequence[_Range], index: _Index) -> list[_RangeSums]:
        if not alike:
            return []
        statement = _sums_of_all(index, _begins_at(started=alike[0].started))
        bounds = [self._bounds(each) for each in alike]
        rows = self._of_each(statement, index, alike[0].kind, bounds)
        return [
            _RangeSums(found, longest_s, last_end)
            for *found, longest_s, last_end in rows
        ]

    def _parts(
        self, cut: Sequence[tuple[_Range, _RangeSums]], index: _Index
    ) -> list[list[list[Any]]]:
        """Of what ended in a later piece, for each range: all of it, the part in the
        first piece, and that in the second. They are those that `billing.parts` would
        find.
        """
        if not cut:
            return []
        first, _ = cut[0]
        statement = _sums_of_parts(index, _begins_at(started=first.started))
        bounds: list[dict[str, float]] = []
        for each, sums in cut:
            own = self._bounds(each)
            # No other can have ended later.
            since = max(own["since"], own["until"] - sums.longest_s - _SLACK_S)
            bounds.append({**own, "since": since})
        found: list[list[list[Any]]] = []
        for row in self._of_each(statement, index, first.kind, bounds):
            numbers = [value or 0 for value in row]
            size = len(numbers) // 3
            starts = range(0, 3 * size, size)
            found.append([numbers[begin : begin + size] for begin in starts])
        return found

    def _of_each(
        self,
        statement: str,
        index: _Index,
        kind: Kind,
        bounds: Sequence[dict[str, float]],
    ) -> list[tuple[Any, ...]]:
        """The row of a statement with one row, for each of these ranges of a kind."""
        found: list[tuple[Any, ...]] = []
        for begin in range(0, len(bounds), _AT_ONCE[-1]):
            asked = bounds[begin : begin + _AT_ONCE[-1]]
            size = next(size for size in _AT_ONCE if size >= len(asked))
            values = _named(index.kind, kind)
            for number in range(size):
                own = asked[number] if number < len(asked) else _NO_RANGE
                values.update({f"{name}_{number}": at for name, at in own.items()})
            rows = sorted(self._rows(_for_each(statement, size), values))
            found += [row[1:] for row in rows[: len(asked)]]
        return found

    def _longer(self, ranges: Sequence[_Range]) -> Iterator[CutAttempt]:
        """Those of the ranges that ran in more than two pieces, or beyond the
        period.
        """
        for each in ranges:
            at = _begins_at(started=each.started)
            where = f"{_begins_in_piece(_COSTS, at)} AND {at} + {RAN} > :second_until"
            values = {**_named(_KIND, each.kind), **self._bounds(each)}
            yield from self._attempts(at, where, values)

    def _from_before(self, kind: Kind, *, started: bool) -> Iterator[CutAttempt]:
        """Those that began before the period, and ran into it."""
        at = _begins_at(started=started)
        where = f"{_of_kind(_KIND, at)} AND {at} < :begin AND {at} + {RAN} > :begin"
        begin = self._period.begin
        return self._attempts(at, where, {**_named(_KIND, kind), "begin": begin})

    def _attempts(
        self, at: str, where: str, values: dict[str, Any]
    ) -> Iterator[CutAttempt]:
        columns = ", ".join(f"a.{each}" for each in _KIND[:6])
        rows = self._rows(
            f"SELECT {columns}, {_MICROS}, {at}, {RAN}, a.gpus, a.cpus,"
            f" {WASTED}, a.gpu_used FROM {_COSTS.attempts} WHERE {where}",
            values,
        )
        return (CutAttempt(*row) for row in rows)

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

    def _group(self, each: _Range, sums: Sequence[Any], counted: int = 0) -> CostGroup:
        piece = self._period.pieces[each.position]
        before = self._period.pieces[each.position - 1] if counted else None
        currency, project, owner, provider, tier, gpu, *_ = each.kind
        return CostGroup(
            currency,
            project,
            owner,
            provider,
            tier,
            gpu,
            piece.day,
            *sums,
            counted=counted,
            day_before=before and before.day,
            rate_day=piece.rate_day,
        )

    def _rows(self, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        # The driver alone: so many small questions take a third of the time.
        return self._cursor.execute(statement, values).fetchall()


def _begins_at(*, started: bool) -> str:
    """The column of the index that says when an attempt began. One that never started
    counts when it ended.
    """
    return "a.started_at" if started else "a.ended_at"


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
    sums = index.sums(_MICROS, RAN, "COUNT(*)", index.idle)
    return (
        f"SELECT {sums}, MAX({RAN}), MAX({at} + {RAN}) FROM {index.attempts}"
        f" WHERE {_begins_in_piece(index, at)}"
    )


@cache
def _sums_of_parts(index: _Index, at: str) -> str:
    """Reads the sums of those that ended in a later piece; of their parts in the first
    piece, and of those in the second.
    """
    attempts = (
        f"SELECT {_MICROS} AS micros, {at} AS began, {RAN} AS ran_s, {index.columns},"
        f" {index.idle} AS idle"
        f" FROM {index.attempts}"
        f" WHERE {_begins_in_piece(index, at)} AND {at} + {RAN} > :until"
    )
    # Nothing, for those that ran longer: so they are in no sum of parts.
    is_split = "WHEN a.began + a.ran_s <= :second_until THEN"
    parts = (
        f"SELECT a.*, CASE {is_split} {_SPLIT} END AS first_part,"
        f" CASE {is_split} {_SPLIT_IDLE} END AS first_idle,"
        f" CASE {is_split} :until - a.began END AS first_s FROM ({attempts}) AS a"
    )
    count = "COUNT(a.first_part)"
    whole = index.sums("a.micros", "a.ran_s", "COUNT(*)", "a.idle")
    first = index.sums("a.first_part", "a.first_s", count, "a.first_idle")
    second = index.sums(
        "(a.micros - a.first_part)",
        "(a.ran_s - a.first_s)",
        count,
        "(a.idle - a.first_idle)",
    )
    return f"SELECT {whole}, {first}, {second} FROM ({parts}) AS a"


def _of_kind(columns: Sequence[str], at: str) -> str:
    same = " AND ".join(f"a.{each} IS :{each}" for each in columns)
    started = "NOT NULL" if at == _begins_at(started=True) else "NULL"
    return f"{same} AND a.ended_at IS NOT NULL AND a.started_at IS {started}"


def _begins_in_piece(index: _Index, at: str) -> str:
    """True of an attempt of the kind that began in the piece, and is in the sums."""
    return (
        f"{_of_kind(index.kind, at)} AND {at} >= :since AND {at} < :until"
        f" AND {index.which}"
    )


def _is_after(kind: Kind, place: int) -> str:
    """True of kinds that are the same before this column, and come later by it."""
    name = _KIND[place]
    more = "IS NOT NULL" if kind[place] is None else f"> :{name}"
    same = "".join(f"a.{each} IS :{each} AND " for each in _KIND[:place])
    return f"{same}a.{name} {more}"


def _named(columns: Sequence[str], kind: Kind) -> dict[str, Any]:
    return dict(zip(columns, kind, strict=False))
