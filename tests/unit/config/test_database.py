"""Where the ledger is said to be, and that its password shows nowhere."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.config.database import find_database, remember_database, shown
from gpuyard.config.paths import Home
from gpuyard.domain.errors import InvalidInputError

URL = "postgresql://me:s3cret@db.example.org:6432/instance?sslmode=require"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_it_is_the_file_in_the_home_unless_something_else_is_said(home: Home):
    assert find_database(home, None) == home.ledger
    assert find_database(home, "sqlite") == home.ledger


def test_what_was_said_once_is_remembered_for_the_owner_only(home: Home):
    remember_database(home, URL)
    assert find_database(home, None) == URL
    assert stat.S_IMODE(home.database.stat().st_mode) == 0o600
    assert find_database(home, "postgresql://other/db") == "postgresql://other/db"
    remember_database(home, "sqlite")
    assert find_database(home, None) == home.ledger


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("mysql://me:s3cret@host/db", "is no PostgreSQL address"),
        ("postgresql://me:s3cret@host", "names no database"),
        ("postgresql://me:s3cret@host:port/db", "is not an address"),
        ("s3cret", "is no PostgreSQL address"),
        ("", "is no PostgreSQL address"),
    ],
)
def test_what_is_no_address_is_refused_and_not_shown(home: Home, url: str, fault: str):
    with pytest.raises(InvalidInputError, match=fault) as caught:
        remember_database(home, url)
    assert "s3cret" not in str(caught.value)
    assert not home.database.exists()


def test_a_file_that_cannot_be_read_is_named(home: Home):
    home.database.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputError, match=r"database: is not text"):
        find_database(home, None)


def test_what_is_shown_tells_where_and_not_who(home: Home):
    assert shown(URL) == "db.example.org:6432/instance"
    assert (
        shown("postgresql:///instance?host=/tmp&password=s3cret")
        == "localhost:5432/instance"
    )
    assert shown(home.ledger) == str(home.ledger)


def test_an_address_without_the_driver_names_the_extra(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidInputError, match=r"gpuyard\[postgresql\]") as caught:
        remember_database(home, URL)
    assert "s3cret" not in str(caught.value)
    assert not home.database.exists()


WITHOUT_THE_DRIVER = """
import sys
from pathlib import Path

sys.modules["psycopg"] = None

import gpuyard.resource_manager.manager
import gpuyard.server.__main__
from gpuyard.ledger.ledger import Ledger
from gpuyard.verification.database import Database

Ledger.open(Path(sys.argv[1], "ledger.db")).close()
Database.open(Path(sys.argv[1], "verification.db")).close()
"""


def test_sqlite_needs_no_driver_of_postgresql(tmp_path: Path):
    command = [sys.executable, "-c", WITHOUT_THE_DRIVER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
