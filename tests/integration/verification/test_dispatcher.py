"""The dispatcher: whose turn it is, for how long, and what is old."""

import asyncio
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuyard.storage.blobs import BlobStore
from gpuyard.verification import receipts
from gpuyard.verification.classes import TRAITS
from gpuyard.verification.clock import cancelled
from gpuyard.verification.context import Context, LeaseBusy, LeaseLost, leased
from gpuyard.verification.pipelines.dispatcher import PIPELINES, Dispatcher
from gpuyard.verification.pipelines.eviction import evict
from gpuyard.verification.pipelines.step import StepOutcome
from gpuyard.verification.prompts import keep_files
from gpuyard.verification.records import Records
from gpuyard.verification.records.events import DAY_S, EventSubtype, PipelineEventKind
from tests.support.verification import (
    SMALL,
    A,
    B,
    BrokenStore,
    HandClock,
    LocalTrusted,
    add_workload,
    make_context,
    stock,
)
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
GENERATION, SAMPLING, ANSWERING, _ = PIPELINES


@pytest.fixture
def trusted() -> LocalTrusted:
    return LocalTrusted(B)


@pytest.fixture
def context(
    records: Records, blobs: BlobStore, clock: HandClock, trusted: LocalTrusted
) -> Context:
    return make_context(records, blobs, trusted, clock=clock)


async def test_each_step_has_its_own_schedule(
    context: Context, records: Records, clock: HandClock
):
    context = replace(context, policy=SMALL.model_copy(update={"max_series": 1000}))
    running = asyncio.create_task(Dispatcher(context, [B], [GENERATION]).run())
    try:
        for number in range(1, 4):
            await eventually(
                lambda wanted=15 * number: (
                    records.series_count(B) == wanted and clock.waits == [300]
                )
            )
            clock.advance(299)
            await asyncio.sleep(0)
            assert records.series_count(B) == 15 * number
            clock.advance(1)
    finally:
        await cancelled(running)


def test_the_schedules_and_limits_are_the_policys():
    every_s = {pipeline.kind: pipeline.every_s(SMALL) for pipeline in PIPELINES}
    assert every_s == {
        PipelineEventKind.GENERATION: 300,
        PipelineEventKind.SAMPLING: 1800,
        PipelineEventKind.ANSWERING: 300,
        PipelineEventKind.EVICTION: 3600,
    }
    assert ANSWERING.limit_s(SMALL, B) == 300
    for cls, traits in TRAITS.items():
        assert (
            ANSWERING.limit_s(SMALL, cls)
            >= traits.spin_up_s + traits.prepare_s + traits.solve_s
        )


async def test_a_step_that_hangs_is_stopped_and_tried_again(
    context: Context, records: Records, clock: HandClock, trusted: LocalTrusted
):
    trusted.hanging = True
    dispatcher = Dispatcher(context, [B], [GENERATION])
    turn = asyncio.create_task(dispatcher.turn(GENERATION, B))
    await eventually(lambda: trusted.at_once == 1, "the executor to hang")
    assert await dispatcher.turn(GENERATION, B) is StepOutcome.BUSY, (
        "another server's turn"
    )
    for _ in range(int(SMALL.step_limit_s / 15)):
        # The leases of the step and of the executor are renewed all the while.
        await eventually(
            lambda: len(clock.waits) == 3 or turn.done(),
            "those who wait to sleep again",
        )
        clock.advance(15)
        assert (
            not records.lease(f"{PipelineEventKind.GENERATION} {B}", "other", 1)
            or turn.done()
        )
    assert await asyncio.wait_for(turn, 60) is StepOutcome.FAILED
    assert records.events(B)[-1].data["reason"] == "took longer than 1800 s"
    assert trusted.at_once == 0
    trusted.hanging = False
    assert await dispatcher.turn(GENERATION, B) is StepOutcome.DONE


async def test_who_loses_a_lock_stops(
    context: Context, records: Records, clock: HandClock
):
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(leased(context, "x", work))
    await asyncio.wait_for(began.wait(), 60)
    await eventually(lambda: clock.waits)
    with pytest.raises(LeaseBusy):
        await leased(context, "x", work)
    clock._at += SMALL.lease_s + 1  # as if this process had been asleep
    assert records.lease("x", "other", 1000)
    clock.advance(0)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(task, 60)
    assert not records.lease("x", "third", 1), (
        "it was not taken from the one who has it now"
    )


@pytest.mark.both_databases
async def test_a_database_that_is_gone_ends_a_turn_and_not_the_dispatcher(
    context: Context, records: Records
):
    dispatcher = Dispatcher(context, [B])
    hidden = [records.database._engine]
    records.database._engine = None  # type: ignore[assignment]
    assert set((await dispatcher.once(B)).values()) == {StepOutcome.FAILED}
    (records.database._engine,) = hidden
    assert (await dispatcher.once(B))[PipelineEventKind.GENERATION] is StepOutcome.DONE


@pytest.mark.both_databases
async def test_what_is_old_is_removed_with_its_files(
    context: Context, records: Records, blobs: BlobStore, clock: HandClock
):
    stock(records, blobs, B, workloads=2)
    stock(records, blobs, A, workloads=1)
    batch = records.new_batch("me")
    (used,) = records.take(B, 1, batch)
    records.end_batch(batch, "done")
    records.retire_series(used.series_id)
    workload = records.workload(used.workload_id)
    assert workload
    clock.advance(SMALL.keep_s)
    assert await evict(context, B) is StepOutcome.DONE
    assert records.workload(used.workload_id), "not yet"
    clock.advance(1)
    assert await evict(context, B) is StepOutcome.DONE
    assert records.events(B)[-1].data == {
        "retired": 0,
        "workloads": 1,
        "series": 0,
        "files": 1,
    }
    assert records.workload(used.workload_id) is None and not blobs.has(workload.blob)
    assert blobs.has(used.blob), "the other workload needs it"
    other = records.new_batch("me")
    assert len(records.take(B, 9, other)) == 6
    records.end_batch(other, "done")
    clock.advance(SMALL.keep_s + 1)
    assert await evict(context, B) is StepOutcome.DONE
    assert not blobs.has(used.blob)
    assert records.series_count(B) == 5, "those that are not retired stay"
    assert records.counts(A).ready == 12, "another class's are its own"
    assert await evict(context, B) is StepOutcome.DONE
    assert records.events(B)[-1].data == {
        "retired": 0,
        "workloads": 0,
        "series": 0,
        "files": 0,
    }


@pytest.mark.both_databases
async def test_what_was_never_answered_and_what_a_dead_process_left_is_retired(
    context: Context, records: Records, blobs: BlobStore, clock: HandClock
):
    stock(records, blobs, B, workloads=1)
    hidden = [(one.id, f"{place}") for place, one in enumerate(records.series(B))]
    add_workload(records, B, 1, "a" * 64, hidden)
    records.take(B, 2, records.new_batch("died"))
    (left,) = await keep_files(context, [["of a process that died before it named it"]])
    clock.advance(SMALL.keep_s + 1)
    (fresh,) = await keep_files(context, [["of one that is at it"]])
    assert await evict(context, B) is StepOutcome.DONE
    assert records.events(B)[-1].data["retired"] == 2
    assert records.unfinished(B) == records.open_batches() == []
    assert not blobs.has(left) and blobs.has(fresh)
    assert (records.counts(B).used, records.counts(B).retired) == (2, 10)


@pytest.mark.both_databases
async def test_rows_stay_until_their_files_are_gone(
    context: Context, records: Records, blobs: BlobStore, clock: HandClock
):
    class Undeletable(BrokenStore):
        def delete(self, sha256: str) -> None:
            raise OSError(30, "Read-only file system")

    stock(records, blobs, B, workloads=1)
    batch = records.new_batch("me")
    (used,) = records.take(B, 1, batch)
    records.end_batch(batch, "done")
    clock.advance(SMALL.keep_s + 1)
    fixed = replace(context, blobs=Undeletable(blobs.root, lambda content: False))
    assert await evict(fixed, B) is StepOutcome.FAILED
    assert records.workload(used.workload_id)
    assert await evict(context, B) is StepOutcome.DONE
    assert records.workload(used.workload_id) is None


@pytest.mark.both_databases
async def test_old_events_are_removed(
    context: Context, records: Records, clock: HandClock
):
    records.event(PipelineEventKind.SAMPLING, EventSubtype.SKIPPED, B)
    records.event(PipelineEventKind.SAMPLING, EventSubtype.SKIPPED, A)
    clock.advance(30 * DAY_S + 1)
    assert await evict(context, B) is StepOutcome.DONE
    assert [event.gpu_class for event in records.events()] == [
        "practice-12",
        "practice-6",
    ]


@pytest.mark.both_databases
async def test_a_receipt_is_remembered_until_it_must_have_expired(
    context: Context, records: Records, clock: HandClock
):
    key = Ed25519PrivateKey.generate()
    receipt = receipts.sign(
        receipts.Receipt(
            "r1",
            "a",
            "job",
            B.value,
            clock.now() + receipts.CLOCKS_S,
            receipts.LONGEST_S,
            "instance",
        ),
        key,
    )
    assert records.use_receipt("instance r1")
    clock.advance(receipts.LONGEST_S + receipts.CLOCKS_S)
    assert await evict(context, B) is StepOutcome.DONE
    assert not records.use_receipt("instance r1"), (
        "another server's clock may be behind"
    )
    with pytest.raises(receipts.ReceiptError, match="expired"):
        receipts.read(
            receipt,
            {"instance": key.public_key()},
            "a",
            clock.now(),
            (),
            gpu_class=B.value,
        )
    clock.advance(receipts.LONGEST_S)
    assert await evict(context, B) is StepOutcome.DONE
    assert records.use_receipt("instance r1"), "nothing of it is kept"
