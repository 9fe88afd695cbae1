"""A verification database of the test's own, in SQLite or PostgreSQL, and a store for
its files.

A test that is marked `both_databases` runs on each of them: all that show what is
stored and read do. With `GPUYARD_EVERY_CASE` in the environment, as in `make soak`,
every test does.
"""

import os
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        is_marked = metafunc.definition.get_closest_marker("both_databases") is not None
        both = is_marked or "GPUYARD_EVERY_CASE" in os.environ
        kinds = ["sqlite", "postgresql"] if both else ["sqlite"]
        metafunc.parametrize("database_kind", kinds)


@pytest.fixture
def place(
    request: pytest.FixtureRequest, database_kind: str, tmp_path: Path
) -> Path | str:
    """Where a database may be: a file that is not there yet, or a PostgreSQL database
    with nothing in it.
    """
    if database_kind == "sqlite":
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
