"""The reserve on a disk that is really full: what must be written is, for as long as
the reserve lasts.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.domain.errors import DiskFullError, LedgerError
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.reserve import STEP_BYTES, Reserve
from tests.support.ledger import failing_commits, node_event
from tests.support.tmpfs import fill, small_disk

pytestmark = pytest.mark.anyio
SIZE = 2 * STEP_BYTES


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "24m") as mounted:
        yield mounted


@pytest.fixture
def reserve(disk: Path) -> Reserve:
    made = Reserve(disk / "reserve", SIZE)
    made.fill()
    return made


def taken(disk: Path) -> int:
    """What the reserve takes of the disk."""
    return (disk / "reserve").stat().st_blocks * 512


async def test_a_full_disk_takes_what_must_be_written_and_then_refuses_it(
    disk: Path, reserve: Reserve
) -> None:
    ledger = Ledger.open(disk / "ledger.db", reserve)
    writer = ledger.writer()
    writer.start()
    ballast = disk / "ballast"
    for part in range(2):
        fill(ballast)  # as a job does that takes whatever is free
        while taken(disk) > SIZE - (part + 1) * STEP_BYTES:
            writer.add_events([node_event(part, reason="x" * 10_000)])
            await writer.committed()
        assert reserve.is_spent
    fill(ballast)
    with pytest.raises(DiskFullError):
        for number in range(3000):
            writer.add_events([node_event(number, reason="y" * 10_000)])
            await writer.committed()

    ballast.unlink()
    reserve.fill()
    assert (taken(disk), reserve.is_spent) == (SIZE, False)
    writer.add_events([node_event(9)])
    await writer.committed()
    await writer.close()
    ledger.close()


async def test_nothing_is_given_back_for_other_faults(
    disk: Path, reserve: Reserve
) -> None:
    ledger = Ledger.open(disk / "ledger.db", reserve)
    writer = ledger.writer()
    writer.start()
    with failing_commits(ledger.engine, "disk I/O error") as failed:
        writer.add_events([node_event(1)])
        with pytest.raises(LedgerError, match="the disk fails"):
            await writer.committed()
    assert (len(failed), taken(disk)) == (1, SIZE)
    await writer.close()
    ledger.close()


def test_it_is_made_only_where_as_much_stays_free(disk: Path) -> None:
    (disk / "ballast").write_bytes(b"x" * (10 << 20))
    reserve = Reserve(disk / "reserve", SIZE)
    reserve.fill()
    assert not list(disk.glob("reserve*"))
    assert not reserve.is_spent


def test_a_server_that_starts_on_a_full_disk_has_room(
    disk: Path, reserve: Reserve
) -> None:
    fill(disk / "ballast")
    again = Reserve(disk / "reserve", SIZE)
    assert not again.is_spent
    again.make_room()
    assert (again.is_spent, taken(disk)) == (True, SIZE - STEP_BYTES)
    Ledger.open(disk / "ledger.db").close()


def test_a_reserve_that_is_not_wanted_any_more_goes(
    disk: Path, reserve: Reserve
) -> None:
    Reserve(disk / "reserve", 0).fill()
    assert not (disk / "reserve").exists()


def test_one_that_was_removed_is_made_again(disk: Path, reserve: Reserve) -> None:
    (disk / "reserve").unlink()
    reserve.fill()
    assert taken(disk) == SIZE


def test_a_larger_one_that_has_no_room_refuses_nothing(
    disk: Path, reserve: Reserve
) -> None:
    larger = Reserve(disk / "reserve", 10 * SIZE)
    larger.fill()
    assert (larger.is_spent, taken(disk)) == (False, SIZE)
