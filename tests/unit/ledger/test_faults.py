"""What disks and databases say, in our words."""

import sqlite3
from pathlib import Path

import psycopg
import pytest

from gpuyard.domain.errors import DiskFullError, LedgerError, LedgerUnreachableError
from gpuyard.ledger.faults import ledger_error

FILE = Path("/home/me/.gpuyard/ledger.db")
URL = "postgresql://me:s3cret@db:6432/instance"


@pytest.mark.parametrize(
    ("error", "where", "kind", "said"),
    [
        (
            sqlite3.OperationalError("database or disk is full"),
            FILE,
            DiskFullError,
            "cannot be written: the disk is full",
        ),
        (
            OSError(28, "No space left on device"),
            FILE,
            DiskFullError,
            "Nothing that was acknowledged is lost",
        ),
        (
            psycopg.errors.DiskFull(
                'could not extend file "base/1": No space left on device'
            ),
            URL,
            DiskFullError,
            "db:6432/instance cannot be written: the disk is full",
        ),
        (
            sqlite3.OperationalError("disk I/O error"),
            FILE,
            LedgerError,
            "the disk fails (disk I/O error)",
        ),
        (OSError(5, "Input/output error"), FILE, LedgerError, "the disk fails"),
        (
            sqlite3.DatabaseError("database disk image is malformed"),
            FILE,
            LedgerError,
            "is damaged",
        ),
        (
            psycopg.OperationalError(
                'connection to server at "db", port 6432 failed: Connection refused'
            ),
            URL,
            LedgerUnreachableError,
            "Cannot reach the database at db:6432/instance; gpuyard will try again",
        ),
        (
            psycopg.errors.AdminShutdown(
                "terminating connection due to administrator command"
            ),
            URL,
            LedgerUnreachableError,
            "Cannot reach the database at db:6432/instance",
        ),
        (
            psycopg.errors.CannotConnectNow("the database system is starting up"),
            URL,
            LedgerUnreachableError,
            "will try again",
        ),
        (
            psycopg.OperationalError(
                "consuming input failed: server closed the connection unexpectedly"
            ),
            URL,
            LedgerUnreachableError,
            "See that it runs and lets this machine in",
        ),
        (
            psycopg.OperationalError(
                "password=s3cret in postgresql://me:s3cret@db/instance is wrong"
            ),
            URL,
            LedgerError,
            "cannot be used",
        ),
        (
            TypeError("object cannot be kept as JSON"),
            FILE,
            LedgerError,
            "cannot be used: object cannot be kept as JSON",
        ),
    ],
)
def test_the_cause_and_the_remedy(
    error: Exception, where: Path | str, kind: type[LedgerError], said: str
):
    told = ledger_error(error, where)
    assert type(told) is kind
    assert said in str(told)
    assert told.remedy
    assert "s3cret" not in str(told)
    assert "\n" not in str(told)


def test_an_error_of_a_disk_that_is_full_is_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """SQLite says so when it cannot enlarge the index of its log."""
    error = sqlite3.OperationalError("disk I/O error")
    file = tmp_path / "ledger.db"
    assert "the disk fails" in str(ledger_error(error, file))
    monkeypatch.setattr("gpuyard.ledger.faults.free_bytes", lambda _: 4096)
    assert isinstance(ledger_error(error, file), DiskFullError)


def test_what_is_in_our_words_already_stays():
    error = DiskFullError("full", "free some")
    assert ledger_error(error, FILE) is error
