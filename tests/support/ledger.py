"""What tests of the ledger share: what stands in it, and disks that fail on demand."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger.prune import Pruner
from gpuyard.ledger.tables import STATE_TABLES, key_column


def node_event(number: int, **values: Any) -> Event:
    """An event about node `number`, small and told apart by its time."""
    change = Change(Table.NODES, f"node-{number:05d}", {"name": f"n{number}", **values})
    return Event(
        EventKind.NODE_CHANGED, float(number), (change,), None, {"number": number}
    )


def trust_event(number: int) -> Event:
    """An event about one of four places, whose row is changed or, every fifth time,
    forgotten.
    """
    names = ("score", "quarantined_until", "reason", "updated_at")
    values = (
        (number / 30, number * 60.0, f"r{number}", float(number))
        if number % 5
        else (None,) * 4
    )
    change = Change(
        Table.TRUST, f"slurm/{number % 4}", dict(zip(names, values, strict=True))
    )
    return Event(
        EventKind.TRUST_CHANGED, float(number), (change,), None, {"number": number}
    )


def state_of(engine: sa.Engine) -> Mapping[Table, dict[str, dict[str, Any]]]:
    """Every state table, by key."""
    with engine.connect() as connection:
        return {
            name: {
                row[key_column(table).name]: dict(row)
                for row in connection.execute(sa.select(table)).mappings()
            }
            for name, table in STATE_TABLES.items()
        }


def prune_slices(
    engine: sa.Engine, pruner: Pruner, most: int | None = None, *, killed: bool = False
) -> int:
    """Run slices of `pruner`, at most `most`; returns how many events they pruned. With
    `killed`, one slice more is cut off before its commit.
    """
    pruned = 0
    while most is None or most > 0:
        with _write_transaction(engine) as tx:
            done = pruner.run_slice(tx)
        if done is None:
            return pruned
        pruned += done
        most = None if most is None else most - 1
    if killed:
        with engine.connect() as tx:
            pruner.run_slice(tx)
            tx.rollback()
    return pruned


@contextmanager
def _write_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    with engine.begin() as tx:
        if engine.dialect.name == "sqlite":
            tx.exec_driver_sql("BEGIN IMMEDIATE")
        yield tx


def refuse_node(engine: sa.Engine, node_id: str) -> None:
    """Let the database itself refuse the row of this node, saying `not this one`."""
    if engine.dialect.name == "sqlite":
        statements = [
            f"CREATE TRIGGER no BEFORE INSERT ON nodes WHEN NEW.id = '{node_id}' "
            "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        ]
    else:
        statements = [
            (
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'not this one'; END $$"
            ),
            (
                "CREATE TRIGGER no BEFORE INSERT ON nodes FOR EACH ROW WHEN (NEW.id ="
                f" '{node_id}') EXECUTE FUNCTION refuse()"
            ),
        ]
    with engine.begin() as tx:
        for statement in statements:
            tx.exec_driver_sql(statement)


@contextmanager
def failing_commits(
    engine: sa.Engine, said: str = "database or disk is full"
) -> Iterator[list[int]]:
    """Let every COMMIT on `engine` fail as SQLite would say it; gives a list that grows
    by one each time.
    """
    failed: list[int] = []

    def fail(_connection: sa.Connection) -> None:
        failed.append(1)
        raise OperationalError("COMMIT", {}, sqlite3.OperationalError(said))

    sa.event.listen(engine, "commit", fail)
    try:
        yield failed
    finally:
        sa.event.remove(engine, "commit", fail)


_HOLD = """
import sqlite3, sys
ledger = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
for statement in sys.argv[2:]:
    ledger.execute(statement).fetchall()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(ledger: Path, *statements: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has executed `statements` and holds what they lock."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(ledger), *statements],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@contextmanager
def held_commit(engine: sa.Engine) -> Iterator[threading.Event]:
    """Let the next COMMIT on `engine` wait in its thread until the block is left; the
    event is set once it waits.
    """
    begun = threading.Event()
    free = threading.Event()

    def hold(_connection: sa.Connection) -> None:
        begun.set()
        assert free.wait(60), "the commit was never let go"

    sa.event.listen(engine, "commit", hold, once=True)
    try:
        yield begun
    finally:
        free.set()
