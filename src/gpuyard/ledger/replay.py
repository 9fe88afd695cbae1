"""Replay: the state tables folded anew from the journal, to be compared with what stands there, or to replace it."""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from gpuyard.domain.errors import RefusedError
from gpuyard.domain.events import Change, Table
from gpuyard.ledger.apply import begin_group, fold
from gpuyard.ledger.faults import in_our_words
from gpuyard.ledger.prune import at_one_moment, history
from gpuyard.ledger.tables import STATE_TABLES, events, key_column, lease, metadata, snapshots

# So many differences are told one by one; more of them say no more.
_TOLD = 100
_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not as the journal says; `column` is None for a row that is there too much or too little."""

    table: str
    key: str
    column: str | None
    stored: Any
    replayed: Any

    def __str__(self) -> str:
        """One line for people."""
        if self.column:
            return f"{self.table} {self.key}: {self.column} is {self.stored!r}, the journal says {self.replayed!r}"
        return f"{self.table} {self.key}: " + (
            "is not in the table" if self.stored is None else "is not in the journal"
        )


@dataclass(slots=True)
class Report:
    """What a check found: how much it looked at, numbers missing from the journal, and every difference there is."""

    events: int = 0
    rows: dict[str, int] = field(default_factory=dict[str, int])
    gaps: int = 0
    difference_count: int = 0
    differences: list[Difference] = field(default_factory=list[Difference])

    @property
    def ok(self) -> bool:
        """Is the ledger what its journal says?"""
        return not self.difference_count and not self.gaps


def check(engine: sa.Engine) -> Report:
    """Fold the journal anew, beside the ledger, and compare every row of every state table. LedgerError."""
    report = Report()
    with (
        in_our_words(engine),
        tempfile.TemporaryDirectory(prefix="gpuyard-check-") as folder,
        at_one_moment(engine) as tx,
    ):
        scratch = sa.create_engine(f"sqlite:///{Path(folder) / 'replay.db'}")
        try:
            _replay(tx, scratch)
            _count_events(tx, report)
            with scratch.connect() as replayed:
                for name, table in STATE_TABLES.items():
                    _compare(name, _rows(tx, table), _rows(replayed, table), report, engine.dialect.name)
        finally:
            scratch.dispose()
    return report


def rebuild(engine: sa.Engine) -> None:
    """Write the state tables anew from the journal, all or nothing. RefusedError while a server leads; LedgerError."""
    with in_our_words(engine), engine.begin() as tx:
        if engine.dialect.name == "sqlite":
            tx.exec_driver_sql("BEGIN IMMEDIATE")
        begin_group(tx)
        refuse_a_leader(tx)
        changes = history(tx)
        first = list(
            islice(changes, _AT_ONCE)
        )  # read before anything is deleted: a journal that cannot be read is none
        for table in STATE_TABLES.values():
            tx.execute(sa.delete(table))
        _fold_all(tx, first, changes)


def refuse_a_leader(tx: sa.Connection) -> None:
    """RefusedError when a server holds the lease now (SQLite has its lock file instead)."""
    if tx.dialect.name == "sqlite":
        return
    holder = tx.execute(sa.select(lease.c.holder).where(lease.c.expires_at > sa.func.clock_timestamp())).scalar()
    if holder is not None:
        raise RefusedError(f"The server {holder} works on this ledger.", "Stop it with `gpuyard down`, and try again.")


def _replay(source: sa.Connection, scratch: sa.Engine) -> None:
    with scratch.begin() as target:
        target.exec_driver_sql("PRAGMA journal_mode=OFF")
        target.exec_driver_sql("PRAGMA synchronous=OFF")
        metadata.create_all(target, tables=list(STATE_TABLES.values()))
        _fold_all(target, (), history(source))


def _fold_all(tx: sa.Connection, first: Iterable[Change], changes: Iterator[Change]) -> None:
    fold(tx, first)
    while part := list(islice(changes, _AT_ONCE)):
        fold(tx, part)


def _count_events(tx: sa.Connection, report: Report) -> None:
    count = sa.func.count(events.c.seq)
    report.events, low, high = tx.execute(sa.select(count, sa.func.min(events.c.seq), sa.func.max(events.c.seq))).one()
    if report.events:
        report.gaps = high - low + 1 - report.events
        pruned_to = tx.execute(sa.select(sa.func.max(snapshots.c.seq))).scalar() or 0
        report.gaps += max(low - 1 - pruned_to, 0)


def _rows(connection: sa.Connection, table: sa.Table) -> Iterator[dict[str, Any]]:
    chosen = sa.select(table).order_by(key_column(table))
    found = connection.execution_options(yield_per=_AT_ONCE).execute(chosen).mappings()
    return (dict(row) for row in found)


def _as_stored(value: Any, dialect: str) -> Any:
    """A replayed value as the ledger's database keeps it: PostgreSQL's text has every character but NUL."""
    return value.replace("\0", "\ufffd") if dialect == "postgresql" and isinstance(value, str) else value


def _compare(
    name: Table,
    stored: Iterator[dict[str, Any]],
    replayed: Iterator[dict[str, Any]],
    report: Report,
    dialect: str,
) -> None:
    """Walk both in the order of their keys."""
    key = key_column(STATE_TABLES[name]).name
    left, right, count = next(stored, None), next(replayed, None), 0
    while left is not None or right is not None:
        count += left is not None
        if right is None or (left is not None and left[key] < right[key]):
            assert left is not None
            _note(report, Difference(name.value, left[key], None, left, None))
            left = next(stored, None)
        elif left is None or right[key] < left[key]:
            _note(report, Difference(name.value, right[key], None, None, right))
            right = next(replayed, None)
        else:
            for column, value in left.items():
                said = _as_stored(right[column], dialect)
                if value != said:
                    _note(report, Difference(name.value, left[key], column, value, said))
            left, right = next(stored, None), next(replayed, None)
    report.rows[name.value] = count


def _note(report: Report, difference: Difference) -> None:
    report.difference_count += 1
    if len(report.differences) < _TOLD:
        report.differences.append(difference)
