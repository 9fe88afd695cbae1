"""`apply`: the only writer of state tables. An event goes into the journal and its after-images into the tables,
in one transaction; the same function rebuilds the tables from the journal.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger.tables import STATE_TABLES, events, key_column


def apply(tx: sa.Connection, batch: Sequence[Event]) -> int:
    """Journal `batch` in order and fold it into the state tables; returns the sequence number of its last event."""
    rows = [
        {
            "at": event.at,
            "kind": event.kind.value,
            "job_id": event.job_id,
            "changes": [[change.table.value, change.key, dict(change.values)] for change in event.changes],
            "info": dict(event.info),
        }
        for event in batch
    ]
    tx.execute(_insert_events(), rows)
    fold(tx, (change for event in batch for change in event.changes))
    last: int = tx.execute(_last_seq()).scalar_one()
    return last


def fold(tx: sa.Connection, changes: Iterable[Change]) -> None:
    """Write the after-images, later ones over earlier ones, in one statement per table and set of columns."""
    merged: dict[tuple[Table, str], dict[str, Any]] = {}
    for change in changes:
        merged.setdefault((change.table, change.key), {}).update(change.values)
    groups: dict[tuple[Table, tuple[str, ...]], list[dict[str, Any]]] = {}
    for (table, key), values in merged.items():
        row = {key_column(STATE_TABLES[table]).name: key, **values}
        groups.setdefault((table, tuple(sorted(row))), []).append(row)
    for (table, columns), rows in groups.items():
        tx.execute(_upsert(table, columns, tx.dialect.name), rows)


def event_of(row: Mapping[str, Any]) -> Event:
    """An event as it was applied, from its journal row."""
    changes = tuple(Change(Table(table), key, values) for table, key, values in row["changes"])
    return Event(EventKind(row["kind"]), row["at"], changes, row["job_id"], row["info"])


@cache
def _insert_events() -> sa.Insert:
    return sa.insert(events)


@cache
def _last_seq() -> sa.Select[Any]:
    return sa.select(sa.func.max(events.c.seq))


@cache
def _upsert(name: Table, columns: tuple[str, ...], dialect: str) -> sa.Insert:
    """Built once per shape of row: building costs more than running it."""
    table = STATE_TABLES[name]
    key = key_column(table).name
    insert = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    changed = {column: insert.excluded[column] for column in columns if column != key}
    if not changed:
        return insert.on_conflict_do_nothing(index_elements=[key])
    return insert.on_conflict_do_update(index_elements=[key], set_=changed)
