"""`apply`: the only writer of state tables. An event goes into the journal and its after-images into the tables,
in one transaction; the same function rebuilds the tables from the journal.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gpuyard.domain.errors import FencedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger import statements
from gpuyard.ledger.statements import insert, upsert
from gpuyard.ledger.tables import STATE_TABLES, events, key_column

_KEYS = {name: key_column(table).name for name, table in STATE_TABLES.items()}
_JOURNAL = ("seq", "at", "kind", "job_id", "changes", "info")


def apply(tx: sa.Connection, batch: Sequence[Event], first_seq: int | None = None) -> int:
    """Journal `batch` in order and fold it into the state tables; returns the sequence number of its last event.

    `first_seq` is that of its first, for one who knows; else it is looked up.
    """
    first = last_seq(tx) + 1 if first_seq is None else first_seq
    rows = [
        (seq, event.at, event.kind.value, event.job_id, [(c.table, c.key, c.values) for c in event.changes], event.info)
        for seq, event in enumerate(batch, first)
    ]
    insert(events, _JOURNAL, tx.dialect.name).run(cursor(tx), rows)
    fold(tx, (change for event in batch for change in event.changes))
    return first + len(rows) - 1


def fold(tx: sa.Connection, changes: Iterable[Change]) -> None:
    """Write the after-images, later ones over earlier ones, in one statement per table and set of columns."""
    merged: dict[tuple[Table, str], Mapping[str, Any]] = {}
    for change in changes:
        at = (change.table, change.key)
        before = merged.get(at)
        merged[at] = change.values if before is None else {**before, **change.values}
    groups: dict[tuple[Table, tuple[str, ...]], list[tuple[Any, ...]]] = {}
    for (table, key), values in merged.items():
        if _KEYS[table] in values:
            values = {name: value for name, value in values.items() if name != _KEYS[table]}
        groups.setdefault((table, tuple(values)), []).append((key, *values.values()))
    run_on = cursor(tx)
    for (table, columns), rows in groups.items():
        upsert(table, columns, tx.dialect.name).run(run_on, rows)


def cursor(tx: sa.Connection) -> Any:
    """A cursor of the driver's, in `tx`."""
    return tx.connection.cursor()


def last_seq(tx: sa.Connection) -> int:
    """The journal's last sequence number, 0 when nothing ever happened."""
    return int(cursor(tx).execute(statements.LAST_SEQ).fetchone()[0])


def begin_group(tx: sa.Connection, epoch: int | None = None) -> int:
    """Begin to write: lets no other commit group in before `tx` ends; the journal's last sequence number.

    So events are numbered in the order in which they are committed, without gaps. SQLite lets one writer in at a time
    anyway. With `epoch`, FencedError when another server leads by now; a server that leads holds the lease's row only
    against a change of epoch, so that it can be renewed meanwhile.
    """
    if tx.dialect.name == "sqlite":
        return last_seq(tx)
    # Both are asked before either is answered, where the connection pipelines.
    held = cursor(tx).execute(statements.LOCK_LEASE if epoch is None else statements.SHARE_LEASE)
    last = cursor(tx).execute(statements.LAST_SEQ)
    row = held.fetchone()
    if epoch is not None and (row is None or row[0] != epoch):
        raise FencedError("Another server leads now; this one may write no more.", "It goes on as a standby.")
    return int(last.fetchone()[0])


def event_of(row: Mapping[str, Any]) -> Event:
    """An event as it was applied, from its journal row."""
    changes = tuple(Change(Table(table), key, values) for table, key, values in row["changes"])
    return Event(EventKind(row["kind"]), row["at"], changes, row["job_id"], row["info"])
