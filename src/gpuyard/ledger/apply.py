"""`apply` is the only writer of the state tables. It adds events to the journal and
their after-images to the tables, in one transaction; the same code rebuilds the tables
from the journal.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gpuyard.domain.errors import FencedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger import statements
from gpuyard.ledger.statements import insert, remove, upsert
from gpuyard.ledger.tables import STATE_TABLES, events, key_column

_KEYS = {name: key_column(table).name for name, table in STATE_TABLES.items()}
_JOURNAL = ("seq", "at", "kind", "job_id", "changes", "info")


def apply(
    tx: sa.Connection, batch: Sequence[Event], first_seq: int | None = None
) -> int:
    """Add `batch` in order to the journal and to the state tables; returns the sequence
    number of its last event.

    `first_seq` is the number of its first event, if the caller knows it.
    """
    first = last_seq(tx) + 1 if first_seq is None else first_seq
    rows = [
        (
            seq,
            event.at,
            event.kind.value,
            event.job_id,
            [(change.table, change.key, change.values) for change in event.changes],
            event.info,
        )
        for seq, event in enumerate(batch, first)
    ]
    insert(events, _JOURNAL, tx.dialect.name).run(cursor(tx), rows)
    changes = [change for event in batch for change in event.changes]
    fold(tx, changes)
    return first + len(rows) - 1


def fold(tx: sa.Connection, changes: Iterable[Change]) -> None:
    """Write the after-images in one statement per table and set of columns; later ones
    replace earlier ones.
    """
    merged: dict[tuple[Table, str], Mapping[str, Any]] = {}
    removed: dict[Table, dict[str, None]] = {}
    for change in changes:
        row = (change.table, change.key)
        if change.values is None:
            removed.setdefault(change.table, {})[change.key] = None
            merged.pop(row, None)
            continue
        before = merged.get(row)
        merged[row] = change.values if before is None else {**before, **change.values}
    groups: dict[tuple[Table, tuple[str, ...]], list[tuple[Any, ...]]] = {}
    for (table, key), values in merged.items():
        if _KEYS[table] in values:
            values = {
                name: value for name, value in values.items() if name != _KEYS[table]
            }
        groups.setdefault((table, tuple(values)), []).append((key, *values.values()))
    run_on = cursor(tx)
    # First, because what is left of a removed row was written after that.
    for table, keys in removed.items():
        run_on.executemany(remove(table, tx.dialect.name), [(key,) for key in keys])
    for (table, columns), rows in groups.items():
        upsert(table, columns, tx.dialect.name).run(run_on, rows)


def cursor(tx: sa.Connection) -> Any:
    """A cursor of the driver in `tx`."""
    return tx.connection.cursor()


def last_seq(tx: sa.Connection) -> int:
    """The journal's last sequence number; 0 when it is empty."""
    return int(cursor(tx).execute(statements.LAST_SEQ).fetchone()[0])


def begin_group(tx: sa.Connection, epoch: int | None = None) -> int:
    """Keep other commit groups out until `tx` ends; returns the journal's last sequence
    number.

    So events are numbered in the order in which they are committed, without gaps.
    SQLite has only one writer anyway. With `epoch`, FencedError when another server
    leads. The leader locks the lease's row only against a change of the epoch, so that
    the lease can be renewed meanwhile.
    """
    if tx.dialect.name == "sqlite":
        return last_seq(tx)
    # On a pipelined connection both are sent before the first answer.
    lock = statements.LOCK_LEASE if epoch is None else statements.SHARE_LEASE
    held = cursor(tx).execute(lock)
    last = cursor(tx).execute(statements.LAST_SEQ)
    row = held.fetchone()
    if epoch is not None and (row is None or row[0] != epoch):
        raise FencedError(
            "Another server leads now; this one may write no more.",
            "It goes on as a standby.",
        )
    return int(last.fetchone()[0])


def event_of(row: Mapping[str, Any]) -> Event:
    """The event of a journal row."""
    changes = tuple(
        Change(Table(table), key, values) for table, key, values in row["changes"]
    )
    return Event(EventKind(row["kind"]), row["at"], changes, row["job_id"], row["info"])
