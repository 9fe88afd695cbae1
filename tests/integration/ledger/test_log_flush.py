"""The write-ahead log is copied into the ledger's file beside the commits."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from gpuyard.ledger import log_flush
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.writer import Writer
from tests.support.ledger import node_event
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
# Each commit of so many events fills some hundred pages of the log.
_EVENTS = 500
# Commits flush a log of 8000 pages themselves.
_FLUSHED_BY_COMMITS = 8000 * 4096


async def test_what_is_committed_reaches_the_file_a_moment_later(tmp_path: Path):
    ledger = Ledger.open(tmp_path / "ledger.db")
    writer = ledger.writer()
    writer.start()
    await _commit(writer)

    def stored_nodes() -> int:
        alone = shutil.copy(tmp_path / "ledger.db", tmp_path / "alone.db")
        connection = sqlite3.connect(alone)
        try:
            (count,) = connection.execute("SELECT count(*) FROM nodes").fetchone()
            return count
        except sqlite3.DatabaseError:
            return 0  # not even the tables are there yet
        finally:
            connection.close()

    await eventually(lambda: stored_nodes() == _EVENTS, "the log to be copied")
    await writer.close()
    ledger.close()


async def test_a_long_log_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_flush, "MOST_PAGES", 50)
    ledger = Ledger.open(tmp_path / "ledger.db")
    writer = ledger.writer()
    writer.start()
    log = tmp_path / "ledger.db-wal"
    begins = {_begin_of(log)}
    while len(begins) == 1:
        await _commit(writer)
        begins.add(_begin_of(log))
        assert log.stat().st_size < _FLUSHED_BY_COMMITS
    await writer.close()
    ledger.close()


async def _commit(writer: Writer) -> None:
    writer.add_events([node_event(number) for number in range(_EVENTS)])
    await writer.committed()


def _begin_of(log: Path) -> bytes:
    """The log's salt, which changes when it begins anew."""
    with log.open("rb") as file:
        return file.read(24)[16:]
