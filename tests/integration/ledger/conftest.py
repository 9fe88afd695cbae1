"""A real SQLite ledger in a folder of the test's own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.writer import Writer


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(path)
    yield opened
    opened.close()


@pytest.fixture
async def writer(ledger: Ledger) -> AsyncIterator[Writer]:
    """The ledger's writer, started."""
    made = ledger.writer()
    made.start()
    yield made
    await made.close()
