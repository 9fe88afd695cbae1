"""The old output of attempts is deleted, that of others stays."""

import asyncio
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuyard.config.retention import RetentionSettings
from gpuyard.config.sections import DAY_S
from gpuyard.domain import wire
from gpuyard.node import sweeping
from gpuyard.node.journal import AttemptJournal
from gpuyard.node.sweeping import pack_settled, sweep
from gpuyard.storage.log_times import times_path
from gpuyard.storage.packed_log import pack, packed_path, with_stored_log
from tests.support.wait import eventually

NOW = time.time()
SETTINGS = RetentionSettings(logs_days=3, jobs_days=10)


def _age(path: Path, days: float) -> None:
    changed_at = NOW - days * DAY_S
    os.utime(path, (changed_at, changed_at))


def _output(journal: AttemptJournal, attempt_id: str, days: float) -> None:
    """What an attempt leaves, `days` old."""
    log = journal.log_path(attempt_id)
    log.touch()
    folder = journal.private(attempt_id)
    (folder / "work").mkdir(parents=True)
    _age(log, days)
    _age(folder, days)


@pytest.fixture(params=["beside the logs", "elsewhere"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AttemptJournal:
    """One whose jobs have their folders in a place of their own, and one without."""
    private_root = tmp_path / "jobs" if request.param == "elsewhere" else None
    return AttemptJournal(tmp_path / "attempts", private_root)


def test_logs_and_folders_go_when_their_time_is_over(journal: AttemptJournal) -> None:
    ages = {"new": 1, "older": 5, "oldest": 11}
    for attempt_id, days in ages.items():
        _output(journal, attempt_id, days)
    sweep(journal, SETTINGS, NOW)
    assert [name for name in ages if journal.log_path(name).exists()] == ["new"]
    assert [name for name in ages if journal.private(name).exists()] == ["new", "older"]


def test_large_logs_of_settled_attempts_are_compressed(tmp_path: Path) -> None:
    journal = AttemptJournal(tmp_path / "attempts")
    for attempt_id in ("live", "large", "small"):
        journal.log_path(attempt_id).write_bytes(b"x" * 99 + b"\n")
    journal.log_path("small").write_bytes(b"x\n")
    journal.intend(wire.StartAttempt("live", 1, 1, "job", ["true"], {}), "boot")
    _age(journal.log_path("large"), 5)
    pack_settled(journal, least=10)
    packed = packed_path(journal.log_path("large"))
    assert {path.name for path in journal.folder.glob("*.log*")} == {
        "live.log",
        "small.log",
        packed.name,
    }
    assert journal.is_settled("large")
    # Its time counts from the end of the attempt, and then all of it goes.
    times_path(journal.log_path("large")).touch()
    sweep(journal, SETTINGS, NOW)
    assert not list(journal.folder.glob("large*"))


def test_an_agent_that_was_killed_between_the_two_files_goes_on(tmp_path: Path) -> None:
    journal = AttemptJournal(tmp_path / "attempts")
    path = journal.log_path("large")
    path.write_bytes(b"x" * 99 + b"\n")
    pack(path)
    path.write_bytes(b"x" * 99 + b"\n")
    pack_settled(journal, least=10)
    assert not path.exists()
    assert with_stored_log(path, lambda log: log.size()) == 100


def test_an_attempt_that_is_not_settled_keeps_its_output(
    journal: AttemptJournal,
) -> None:
    journal.intend(wire.StartAttempt("live", 1, 1, "job", ["true"], {}), "boot")
    _output(journal, "live", 400)
    sweep(journal, SETTINGS, NOW)
    assert journal.log_path("live").exists()
    assert journal.private("live").exists()


def test_the_folder_of_a_long_job_is_as_old_as_its_end(journal: AttemptJournal) -> None:
    _output(journal, "long", 400)
    journal.forget("long")
    sweep(journal, SETTINGS, NOW)
    assert journal.private("long").exists()


def test_one_that_cannot_be_deleted_is_not_in_the_way(
    journal: AttemptJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt_id in ("a", "bad", "c"):
        _output(journal, attempt_id, 11)
    discard = journal.discard

    def fail(attempt_ids: Iterable[str]) -> None:
        if "bad" in attempt_ids:
            raise RecursionError
        discard(attempt_ids)

    monkeypatch.setattr(journal, "discard", fail)
    sweep(journal, SETTINGS, NOW)
    assert not journal.private("a").exists()
    assert not journal.private("c").exists()


@pytest.mark.anyio
async def test_no_failure_is_the_last_sweep(
    journal: AttemptJournal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sweeps: list[bool] = []

    def fail(*_arguments: object) -> None:
        sweeps.append(True)
        raise ValueError("nobody thought of this")

    monkeypatch.setattr(sweeping, "sweep", fail)
    monkeypatch.setattr(sweeping, "_EVERY_S", 0.0)
    task = asyncio.create_task(sweeping.sweep_old_output(journal, SETTINGS, tmp_path))
    await eventually(lambda: len(sweeps) > 1 or task.done(), "the next sweep")
    assert not task.done()
    task.cancel()
