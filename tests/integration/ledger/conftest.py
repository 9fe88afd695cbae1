"""A real ledger of the test's own, in SQLite and again in PostgreSQL."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.writer import Writer
from tests.support.blank_ledger import blank_ledger


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a SQLite ledger may be, for what only SQLite has."""
    return tmp_path / "ledger.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where an empty ledger is: its file, or the address of its database."""
    if request.param == "sqlite":
        return blank_ledger(tmp_path / "ledger.db")
    return request.getfixturevalue("postgres").ledger()


@pytest.fixture
def ledger(place: Path | str) -> Iterator[Ledger]:
    opened = Ledger.open(place)
    yield opened
    opened.close()


@pytest.fixture
async def writer(ledger: Ledger) -> AsyncIterator[Writer]:
    """The ledger's writer, started."""
    made = ledger.writer()
    made.start()
    yield made
    await made.close()
