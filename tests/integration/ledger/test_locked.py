"""Another program holds SQLite's lock."""

import asyncio
from pathlib import Path

import pytest

from gpuyard.domain.errors import LedgerBusyError
from gpuyard.ledger.ledger import Ledger
from tests.support.ledger import holding, node_event
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def test_a_write_waits_for_a_short_lock_and_the_loop_does_not(path: Path) -> None:
    ledger = Ledger.open(path)
    writer = ledger.writer()
    writer.start()
    with holding(path, "BEGIN EXCLUSIVE") as holder:
        writer.add_events([node_event(1)])
        waiting = asyncio.ensure_future(writer.committed())
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not waiting.done()
        holder.kill()
        await waiting
    assert ledger.queries.last_seq() == 1
    await writer.close()
    ledger.close()


async def test_a_write_is_refused_while_a_lock_stays(path: Path) -> None:
    ledger = Ledger.open(path)
    reloaded: list[int] = []
    writer = ledger.writer(on_failure=lambda: reloaded.append(1))
    writer.start()
    with holding(path, "BEGIN EXCLUSIVE") as holder:
        for number in range(2):
            writer.add_events([node_event(number)])
            with pytest.raises(LedgerBusyError, match=r"holds the ledger .* locked"):
                await writer.committed()
        assert not reloaded
        holder.kill()
    await eventually(lambda: bool(reloaded), "the writer to find the lock gone")
    writer.add_events([node_event(3)])
    await writer.committed()
    assert ledger.queries.last_seq() == 1
    await writer.close()
    ledger.close()


async def test_a_read_is_refused_while_nobody_may_read(path: Path) -> None:
    Ledger.open(path).close()
    ledger = Ledger.open(path)
    ledger.engine.dispose()
    alone = ("PRAGMA locking_mode=EXCLUSIVE", "BEGIN EXCLUSIVE", "COMMIT")
    with holding(path, *alone), pytest.raises(LedgerBusyError):
        ledger.queries.last_seq()
    assert ledger.queries.last_seq() == 0
    ledger.close()
