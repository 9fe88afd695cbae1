"""Prunes the journal: a snapshot of the state tables replaces its oldest events."""

import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import sqlalchemy as sa

from gpuyard.domain.events import Change, Table
from gpuyard.ledger.apply import event_of, last_seq
from gpuyard.ledger.tables import STATE_TABLES, events, key_column, snapshots

_PAGE_EVENTS = 2000


def prune(engine: sa.Engine, keep: int) -> int:
    """Replace all but the newest `keep` events by a snapshot, in one transaction;
    returns how many events were deleted.

    The snapshot holds the tables as they are now, so it includes the kept events. To
    apply those again changes nothing, because an event carries after-images.
    """
    with consistent_read(engine) as tx:
        last = last_seq(tx)
        first_kept = last - keep + 1
        is_old = events.c.seq < first_kept
        count = tx.execute(sa.select(sa.func.count()).where(is_old)).scalar_one()
        if not count:
            return 0
        tx.execute(sa.delete(snapshots))
        for name, table in STATE_TABLES.items():
            rows = [dict(row) for row in tx.execute(sa.select(table)).mappings()]
            body = zlib.compress(msgspec.json.encode(rows), level=6)
            tx.execute(
                sa.insert(snapshots).values(seq=last, table=name.value, body=body)
            )
        tx.execute(sa.delete(events).where(is_old))
        return int(count)


@contextmanager
def consistent_read(engine: sa.Engine) -> Generator[sa.Connection]:
    """A transaction that sees the data of one moment, whatever others write
    meanwhile.
    """
    with engine.connect() as connection:
        is_sqlite = engine.dialect.name == "sqlite"
        if not is_sqlite:
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            if is_sqlite:
                # SQLite's driver begins no transaction for reads by itself.
                connection.exec_driver_sql("BEGIN")
            yield connection


def history(connection: sa.Connection) -> Iterator[Change]:
    """Every change there ever was, pruned ones as their snapshot. Applied in order,
    they give the state tables.
    """
    chosen = sa.select(snapshots.c.table, snapshots.c.body)
    for row in connection.execute(chosen).mappings():
        name = Table(row["table"])
        key = key_column(STATE_TABLES[name]).name
        values: list[dict[str, Any]] = msgspec.json.decode(zlib.decompress(row["body"]))
        for value in values:
            yield Change(name, value[key], value)
    seq = -1
    # In pages: some drivers hold a whole result in memory.
    while page := connection.execute(_page(seq)).mappings().all():
        for row in page:
            yield from event_of(dict(row)).changes
        seq = page[-1]["seq"]


def _page(after: int) -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(events)
        .where(events.c.seq > after)
        .order_by(events.c.seq)
        .limit(_PAGE_EVENTS)
    )
