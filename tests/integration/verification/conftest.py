"""A verification database of the test's own, in SQLite and again in PostgreSQL, and a
store for its files.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.storage.blobs import BlobStore
from gpuyard.verification.database import Database
from gpuyard.verification.records import Records
from tests.support.verification import HandClock


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a database may be: a file that is not there yet, or a PostgreSQL database
    with nothing in it.
    """
    if request.param == "sqlite":
        return tmp_path / "verification" / "verification.db"
    return request.getfixturevalue("postgres").create()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def records(place: Path | str, clock: HandClock) -> Iterator[Records]:
    """Records whose clock is moved by hand."""
    database = Database.open(place)
    yield Records(database, clock.now)
    database.close()


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")
