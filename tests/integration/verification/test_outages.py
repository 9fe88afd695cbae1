"""What goes on while PostgreSQL is away for a moment, and how it ends when it stays
away.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpuyard.storage.blobs import BlobStore
from gpuyard.verification.context import Context, LeaseLost, leased
from gpuyard.verification.database import Database, DatabaseError
from gpuyard.verification.pipelines.dispatcher import PIPELINES, Dispatcher
from gpuyard.verification.protocol import Message, OrderDocument, Ready
from gpuyard.verification.records import Records
from tests.support.executors import Executors, Honest, executor, make_batch
from tests.support.postgres import PostgresServer, running_server
from tests.support.verification import (
    SMALL,
    B,
    HandClock,
    LocalTrusted,
    make_context,
    stock,
)
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
RENEWAL_S = SMALL.lease_s / 3


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def away(server: PostgresServer) -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    yield server
    server.stop(signal.SIGQUIT)
    server.start()


@pytest.fixture
def place(away: PostgresServer) -> str:
    return away.create()


@pytest.fixture
def context(records: Records, blobs: BlobStore, clock: HandClock) -> Context:
    return make_context(records, blobs, LocalTrusted(B), clock=clock)


async def renew(clock: HandClock) -> None:
    """Let the time come when a lock is renewed, and wait until that was tried."""
    clock.advance(RENEWAL_S)
    await eventually(lambda: clock.waits == [RENEWAL_S], "the next renewal")


async def test_a_lock_outlasts_an_outage_that_is_shorter(
    context: Context, records: Records, clock: HandClock, away: PostgresServer
):
    finish = asyncio.Event()

    async def work() -> str:
        await finish.wait()
        return "done"

    task = asyncio.create_task(leased(context, "x", work))
    await eventually(lambda: clock.waits == [RENEWAL_S], "the lock")
    away.stop(signal.SIGQUIT)
    await renew(clock)
    away.start()
    await renew(clock)
    assert not records.lease("x", "other", 1), "it is held"
    finish.set()
    assert await task == "done"
    assert records.lease("x", "other", 1), "it was let go"


async def test_a_lock_is_lost_before_another_can_have_it(
    context: Context, clock: HandClock, away: PostgresServer
):
    task = asyncio.create_task(leased(context, "x", asyncio.Event().wait))
    await eventually(lambda: clock.waits == [RENEWAL_S], "the lock")
    away.stop(signal.SIGQUIT)
    await renew(clock)
    clock.advance(RENEWAL_S)
    with pytest.raises(LeaseLost) as lost:
        await asyncio.wait_for(task, 30)
    assert isinstance(lost.value.__cause__, DatabaseError)


async def test_what_is_done_is_not_lost_with_its_lock(
    context: Context, clock: HandClock, away: PostgresServer
):
    async def work() -> str:
        away.stop(signal.SIGQUIT)
        return "done"

    assert await leased(context, "x", work) == "done"
    away.start()
    away.stop(signal.SIGQUIT)
    with pytest.raises(DatabaseError):
        await leased(context, "x", work)
    away.start()
    # The clock stands still: it is released now, and did not expire.
    assert await leased(context, "x", work) == "done"


async def test_pipelines_go_on_soon_after_an_outage(
    context: Context, records: Records, clock: HandClock, away: PostgresServer
):
    away.stop(signal.SIGQUIT)
    with pytest.raises(DatabaseError):
        await Dispatcher(context, [B]).turn(PIPELINES[0], B)
    running = asyncio.create_task(Dispatcher(context, [B], PIPELINES[:1]).run())
    try:
        await eventually(lambda: clock.waits == [30], "the next turn")
        away.start()
        clock.advance(30)
        await eventually(lambda: clock.waits == [SMALL.generate_every_s], "the turn")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert records.series_count(B) == SMALL.series_per_run


async def test_a_turn_that_loses_its_lock_has_another_soon(
    records: Records, blobs: BlobStore, clock: HandClock, away: PostgresServer
):
    trusted = LocalTrusted(B)
    trusted.hanging = True
    context = make_context(records, blobs, trusted, clock=clock)
    with capture_logs() as logs:
        running = asyncio.create_task(Dispatcher(context, [B], PIPELINES[:1]).run())
        try:
            await eventually(
                lambda: trusted.at_once == 1 and len(clock.waits) == 3,
                "the executor to hang",
            )
            away.stop(signal.SIGQUIT)
            clock.advance(RENEWAL_S)
            await eventually(lambda: len(clock.waits) == 3, "the next renewal")
            clock.advance(RENEWAL_S)
            # The turn loses its lock, or its step cannot write that it lost its own:
            # which of the two comes first is open.
            await eventually(lambda: clock.waits == [30], "the next turn")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert logs == [], "it is nobody's fault"


class Hangs(Honest):
    """Hears the seed, and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        self.began.set()
        await asyncio.Event().wait()
        yield Ready()


async def test_a_batch_that_is_called_off_ends_without_its_database(
    context: Context,
    records: Records,
    blobs: BlobStore,
    tmp_path: Path,
    away: PostgresServer,
    place: str,
):
    stock(records, blobs, B, workloads=1)
    hangs = Hangs()
    executors = Executors(a=hangs)
    batch = make_batch(context, executors, [B], tmp_path)
    task = asyncio.create_task(batch.run([executor("a", B)]))
    await asyncio.wait_for(hangs.began.wait(), 30)
    away.stop(signal.SIGQUIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    assert [channel.closed for channel in executors.channels] == [True]
    away.start()
    assert [row["id"] for row in Records(Database.open(place)).open_batches()] == [
        batch.id
    ], "for the next one to end"
