"""An older ledger, in which values of keys stand in clear."""

import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger import migrate
from gpuyard.ledger.apply import apply
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.migrate import upgrade_schema
from gpuyard.ledger.replay import check
from gpuyard.ledger.row_images import read_images
from gpuyard.ledger.tables import STATE_TABLES, batches, specs

ENVIRONMENT = {"HF_TOKEN": "planted-value", "EPOCHS": "3"}


def _submitted(job_id: str, state: str) -> Event:
    spec = {"command": ["true"], "environment": ENVIRONMENT}
    changes = (
        Change(Table.JOBS, job_id, {"state": state, "name": "job"}),
        Change(Table.SPECS, job_id, {"body": spec}),
    )
    return Event(EventKind.JOB_SUBMITTED, 1.0, changes, job_id, {"name": "job"})


def _batch(batch_id: str, state: str) -> Event:
    values = {"state": state, "environment": ENVIRONMENT}
    change = Change(Table.BATCHES, batch_id, values)
    return Event(EventKind.JOB_SUBMITTED, 1.0, (change,), None, {})


def _environments(ledger: Ledger) -> dict[str, Any]:
    with ledger.engine.connect() as connection:
        bodies = connection.execute(sa.select(specs.c.job_id, specs.c.body)).all()
        own = sa.select(batches.c.id, batches.c.environment)
        environments = connection.execute(own).all()
    found = {job_id: body["environment"] for job_id, body in bodies}
    return found | dict(map(tuple, environments))


def _prune(engine: sa.Engine) -> None:
    """As gpuyard did at that time: a snapshot of each whole table."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    snapshots = metadata.tables["snapshots"]
    with engine.begin() as tx:
        # Not those that came later.
        for name in (one.value for one in STATE_TABLES if one.value in metadata.tables):
            table = metadata.tables[name]
            rows = [dict(row) for row in tx.execute(sa.select(table)).mappings()]
            body = zlib.compress(msgspec.json.encode(rows))
            tx.execute(sa.insert(snapshots).values(seq=3, table=name, body=body))
        tx.execute(sa.text("DELETE FROM events WHERE seq < 3"))


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a ledger may be, with no schema yet."""
    if request.param == "sqlite":
        return tmp_path / "ledger.db"
    url: str = request.getfixturevalue("postgres").create()
    return url


@pytest.mark.parametrize("pruned", [False, True])
def test_values_of_keys_are_removed_from_what_is_over(
    place: Path | str, monkeypatch: pytest.MonkeyPatch, pruned: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "create_schema", lambda tx: upgrade_schema(tx, "0007"))
        old = Ledger.open(place)
    with old.engine.begin() as tx:
        # What writes today asks it; the migration makes one that stays.
        tx.execute(sa.text("CREATE TEMPORARY TABLE pruned (seq INTEGER)"))
        over = [_submitted("job_1", "failed"), _batch("batch_1", "completed")]
        apply(tx, [*over, _submitted("job_2", "running")])
    if pruned:
        _prune(old.engine)
    old.close()
    ledger = Ledger.open(place)
    removed = {"HF_TOKEN": "***", "EPOCHS": "3"}
    assert _environments(ledger) == {
        "job_1": removed,
        "batch_1": removed,
        "job_2": ENVIRONMENT,
    }
    report = check(ledger.engine)
    assert report.ok, report.differences
    with ledger.engine.connect() as connection:
        images = list(read_images(connection))
    ledger.close()
    if isinstance(place, Path):
        # One of the live job's row, and one of its event.
        assert place.read_bytes().count(b"planted-value") == 2
    # The live job needs its own.
    assert str(images).count("planted-value") == int(pruned)
