"""Check, rebuild, copy and backup: on a ledger with a history, in both databases."""

import asyncio
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpuyard.domain.errors import DiskFullError, InvalidInputError, RefusedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger import migrate
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.migrate import upgrade_schema
from gpuyard.ledger.prune import Pruner
from gpuyard.ledger.replay import check, rebuild
from gpuyard.ledger.schema import metadata
from gpuyard.ledger.transfer import backup, copy
from gpuyard.ledger.writer import Writer
from tests.support.blank_ledger import blank_ledger
from tests.support.ledger import node_event, prune_slices, state_of
from tests.support.life import Life
from tests.support.postgres import PostgresServer
from tests.support.tmpfs import small_disk

pytestmark = pytest.mark.anyio


@pytest.fixture
async def lived(ledger: Ledger, writer: Writer) -> Ledger:
    """A ledger in which something happened, partly pruned."""
    life = Life()
    for number in range(20):
        attempt = life.run(life.submit(name=f"job-{number}", labels={"n": str(number)}))
        life.save_checkpoint(attempt, step=number)
        if number % 2:
            life.end(attempt, exit_code=0, usage={"cpu_s": number / 7})
    writer.add_events(life.journal)
    writer.add_events(
        [node_event(1, cpus=8, limits={"memory": "cgroup"}, reason="ümlaut \u2028")]
    )
    writer.add_points(
        [
            {
                "attempt_id": "a",
                "job_id": "j",
                "name": "loss",
                "n": n,
                "step": n,
                "value": 1 / (n + 1),
                "at": 1.0,
            }
            for n in range(50)
        ]
    )
    writer.set_progress("j", {"step": 49})
    await writer.committed()
    prune_slices(ledger.engine, Pruner(30))
    writer.add_events([node_event(2)])
    await writer.committed()
    return ledger


def everything(ledger: Ledger) -> dict[str, list[dict]]:
    """Every row of every table but those that say who serves."""
    with ledger.engine.connect() as connection:
        return {
            table.name: [
                dict(row)
                for row in connection.execute(
                    sa.select(table).order_by(*table.primary_key)
                ).mappings()
            ]
            for table in metadata.sorted_tables
            if table.name not in ("lease", "servers")
        }


async def test_a_ledger_that_nobody_touched_is_what_its_journal_says(lived: Ledger):
    report = check(lived.engine)
    assert (report.ok, report.gaps, report.differences) == (True, 0, [])
    assert report.events == 31
    assert report.rows["jobs"] == report.rows["attempts"] == 20


async def test_every_way_of_tampering_is_found_and_rebuilt(lived: Ledger):
    before = state_of(lived.engine)
    gone, changed, *_ = sorted(before[Table.JOBS])
    with lived.engine.begin() as tx:
        tx.execute(
            sa.text(
                f"UPDATE jobs SET priority = 5, labels = '{{}}' WHERE id = '{changed}'"
            )
        )
        tx.execute(sa.text(f"DELETE FROM jobs WHERE id = '{gone}'"))
        tx.execute(
            sa.text("INSERT INTO nodes (id, name) VALUES ('node-99999', 'forged')")
        )
    report = check(lived.engine)
    assert not report.ok
    assert report.difference_count == 4
    assert {(d.table, d.key, d.column) for d in report.differences} == {
        ("jobs", gone, None),
        ("jobs", changed, "priority"),
        ("jobs", changed, "labels"),
        ("nodes", "node-99999", None),
    }
    told = [str(difference) for difference in report.differences]
    assert f"jobs {changed}: priority is 5, the journal says 3" in told
    assert "nodes node-99999: is not in the journal" in told
    assert f"jobs {gone}: is not in the table" in told
    rebuild(lived.engine)
    assert check(lived.engine).ok
    assert state_of(lived.engine) == before


async def test_an_event_that_is_missing_is_found(lived: Ledger):
    with lived.engine.begin() as tx:
        tx.execute(
            sa.text("DELETE FROM events WHERE seq = (SELECT max(seq) - 3 FROM events)")
        )
    report = check(lived.engine)
    assert (report.ok, report.gaps) == (False, 1)


@pytest.fixture
def empty(postgres: PostgresServer, tmp_path: Path) -> Callable[[str], Ledger]:
    """Makes an empty ledger in a database of this kind."""
    return lambda kind: Ledger.open(
        blank_ledger(tmp_path / "empty.db") if kind == "sqlite" else postgres.ledger()
    )


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_copied_there_and_back_it_is_the_same(
    lived: Ledger, empty: Callable[[str], Ledger], kind: str, tmp_path
):
    lived.queries.next_epoch()
    there = empty(kind)
    back = Ledger.open(blank_ledger(tmp_path / "back.db"))
    rows = copy(lived.engine, there.engine)
    assert (rows["jobs"], rows["events"], rows["points"]) == (20, 31, 50)
    copy(there.engine, back.engine)
    assert everything(lived) == everything(there) == everything(back)
    assert back.queries.next_epoch() == 2
    writer = there.writer()
    writer.start()
    writer.add_events([node_event(3)])
    await writer.committed()
    await writer.close()
    assert there.queries.last_seq() == lived.queries.last_seq() + 1
    there.close()
    back.close()


async def test_what_a_target_holds_is_not_given_up_unasked(
    lived: Ledger, empty: Callable[[str], Ledger]
):
    target = empty("sqlite")
    copy(lived.engine, target.engine)
    with pytest.raises(RefusedError, match=r"is not empty .*--replace"):
        copy(lived.engine, target.engine)
    copy(lived.engine, target.engine, replace=True)
    assert everything(target) == everything(lived)
    target.close()


async def test_nothing_is_copied_over_a_server_that_works(
    lived: Ledger, postgres: PostgresServer
):
    target = Ledger.open(postgres.ledger())
    with target.engine.begin() as tx:
        tx.execute(
            sa.text(
                "UPDATE lease SET holder = 'other', expires_at = clock_timestamp() +"
                " interval '1 hour'"
            )
        )
    with pytest.raises(RefusedError, match="The server other works on this ledger"):
        copy(lived.engine, target.engine, replace=True)
    with pytest.raises(RefusedError, match="The server other works on this ledger"):
        rebuild(target.engine)
    target.close()


async def test_a_backup_that_is_made_while_jobs_come_is_consistent(
    lived: Ledger, writer: Writer, tmp_path: Path
):
    file = tmp_path / "saved.db"
    saving = asyncio.create_task(asyncio.to_thread(backup, lived.engine, file))
    number = 100
    while not saving.done():
        # Each changes two rows at once; a backup must have both or neither.
        pair = tuple(
            Change(Table.NODES, f"pair-{side}", {"name": str(number)}) for side in "ab"
        )
        writer.add_events(
            [Event(EventKind.NODE_CHANGED, 1.0, pair, None, {"number": number})]
        )
        await writer.committed()
        number += 1
    await saving
    assert number > 100
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved.db"]
    restored = Ledger.open(file)
    assert check(restored.engine).ok
    state = state_of(restored.engine)
    assert state[Table.JOBS] == state_of(lived.engine)[Table.JOBS]
    pair = [
        row["name"]
        for key, row in state[Table.NODES].items()
        if key.startswith("pair-")
    ]
    assert len(set(pair)) <= 1
    restored.close()


async def test_a_backup_never_writes_over_a_file(lived: Ledger, tmp_path: Path):
    file = tmp_path / "saved.db"
    file.write_text("precious")
    with pytest.raises(InvalidInputError, match="exists already"):
        backup(lived.engine, file)
    assert file.read_text() == "precious"


async def test_a_backup_onto_a_full_disk_leaves_nothing(lived: Ledger, tmp_path: Path):
    with small_disk(tmp_path / "disk") as disk:
        (disk / "ballast").write_bytes(b"\0" * (shutil.disk_usage(disk).free - 40_000))
        with pytest.raises(DiskFullError):
            backup(lived.engine, disk / "saved.db")
        assert [path.name for path in disk.iterdir()] == ["ballast"]


def test_a_restore_that_was_killed_is_finished_at_the_next_opening(tmp_path: Path):
    """It died after the backup was ready, beside a log of the former ledger."""
    ledger = tmp_path / "ledger.db"
    made = Ledger.open(ledger)
    backup(made.engine, tmp_path / "saved.db")
    made.close()
    former = ledger.read_bytes()
    with closing(sqlite3.connect(tmp_path / "saved.db")) as saved, saved:
        saved.execute("UPDATE lease SET epoch = 77")
    log = tmp_path / "ledger.db-wal"
    log.write_bytes(b"of the former ledger")
    (tmp_path / "saved.db").rename(tmp_path / "ledger.db.restored")
    opened = Ledger.open(ledger)
    assert opened.queries.next_epoch() == 78
    opened.close()
    (kept,) = tmp_path.glob("ledger.db.before-restore-*[0-9]")
    assert kept.read_bytes() == former
    kept_log = kept.with_name(f"{kept.name}-wal")
    assert kept_log.read_bytes() == b"of the former ledger"


def test_a_ledger_is_saved_before_it_is_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    former = f"{int(migrate.HEAD) - 1:04}"
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "create_schema", lambda tx: upgrade_schema(tx, former))
        Ledger.open(path).close()
    partial = tmp_path / f"ledger.db.schema-{former}.partial"
    partial.write_bytes(b"left by a server that was killed")
    Ledger.open(path).close()
    (saved,) = tmp_path.glob("ledger.db.schema-*")
    with closing(sqlite3.connect(saved)) as kept:
        version = kept.execute("SELECT version_num FROM alembic_version").fetchone()
    assert (saved.name, version) == (f"ledger.db.schema-{former}", (former,))
