"""A disk that is really full: nothing acknowledged is lost, and writing goes on when
there is room again.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpuyard.domain.errors import DiskFullError
from gpuyard.ledger.ledger import Ledger
from tests.support.ledger import node_event
from tests.support.tmpfs import fill, small_disk

pytestmark = pytest.mark.anyio


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


def numbers(ledger: Ledger) -> list[int]:
    return [row["info"]["number"] for row in ledger.queries.events_after(0, 100_000)]


async def test_what_was_acknowledged_is_kept_and_what_failed_is_not(disk: Path):
    ballast = disk / "ballast"
    ballast.write_bytes(b"\0" * 700_000)
    ledger = Ledger.open(disk / "ledger.db")
    writer = ledger.writer()
    writer.start()
    acknowledged: list[int] = []
    with pytest.raises(DiskFullError, match="the disk is full"):
        for number in range(100_000):
            writer.add_events([node_event(number, reason="x" * 2000)])
            await writer.committed()
            acknowledged.append(number)
    assert acknowledged
    assert numbers(ledger) == acknowledged

    for _ in range(3):
        writer.add_events([node_event(-1, reason="y" * 50_000)])
        with pytest.raises(DiskFullError):
            await writer.committed()
    ballast.unlink()
    writer.add_events([node_event(-2)])
    await writer.committed()
    await writer.close()
    ledger.close()

    again = Ledger.open(disk / "ledger.db")
    assert numbers(again) == [*acknowledged, -2]
    assert {node["id"] for node in again.queries.nodes()} == {
        f"node-{number:05d}" for number in [*acknowledged, -2]
    }
    with again.engine.connect() as connection:
        assert connection.execute(sa.text("PRAGMA integrity_check")).scalar() == "ok"
    again.close()


async def test_a_new_ledger_on_a_full_disk_is_one_clear_error(disk: Path):
    fill(disk / "ballast")
    with pytest.raises(
        DiskFullError, match=r"ledger\.db cannot be written: the disk is full"
    ):
        Ledger.open(disk / "ledger.db")
    (disk / "ballast").unlink()
    Ledger.open(disk / "ledger.db").close()
