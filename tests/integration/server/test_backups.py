"""Backups on a schedule."""

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.config.ledger import BackupSettings
from gpuyard.config.paths import Home
from gpuyard.ledger.ledger import Ledger
from gpuyard.server.backups import DOWNLOADS, Backups, sweep_downloads
from tests.support.wait import eventually


def test_the_newest_backups_stay_and_no_leavings(tmp_path: Path) -> None:
    home = Home(tmp_path)
    ledger = Ledger.open(home.ledger)
    backups = Backups(home, BackupSettings(every_h=1, keep=2), ledger)
    home.backups.mkdir()
    yesterday = time.time() - 86400
    for day in (1, 2, 3):
        old = home.backups / f"ledger-2026010{day}-000000.db"
        old.touch()
        os.utime(old, (yesterday, yesterday))
    (home.backups / "ledger-20260104-000000.db.partial-wal").touch()
    (home.backups / "mine.db").touch()
    made = backups.make_if_due()
    assert made
    with closing(sqlite3.connect(made)) as saved:
        assert saved.execute("SELECT count(*) FROM lease").fetchone() == (1,)
    assert backups.found() == [home.backups / "ledger-20260103-000000.db", made]
    assert sorted(path.name for path in home.backups.iterdir()) == [
        "ledger-20260103-000000.db",
        made.name,
        "mine.db",
    ]
    assert backups.make_if_due() is None, "none is due"
    ledger.close()


def test_a_backup_that_fails_is_due_again(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    in_the_way = tmp_path / "backups"
    in_the_way.touch()
    backups = Backups(Home(tmp_path), BackupSettings(), ledger)
    assert backups.make_if_due() is None
    in_the_way.unlink()
    assert backups.make_if_due()
    ledger.close()


def _made_at(file: Path, hours: float) -> None:
    """Let it be so many hours old; less than 0: from the future."""
    file.touch()
    at = time.time() - hours * 3600
    os.utime(file, (at, at))


def test_a_backup_from_the_future_is_the_oldest(tmp_path: Path) -> None:
    home = Home(tmp_path)
    ledger = Ledger.open(home.ledger)
    backups = Backups(home, BackupSettings(every_h=1, keep=2), ledger)
    home.backups.mkdir()
    ahead = home.backups / "ledger-20990101-000000.db"
    _made_at(ahead, -24 * 365)
    former = home.backups / "ledger-20990102-000000.db"
    _made_at(former, 2)
    assert backups.found() == [ahead, former]
    made = backups.make_if_due()
    assert made
    assert backups.found() == [former, made]
    assert backups.make_if_due() is None
    ledger.close()


@pytest.mark.anyio
async def test_no_failure_is_the_last_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    backups = Backups(Home(tmp_path), BackupSettings(), ledger)
    tries: list[bool] = []

    def fail() -> None:
        tries.append(True)
        raise ValueError("nobody thought of this")

    monkeypatch.setattr(backups, "make_if_due", fail)
    monkeypatch.setattr("gpuyard.server.backups._FIRST_S", 0.0)
    monkeypatch.setattr("gpuyard.server.backups._LOOK_S", 0.0)
    running = asyncio.create_task(backups.run())
    await eventually(lambda: len(tries) > 1 or running.done(), "the next try")
    assert not running.done()
    running.cancel()
    ledger.close()


def test_a_download_that_a_killed_server_left_is_deleted(tmp_path: Path) -> None:
    left = tmp_path / f"{DOWNLOADS}x" / "ledger.db"
    left.parent.mkdir()
    left.touch()
    (tmp_path / "backup-of-mine").mkdir()
    sweep_downloads(Home(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["backup-of-mine"]
