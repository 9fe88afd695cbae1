"""Computes the state tables again from the journal, to compare them with the stored
ones or to replace these.
"""

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
from gpuyard.ledger.faults import as_ledger_errors
from gpuyard.ledger.prune import consistent_read, history, pruned_to
from gpuyard.ledger.schema import metadata
from gpuyard.ledger.side_tables import lease
from gpuyard.ledger.tables import STATE_TABLES, events, key_column

# At most this many differences are listed.
_MAX_LISTED = 100
_ROWS_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that differs from the journal. `column` is None for a row that only one of
    the two has.
    """

    table: str
    key: str
    column: str | None
    stored: Any
    replayed: Any

    def __str__(self) -> str:
        """One line for people."""
        if self.column:
            return (
                f"{self.table} {self.key}: {self.column} is {self.stored!r}, the"
                f" journal says {self.replayed!r}"
            )
        missing_in = "table" if self.stored is None else "journal"
        return f"{self.table} {self.key}: is not in the {missing_in}"


@dataclass(slots=True)
class LedgerCheck:
    """The result of a check: how much was compared, how many numbers are missing in the
    journal, and all differences.
    """

    events: int = 0
    rows: dict[str, int] = field(default_factory=dict[str, int])
    gaps: int = 0
    difference_count: int = 0
    differences: list[RowDifference] = field(default_factory=list[RowDifference])

    @property
    def ok(self) -> bool:
        """True when the ledger agrees with its journal."""
        return not self.difference_count and not self.gaps


def check(engine: sa.Engine) -> LedgerCheck:
    """Apply the journal to a scratch database, and compare every row of every state
    table. LedgerError.
    """
    report = LedgerCheck()
    with (
        as_ledger_errors(engine),
        tempfile.TemporaryDirectory(prefix="gpuyard-check-") as folder,
        consistent_read(engine) as tx,
    ):
        scratch = sa.create_engine(f"sqlite:///{Path(folder) / 'replay.db'}")
        try:
            _replay(tx, scratch)
            _count_events(tx, report)
            with scratch.connect() as replayed:
                for name, table in STATE_TABLES.items():
                    stored_rows = _rows(tx, table)
                    replayed_rows = _rows(replayed, table)
                    dialect = engine.dialect.name
                    _compare(name, stored_rows, replayed_rows, report, dialect)
        finally:
            scratch.dispose()
    return report


def rebuild(engine: sa.Engine) -> None:
    """Replace the state tables by what the journal says, all or nothing.

    RefusedError while a server leads; LedgerError.
    """
    with as_ledger_errors(engine), engine.begin() as tx:
        if engine.dialect.name == "sqlite":
            tx.exec_driver_sql("BEGIN IMMEDIATE")
        begin_group(tx)
        refuse_a_leader(tx)
        changes = history(tx)
        # Read first: if the journal cannot be read, nothing is deleted.
        first = list(islice(changes, _ROWS_AT_ONCE))
        for table in STATE_TABLES.values():
            tx.execute(sa.delete(table))
        _fold_all(tx, first, changes)


def refuse_a_leader(tx: sa.Connection) -> None:
    """RefusedError when a server holds the lease now (SQLite has its lock file
    instead).
    """
    if tx.dialect.name == "sqlite":
        return
    holder = tx.execute(
        sa.select(lease.c.holder).where(lease.c.expires_at > sa.func.clock_timestamp())
    ).scalar()
    if holder is not None:
        raise RefusedError(
            f"The server {holder} works on this ledger.",
            "Stop it with `gpuyard down`, and try again.",
        )


def _replay(source: sa.Connection, scratch: sa.Engine) -> None:
    with scratch.begin() as target:
        target.exec_driver_sql("PRAGMA journal_mode=OFF")
        target.exec_driver_sql("PRAGMA synchronous=OFF")
        metadata.create_all(target, tables=list(STATE_TABLES.values()))
        _fold_all(target, (), history(source))


def _fold_all(
    tx: sa.Connection, first: Iterable[Change], changes: Iterator[Change]
) -> None:
    fold(tx, first)
    while part := list(islice(changes, _ROWS_AT_ONCE)):
        fold(tx, part)


def _count_events(tx: sa.Connection, report: LedgerCheck) -> None:
    count = sa.func.count(events.c.seq)
    report.events, low, high = tx.execute(
        sa.select(count, sa.func.min(events.c.seq), sa.func.max(events.c.seq))
    ).one()
    if report.events:
        report.gaps = high - low + 1 - report.events
        report.gaps += max(low - 1 - pruned_to(tx), 0)


def _rows(connection: sa.Connection, table: sa.Table) -> Iterator[dict[str, Any]]:
    chosen = sa.select(table).order_by(key_column(table))
    found = (
        connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(chosen).mappings()
    )
    return (dict(row) for row in found)


def _as_stored(value: Any, dialect: str) -> Any:
    """A replayed value as the database stores it: PostgreSQL's text cannot hold NUL."""
    if dialect == "postgresql" and isinstance(value, str):
        return value.replace("\0", "\ufffd")
    return value


def _compare(
    name: Table,
    stored: Iterator[dict[str, Any]],
    replayed: Iterator[dict[str, Any]],
    report: LedgerCheck,
    dialect: str,
) -> None:
    """Compare two sequences of rows, both in the order of their keys."""
    key = key_column(STATE_TABLES[name]).name
    left = next(stored, None)
    right = next(replayed, None)
    count = 0
    while left is not None or right is not None:
        count += left is not None
        if right is None or (left is not None and left[key] < right[key]):
            assert left is not None
            _note(report, RowDifference(name.value, left[key], None, left, None))
            left = next(stored, None)
        elif left is None or right[key] < left[key]:
            _note(report, RowDifference(name.value, right[key], None, None, right))
            right = next(replayed, None)
        else:
            for column, value in left.items():
                replay = _as_stored(right[column], dialect)
                if value != replay:
                    found = RowDifference(name.value, left[key], column, value, replay)
                    _note(report, found)
            left = next(stored, None)
            right = next(replayed, None)
    report.rows[name.value] = count


def _note(report: LedgerCheck, difference: RowDifference) -> None:
    report.difference_count += 1
    if len(report.differences) < _MAX_LISTED:
        report.differences.append(difference)
