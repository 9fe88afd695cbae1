"""Keeping the journal short without losing the fold: a snapshot of the state tables first, then the events go."""

import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import sqlalchemy as sa

from gpuyard.domain.events import Change, Table
from gpuyard.ledger.apply import event_of, last_seq
from gpuyard.ledger.tables import STATE_TABLES, events, key_column, snapshots

_PAGE = 2000


def prune(engine: sa.Engine, keep: int) -> int:
    """Fold all but the newest `keep` events into a snapshot, in one transaction; returns how many events went.

    The snapshot is of the tables as they are now, which is the fold of every event, the kept ones included: folding
    those again over it changes nothing, because an event carries after-images.
    """
    with at_one_moment(engine) as tx:
        last = last_seq(tx)
        first_kept = last - keep + 1
        count = tx.execute(sa.select(sa.func.count()).where(events.c.seq < first_kept)).scalar_one()
        if not count:
            return 0
        tx.execute(sa.delete(snapshots))
        for name, table in STATE_TABLES.items():
            rows = [dict(row) for row in tx.execute(sa.select(table)).mappings()]
            body = zlib.compress(msgspec.json.encode(rows), level=6)
            tx.execute(sa.insert(snapshots).values(seq=last, table=name.value, body=body))
        tx.execute(sa.delete(events).where(events.c.seq < first_kept))
        return int(count)


@contextmanager
def at_one_moment(engine: sa.Engine) -> Generator[sa.Connection]:
    """A transaction that sees everything as it was at one moment, whatever others write meanwhile."""
    with engine.connect() as connection:
        remote = engine.dialect.name == "postgresql"
        moment = connection.execution_options(isolation_level="REPEATABLE READ") if remote else connection
        with moment.begin():
            if not remote:
                moment.exec_driver_sql("BEGIN")  # the driver itself begins none in order to read
            yield moment


def history(connection: sa.Connection) -> Iterator[Change]:
    """Every change there ever was, the pruned ones as their snapshot: folding them gives the state tables."""
    for row in connection.execute(sa.select(snapshots.c.table, snapshots.c.body)).mappings():
        name = Table(row["table"])
        key = key_column(STATE_TABLES[name]).name
        values: list[dict[str, Any]] = msgspec.json.decode(zlib.decompress(row["body"]))
        yield from (Change(name, value[key], value) for value in values)
    seq = -1
    # By pages: a driver that hands over a whole result would hold the whole journal.
    while page := connection.execute(_page(seq)).mappings().all():
        for row in page:
            yield from event_of(dict(row)).changes
        seq = page[-1]["seq"]


def _page(after: int) -> sa.Select[*tuple[Any, ...]]:
    return sa.select(events).where(events.c.seq > after).order_by(events.c.seq).limit(_PAGE)
