"""`apply`: the only writer of state tables. An event goes into the journal and its after-images into the tables,
in one transaction; the same function rebuilds the tables from the journal.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gpuyard.domain.errors import FencedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger.tables import LEASE, STATE_TABLES, events, key_column, lease, snapshots

_pruned_to = sa.select(sa.func.max(snapshots.c.seq)).scalar_subquery()


def apply(tx: sa.Connection, batch: Sequence[Event]) -> int:
    """Journal `batch` in order and fold it into the state tables; returns the sequence number of its last event."""
    first = last_seq(tx) + 1
    rows = [
        {
            "seq": seq,
            "at": event.at,
            "kind": event.kind.value,
            "job_id": event.job_id,
            "changes": [[change.table.value, change.key, dict(change.values)] for change in event.changes],
            "info": dict(event.info),
        }
        for seq, event in enumerate(batch, first)
    ]
    tx.execute(_insert_events(), rows)
    fold(tx, (change for event in batch for change in event.changes))
    return first + len(rows) - 1


def last_seq(tx: sa.Connection) -> int:
    """The journal's last sequence number, 0 when nothing ever happened."""
    return int(tx.execute(_last_seq()).scalar_one())


def hold_order(tx: sa.Connection, epoch: int | None = None) -> None:
    """Let no other commit group in before this transaction ends, so that events are numbered as they are committed.

    SQLite lets one writer in at a time anyway. With `epoch`, FencedError when another server leads by now; a server
    that leads holds the lease's row only against a change of epoch, so that it can be renewed meanwhile.
    """
    if tx.dialect.name == "sqlite":
        return
    row = tx.execute(_lease_row(epoch is not None)).first()
    if epoch is not None and (row is None or row.epoch != epoch):
        raise FencedError("Another server leads now; this one may write no more.", "It goes on as a standby.")


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
    return sa.select(sa.func.coalesce(sa.func.max(events.c.seq), _pruned_to, 0))


@cache
def _lease_row(shared: bool) -> sa.Select[Any]:
    select = sa.select(lease.c.epoch).where(lease.c.name == LEASE)
    return select.with_for_update(read=shared, key_share=shared)


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
