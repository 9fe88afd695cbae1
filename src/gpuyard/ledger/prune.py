"""Prunes the journal: images of the rows that its oldest events changed take their
place, a few events at a time beside running commits.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
import sqlalchemy as sa

from gpuyard.domain.events import Change, Table
from gpuyard.ledger.apply import event_of, last_seq
from gpuyard.ledger.row_images import read_images, write_images
from gpuyard.ledger.side_tables import JOURNAL, pruned
from gpuyard.ledger.tables import events

# The journal always keeps this many events, so that readers of it who are a little
# behind miss nothing.
KEPT_ALWAYS = 1000
_PAGE_EVENTS = 2000


@dataclass(slots=True)
class Pruner:
    """Prunes the journal in slices, each in a transaction of its own.

    All but the newest `keep` events go, and of these the ones that happened before the
    time `before`, except the newest `KEPT_ALWAYS`. One transaction deletes at most
    `events_at_once` and writes at most `rows_at_once` images: a few milliseconds.
    `skip` counts the changes of the oldest event whose images are written already,
    because one event may change more rows than that.
    """

    keep: int
    before: float | None = None
    events_at_once: int = 100
    rows_at_once: int = 100
    skip: int = field(default=0, init=False)

    def run_slice(self, tx: sa.Connection) -> int | None:
        """Prune the oldest events that should go; returns how many, or None when none
        is left.
        """
        old = self._oldest(tx)
        if not old:
            return None
        keys: dict[Table, dict[str, None]] = {}
        room = self.rows_at_once
        done: list[int] = []
        for row in old:
            changes = _changed_rows(row.changes)
            part = changes[self.skip : self.skip + room]
            for table, key in part:
                keys.setdefault(Table(table), {})[key] = None
            room -= len(part)
            if self.skip + len(part) < len(changes):
                self.skip += len(part)
                break
            self.skip = 0
            done.append(row.seq)
        write_images(tx, {name: list(rows) for name, rows in keys.items()})
        if done:
            tx.execute(sa.delete(events).where(events.c.seq <= done[-1]))
            _note_pruned(tx, done[-1])
        return len(done)

    def _oldest(self, tx: sa.Connection) -> Sequence[Any]:
        """The oldest events that should go."""
        last = last_seq(tx)
        text = sa.cast(events.c.changes, sa.Text).label("changes")
        found = tx.execute(
            sa.select(events.c.seq, events.c.at, text)
            .where(events.c.seq <= self._newest_to_go(last))
            .order_by(events.c.seq)
            .limit(self.events_at_once)
        ).all()
        too_many = [row for row in found if row.seq <= last - self.keep]
        later = islice(found, len(too_many), None)
        too_old: list[Any] = []
        for row in later:
            if self.before is None or row.at >= self.before:
                break
            too_old.append(row)
        return [*too_many, *too_old]

    def _newest_to_go(self, last: int) -> int:
        if self.before is None:
            return last - self.keep
        return last - min(self.keep, KEPT_ALWAYS)


def _changed_rows(changes: str) -> list[tuple[str, str]]:
    """Table and key of each change of an event, from its JSON."""
    found = msgspec.json.decode(changes, type=list[tuple[str, str, msgspec.Raw]])
    return [(table, key) for table, key, _ in found]


def _note_pruned(tx: sa.Connection, seq: int) -> None:
    mine = pruned.c.name == JOURNAL
    if not tx.execute(sa.update(pruned).where(mine).values(seq=seq)).rowcount:
        tx.execute(sa.insert(pruned).values(name=JOURNAL, seq=seq))


def pruned_to(tx: sa.Connection) -> int:
    """The number of the newest pruned event; 0 if none was."""
    return tx.execute(sa.select(sa.func.max(pruned.c.seq))).scalar() or 0


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
    """Every change there ever was, pruned ones as images of their rows. Applied in
    order, they give the state tables.
    """
    yield from read_images(connection)
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
