"""Opening a ledger: new, old, too new, damaged, locked, on a network file system."""

import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine.interfaces import ReflectedIndex

from gpuyard.config.netfs import network_filesystem
from gpuyard.controller.users import OWNER, Identity
from gpuyard.domain.errors import (
    ForbiddenError,
    LedgerError,
    LedgerLockedError,
    LedgerTooNewError,
    NetworkFilesystemError,
)
from gpuyard.domain.users import Role
from gpuyard.ledger import migrate, store
from gpuyard.ledger.apply import apply
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.migrate import upgrade_schema
from gpuyard.ledger.schema import metadata
from gpuyard.ledger.side_tables import lease
from gpuyard.ledger.store import lock_ledger
from gpuyard.ledger.tables import attempts, jobs
from gpuyard.server.permissions import IDENTITY_KEY, check_own
from tests.support.controlled import Controlled
from tests.support.ledger import node_event

pytestmark = pytest.mark.filterwarnings("ignore:.*expression-based index:UserWarning")


def test_a_new_ledger_has_the_schema_of_the_tables(ledger: Ledger):
    with ledger.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    assert not any(ledger.queries.job_counts())


def _conditions(index: ReflectedIndex) -> dict[str, str]:
    options = index.get("dialect_options", {})
    return {name: str(value) for name, value in options.items()}


def _schema(connection: sa.Connection) -> dict[str, object]:
    """All that the database says of its tables, whatever the order of columns."""
    inspector = sa.inspect(connection)
    found: dict[str, object] = {}
    for table in inspector.get_table_names():
        columns = [
            {**column, "type": str(column["type"])}
            for column in inspector.get_columns(table)
        ]
        # The condition of a partial index is an object, equal only to itself.
        indexes = [
            {**index, "dialect_options": str(_conditions(index))}
            for index in inspector.get_indexes(table)
        ]
        found[table] = (
            sorted(columns, key=lambda column: str(column["name"])),
            inspector.get_pk_constraint(table),
            inspector.get_foreign_keys(table),
            sorted(indexes, key=lambda index: str(index["name"])),
            sorted(inspector.get_unique_constraints(table), key=str),
        )
    found["rows of lease"] = connection.execute(sa.select(lease)).all()
    return found


def test_a_new_ledger_is_as_if_all_revisions_had_made_it(place: Path | str):
    new = Ledger.open(place)
    with new.engine.connect() as connection:
        made = _schema(connection)
    with new.engine.begin() as tx:
        version = sa.MetaData()
        version.reflect(tx, only=["alembic_version"])
        version.drop_all(tx)
        metadata.drop_all(tx)
        upgrade_schema(tx)
    with new.engine.connect() as connection:
        assert made == _schema(connection)
    new.close()


def test_nobody_else_may_read_it(path: Path):
    Ledger.open(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_older_ledger_is_brought_up_to_date_and_keeps_its_epoch(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "create_schema", lambda tx: upgrade_schema(tx, "0001"))
        Ledger.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO counters VALUES ('epoch', 41)")
    upgraded = Ledger.open(path)
    assert upgraded.queries.next_epoch() == 42
    upgraded.close()


# As a version without users wrote them.
_ENDED = {"state": "failed", "created_at": 1.0, "ended_at": 3.0}
_OLD_ROWS: dict[str, dict[str, Any]] = {
    "jobs": {"id": "job_old", "name": "old", "kind": "command", **_ENDED},
    "specs": {"job_id": "job_old", "body": {"command": ["true"]}},
    "attempts": {
        "id": "attempt_old",
        "job_id": "job_old",
        "number": 1,
        "provider": "fake",
        "started_at": 2.0,
        "cost": "0.5",
        "currency": "USD",
        **_ENDED,
    },
    "batches": {"id": "batch_old", "mode": "shared", "total": 1, **_ENDED},
    "schedules": {
        "id": "schedule_old",
        "name": "nightly",
        "state": "paused",
        "cron": "0 3 * * *",
        "timezone": "UTC",
        "overlap": "skip",
        "spec": {"command": ["true"]},
        "created_at": 1.0,
    },
}


def _write_old_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "create_schema", lambda tx: upgrade_schema(tx, "0015"))
        old = Ledger.open(path)
    tables = sa.MetaData()
    with old.engine.begin() as tx:
        tables.reflect(tx, only=list(_OLD_ROWS))
        for name, row in _OLD_ROWS.items():
            tx.execute(tables.tables[name].insert(), row)
    old.close()


@pytest.mark.anyio
async def test_what_an_older_ledger_holds_is_the_owners_and_no_member_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _write_old_rows(tmp_path / "ledger.db", monkeypatch)
    instance = Controlled(tmp_path)
    await instance.start()
    for table in (jobs, attempts):
        with instance.ledger.engine.connect() as connection:
            assert connection.execute(sa.select(table.c.owner)).scalars().all() == [
                None
            ]
    controller = instance.controller
    schedule = controller.schedules.find("nightly")
    assert schedule.spec.get("user") is None
    ids = ["job_old", "batch_old"]
    member = Identity("ana", Role.MEMBER)
    for thing in ids:
        with pytest.raises(ForbiddenError, match="submitted by the owner of the inst"):
            await check_own({IDENTITY_KEY: member}, controller, [thing])
    with pytest.raises(ForbiddenError, match="submitted by the owner of the instance"):
        controller.access.check_changes(member, schedule.id, None, None)
    await check_own({IDENTITY_KEY: OWNER}, controller, ids)
    await instance.stop()


def test_the_newest_revision_is_the_one_the_code_names():
    config = Config()
    config.set_main_option(
        "script_location", str(Path(migrate.__file__).parent / "migrations")
    )
    assert ScriptDirectory.from_config(config).get_current_head() == migrate.HEAD


def test_it_is_durable_and_read_while_it_is_written(path: Path):
    ledger = Ledger.open(path)
    with ledger.engine.connect() as connection:
        assert connection.execute(sa.text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(sa.text("PRAGMA synchronous")).scalar() == 2
    ledger.close()


def test_opening_again_keeps_what_was_there(ledger: Ledger, place: Path | str):
    with ledger.engine.begin() as tx:
        apply(tx, [node_event(1)])
    ledger.close()
    again = Ledger.open(place)
    assert [node["name"] for node in again.queries.nodes()] == ["n1"]
    again.close()


def test_a_ledger_that_is_new_or_up_to_date_is_opened_without_alembic(path: Path):
    code = (
        "import sys; from pathlib import Path, PosixPath; from gpuyard.ledger.ledger"
        f" import Ledger; Ledger.open({path!r}); sys.exit('alembic' in sys.modules)"
    )
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_ledger_from_a_newer_version_is_refused_and_left_alone(
    ledger: Ledger, place: Path | str
):
    with ledger.engine.begin() as tx:
        tx.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    ledger.close()
    with pytest.raises(
        LedgerTooNewError,
        match=r"newer gpuyard \(schema 9999; this one knows .*Upgrade gpuyard",
    ):
        Ledger.open(place)
    with ledger.engine.connect() as connection:
        assert connection.execute(
            sa.text("SELECT version_num FROM alembic_version")
        ).scalars().all() == ["9999"]


@pytest.mark.parametrize("statement", range(1, 40, 4))
def test_a_migration_that_was_broken_off_is_made_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch, statement: int
):
    seen = []

    def break_off(_connection, _cursor, text, *_more):
        if text.lstrip().upper().startswith("CREATE"):
            seen.append(text)
            if len(seen) == statement:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        real = migrate.migrate

        def interrupted(engine: sa.Engine) -> None:
            sa.event.listen(engine, "before_cursor_execute", break_off)
            real(engine)

        patch.setattr(store, "migrate", interrupted)
        try:
            Ledger.open(path).close()
        except KeyboardInterrupt:
            assert len(seen) == statement
    again = Ledger.open(path)
    with again.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    again.close()


@pytest.mark.parametrize(
    "content", [b"this is no database, whatever its name says" * 50, b"\0" * 4096]
)
def test_a_file_that_is_no_ledger_is_refused(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(
        LedgerError, match=r"ledger.db is damaged: .*Restore it from a backup"
    ):
        Ledger.open(path)
    assert path.read_bytes() == content


def test_a_ledger_where_no_file_can_be_is_refused(tmp_path: Path):
    with pytest.raises(
        LedgerError, match=r"cannot be used: .*No such file or directory"
    ):
        Ledger.open(tmp_path / "missing" / "ledger.db")
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger.open(tmp_path)


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path):
    path = tmp_path / "lock"
    code = (
        "import sys; from pathlib import Path; from gpuyard.ledger.store import"
        f" lock_ledger; held = lock_ledger(Path({str(path)!r})); print('held',"
        " flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            LedgerLockedError,
            match=rf"process {holder.pid}\) has this home open.*`gpuyard down`",
        ):
            lock_ledger(path)
        holder.kill()
        holder.wait()
    lock_ledger(path).close()


def test_the_lock_ends_with_its_file(tmp_path: Path):
    lock_ledger(tmp_path / "lock").close()
    with lock_ledger(tmp_path / "lock"), pytest.raises(LedgerLockedError):
        lock_ledger(tmp_path / "lock")


MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2
31 30 8:2 / /home/fast rw,relatime - xfs /dev/nvme0n1p1 rw
32 22 0:41 / /mnt/a\040b rw - fuse.sshfs me@host:/ rw
33 22 0:42 / /mnt/kühl rw - cifs //host/share rw
34 22 0:43 / /data rw - lustre host:/data rw
35 34 0:44 / /data rw - ext4 /dev/sdb1 rw
36 22 0:45 / /ho rw - nfs host:/ho rw
this is no line of the kernel's
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/ledger.db", None),
        ("/home/me/.gpuyard/ledger.db", "nfs4"),
        ("/home", "nfs4"),
        ("/home/fast/ledger.db", None),  # a local disk mounted inside it
        ("/homes/ledger.db", None),
        ("/mnt/a b/ledger.db", "fuse.sshfs"),
        ("/mnt/kühl/ledger.db", "cifs"),
        ("/data/ledger.db", None),  # mounted over
    ],
)
def test_network_file_systems_are_told_from_local_ones(path: str, kind: str | None):
    assert network_filesystem(Path(path), MOUNTS) == kind


def test_this_machines_own_mounts_can_be_read(tmp_path: Path):
    assert network_filesystem(tmp_path) in {None, "9p", "nfs", "nfs4"}


def test_a_ledger_on_a_network_file_system_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        store, "network_filesystem", lambda asked: "nfs4" if asked == path else None
    )
    with pytest.raises(
        NetworkFilesystemError,
        match=r"network file system \(nfs4\).*Set GPUYARD_HOME to a folder on a local",
    ):
        Ledger.open(path)
    assert not path.exists()
