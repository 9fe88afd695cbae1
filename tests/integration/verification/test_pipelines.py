"""Generation, sampling and answering of one class: what they make, and when they hold
back.
"""

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import IO, Any

import pytest

from gpuyard.config.verification import VerificationPolicy
from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.streams import Blob
from gpuyard.verification.batch_samples import take_samples, take_samples_by_class
from gpuyard.verification.classes import Class
from gpuyard.verification.context import Context, with_trusted
from gpuyard.verification.pipelines.answering import answer
from gpuyard.verification.pipelines.generation import generate
from gpuyard.verification.pipelines.sampling import sample
from gpuyard.verification.pipelines.step import StepOutcome
from gpuyard.verification.records import Records
from gpuyard.verification.records.events import PipelineEvent, PipelineEventKind
from gpuyard.verification.tables import prompts, samples, series
from gpuyard.verification.trusted_executor import TrustedExecutor
from tests.support.verification import (
    SMALL,
    A,
    B,
    BrokenStore,
    HandClock,
    LocalTrusted,
    add_workload,
    answer_to,
    make_context,
    stock,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def trusted(clock: HandClock) -> LocalTrusted:
    return LocalTrusted(B, clock)


@pytest.fixture
def context(
    records: Records, blobs: BlobStore, clock: HandClock, trusted: LocalTrusted
) -> Context:
    """A class B with a trusted executor, and a class A without."""
    return make_context(records, blobs, trusted, clock=clock)


def told(
    records: Records, kind: PipelineEventKind, cls: Class = B
) -> list[tuple[str, Any]]:
    """What a pipeline of a class told, as (subtype, data)."""
    return [
        (event.subtype, event.data)
        for event in records.events(cls)
        if event.kind == kind
    ]


def last(records: Records, cls: Class = B) -> PipelineEvent:
    return records.events(cls)[-1]


async def fill(context: Context, cls: Class = B) -> None:
    """As many series as there may be."""
    while await generate(context, cls) is StepOutcome.DONE:
        pass
    assert context.records.series_count(cls) == context.policy.max_series


@pytest.mark.both_databases
async def test_from_nothing_to_samples_that_are_ready(
    context: Context, records: Records, trusted: LocalTrusted
):
    assert await generate(context, B) is StepOutcome.DONE
    assert records.series_count(B) == 15
    assert await sample(context, B) is StepOutcome.SKIPPED
    await fill(context)
    assert await sample(context, B) is StepOutcome.DONE
    assert (records.counts(B).ready, records.counts(B).waiting) == (0, 12)
    assert await answer(context, B) is StepOutcome.DONE
    assert (records.counts(B).ready, records.counts(B).waiting) == (12, 0)
    assert told(records, PipelineEventKind.SAMPLING)[1:] == [
        ("STARTED", {"workloads": 2}),
        ("NEW_WORKLOADS_CREATED", {"workloads": 2, "samples": 12}),
        ("SUCCESS", {"workloads": 2, "wanted": 2}),
    ]
    assert told(records, PipelineEventKind.ANSWERING) == [
        ("STARTED", {"workloads": 2}),
        ("SUCCESS", {"answered": 2, "waiting": 0}),
    ]
    assert len(set(trusted.seeds)) == 2, "each workload has a seed of its own"
    taken = await take_samples(context, B, 12, records.new_batch("me"))
    assert len(taken) == 12
    for one in taken:
        assert len(set(one.series)) == len(one.series) == 6 and one.hidden in one.series
        assert one.answer == answer_to(one.hidden, one.seed)
        assert one.seed in trusted.seeds
    assert records.events(A) == []


@pytest.mark.both_databases
async def test_which_prompt_of_a_series_is_hidden_is_random(
    context: Context, records: Records
):
    policy = VerificationPolicy(max_series=30, series_per_run=30, target=30)
    context = replace(context, policy=policy, random=Random(5))
    await fill(context)
    await sample(context, B)
    await answer(context, B)
    taken = await take_samples(context, B, 30, records.new_batch("me"))
    assert len({one.series for one in taken}) == 30
    assert {one.series.index(one.hidden) for one in taken} == set(range(6))


async def test_generation_waits_for_answers_of_its_own_class_only(
    context: Context, records: Records, blobs: BlobStore
):
    stock(records, blobs, A, workloads=0)
    other = [(one.id, f"prompt {place}") for place, one in enumerate(records.series(A))]
    add_workload(records, A, 1, "a" * 64, other)
    assert await generate(context, B) is StepOutcome.DONE
    mine = [(one.id, f"prompt {place}") for place, one in enumerate(records.series(B))][
        :6
    ]
    workload_id = add_workload(records, B, 1, "b" * 64, mine)
    assert await generate(context, B) is StepOutcome.SKIPPED
    assert (last(records).subtype, last(records).data["workloads"]) == (
        "UNPROCESSED_WORKLOADS",
        1,
    )
    records.finish_workload(workload_id, {prompt: "x" for _, prompt in mine})
    assert await generate(context, B) is StepOutcome.DONE


@pytest.mark.both_databases
async def test_at_the_most_series_the_oldest_used_ones_make_room(
    context: Context, records: Records
):
    await fill(context)
    assert "none was used" in last(records).data["reason"]
    await sample(context, B)
    await answer(context, B)
    used = {
        one.series for one in await take_samples(context, B, 4, records.new_batch("me"))
    }
    before = {one.id for one in records.series(B)}
    assert await generate(context, B) is StepOutcome.DONE
    assert last(records).data == {"series": 4}
    after = {one.id for one in records.series(B)}
    assert len(after) == 30 and len(before - after) == len(used) == 4
    assert await generate(context, B) is StepOutcome.SKIPPED


@pytest.mark.both_databases
async def test_a_class_without_a_trusted_executor_says_so_once_a_day(
    context: Context, records: Records
):
    for _ in range(3):
        assert (
            await generate(context, A)
            is await answer(context, A)
            is StepOutcome.SKIPPED
        )
    assert [event.subtype for event in records.events(A)] == ["TRUSTED_NOT_CONFIGURED"]


async def test_a_dead_executor_is_a_failure_of_its_class(
    context: Context, records: Records, trusted: LocalTrusted
):
    trusted.dead = True
    assert await generate(context, B) is StepOutcome.FAILED
    assert "is gone" in last(records).data["reason"]
    assert records.series_count(B) == 0


async def test_whoever_keeps_a_trusted_executor_busy_is_noted_until_it_answers(
    context: Context, records: Records, trusted: LocalTrusted
):
    await fill(context)
    await sample(context, B)
    trusted.busy = True
    assert await answer(context, B) is StepOutcome.FAILED
    silence = records.trusted_silence(B)
    assert silence and (silence.times, silence.busy) == (1, True)
    assert "behind job_2" in silence.reason
    trusted.busy = False
    assert await answer(context, B) is StepOutcome.DONE
    assert records.trusted_silence(B) is None


async def test_so_is_whoever_keeps_it_from_making_prompts(
    context: Context, records: Records, trusted: LocalTrusted
):
    trusted.busy = True
    for times in (1, 2):
        assert await generate(context, B) is StepOutcome.FAILED
        silence = records.trusted_silence(B)
        assert silence and (silence.times, silence.busy) == (times, True)
    trusted.busy = False
    assert await generate(context, B) is StepOutcome.DONE
    assert records.trusted_silence(B) is None
    trusted.dead = True
    await generate(context, B)
    silence = records.trusted_silence(B)
    assert silence and (silence.times, silence.busy) == (1, False)


async def test_duplicates_are_made_up_for_by_the_surplus(
    context: Context, records: Records, trusted: LocalTrusted
):
    trusted.shorter_by = context.policy.surplus + 1  # of which one is of use
    assert await generate(context, B) is StepOutcome.DONE
    trusted.shorter_by += 1
    assert await generate(context, B) is StepOutcome.FAILED
    assert (
        "series 1 has 5 different prompts that can be used, and 6 are needed"
        in last(records).data["reason"]
    )
    assert records.series_count(B) == 15


async def test_series_that_are_sound_are_kept_when_others_are_not(
    context: Context, records: Records
):
    class Careless:
        generator_version = 9
        needs_trusted = False

        async def generate(
            self, cls: Class, count: int, series: int, trusted: TrustedExecutor | None
        ) -> Any:
            assert trusted is None
            sound = [
                [f"{number} {place}?" for place in range(count)]
                for number in range(series - 2)
            ]
            return [*sound, ["one"], sound[0]]

    assert await generate(replace(context, generator=Careless()), A) is StepOutcome.DONE
    assert records.series_count(A) == 13, "two that are the same are one"
    data = last(records, A).data
    assert (data["series"], data["left_out"]) == (13, 1)
    with records.database.reading() as tx:
        assert {row.generator_version for row in tx.execute(series.select())} == {9}


async def test_a_generator_that_breaks_every_rule_is_only_a_failure(
    context: Context, records: Records
):
    class Wild:
        generator_version = 1
        needs_trusted = False

        async def generate(
            self, cls: Class, count: int, series: int, trusted: TrustedExecutor | None
        ) -> Any:
            return 5

    assert await generate(replace(context, generator=Wild()), B) is StepOutcome.FAILED
    assert "TypeError" in last(records).data["reason"]


@pytest.mark.parametrize(("target", "gate"), [(4, 8), (100, 30), (1, 6)])
async def test_the_gate_of_sampling(
    context: Context, records: Records, target: int, gate: int
):
    """It opens at min(2 × target, max) series, and never below those that one workload
    takes.
    """
    context = replace(
        context,
        policy=SMALL.model_copy(update={"target": target, "series_per_run": gate - 1}),
    )
    await generate(context, B)
    for _ in range(2):
        assert await sample(context, B) is StepOutcome.SKIPPED
    assert told(records, PipelineEventKind.SAMPLING) == [
        (
            "INSUFFICIENT_PROMPTS",
            {
                "reason": f"there are {gate - 1} series, and {gate} are needed",
                "series": gate - 1,
                "needed": gate,
            },
        ),
    ]
    context = replace(
        context, policy=context.policy.model_copy(update={"series_per_run": 1})
    )
    await generate(context, B)
    assert await sample(context, B) is StepOutcome.DONE


@pytest.mark.both_databases
async def test_sampling_makes_what_is_missing_and_no_more(
    context: Context, records: Records
):
    await fill(context)
    assert await sample(context, B) is StepOutcome.DONE
    assert await sample(context, B) is StepOutcome.SKIPPED, "unanswered ones count"
    assert "12 unused samples" in last(records).data["reason"]
    await answer(context, B)
    records.take(B, 6, records.new_batch("me"))
    assert await sample(context, B) is StepOutcome.DONE
    assert records.samples_unused(B) == 12
    more = replace(context, policy=SMALL.model_copy(update={"target": 13}))
    assert await sample(more, B) is StepOutcome.DONE
    assert records.samples_unused(B) == 18, "workloads are whole"


async def test_what_does_not_fill_a_workload_is_not_kept(
    context: Context, records: Records, blobs: BlobStore
):
    policy = SMALL.model_copy(update={"target": 24, "max_series": 15})
    await fill(context := replace(context, policy=policy))
    assert await sample(context, B) is StepOutcome.DONE
    assert (records.samples_unused(B), len(records.unfinished(B))) == (
        12,
        2,
    ), "15 series are two workloads of 6, and 3"
    assert last(records).data == {"workloads": 2, "wanted": 4}


@pytest.mark.both_databases
async def test_a_prompt_that_two_series_share_is_drawn_once(
    context: Context, records: Records
):
    class Alike:
        generator_version = 1
        needs_trusted = False

        async def generate(
            self, cls: Class, count: int, series: int, trusted: TrustedExecutor | None
        ) -> Sequence[list[str]]:
            shared = [f"shared {place}" for place in range(5)]
            return [
                [*shared, f"own {next(numbers)}", *["?"] * (count - 6)]
                for _ in range(series)
            ]

    numbers = itertools.count()
    context = replace(context, generator=Alike())
    await fill(context)
    assert await sample(context, B) is StepOutcome.DONE
    # The fake insists on prompts that differ.
    assert await answer(context, B) is StepOutcome.DONE
    assert records.samples_ready(B) == 12


async def test_series_that_cannot_be_read_are_skipped_and_those_that_are_lost_are_retired(
    context: Context, records: Records, blobs: BlobStore
):
    await fill(context)
    gone, damaged = records.series(B)[:2]
    blobs.delete(gone.blob)
    blobs.path(damaged.blob).write_bytes(b"cut off")
    policy = SMALL.model_copy(update={"target": 28})
    assert await sample(replace(context, policy=policy), B) is StepOutcome.DONE
    assert records.samples_unused(B) == 24
    (fault,) = [
        data
        for subtype, data in told(records, PipelineEventKind.SAMPLING)
        if subtype == "ERROR_DOWNLOADING"
    ]
    assert (fault["series"], fault["retired"]) == (2, 2)
    assert records.series_count(B) == 28


async def test_when_every_file_is_gone_none_is_given_up(
    context: Context, records: Records, blobs: BlobStore
):
    """The store may only be away."""
    await fill(context)
    blobs.root.rename(away := blobs.root.with_name("away"))
    assert await sample(context, B) is StepOutcome.FAILED
    assert records.series_count(B) == 30
    shutil.rmtree(blobs.root)
    away.rename(blobs.root)
    assert await sample(context, B) is StepOutcome.DONE


async def test_a_store_that_cannot_be_used_ends_sampling_before_it_begins(
    context: Context, records: Records, blobs: BlobStore
):
    await fill(context)
    (root := blobs.root).rename(root.with_name("away"))
    root.write_text("in the way")
    assert await sample(context, B) is StepOutcome.FAILED
    assert last(records).subtype == "ERROR_DOWNLOADING"
    assert records.samples_unused(B) == 0
    batch = records.new_batch("me")
    assert await take_samples(context, B, 1, batch) == []
    root.unlink()
    root.with_name("away").rename(root)
    assert await sample(context, B) is StepOutcome.DONE


async def test_a_workload_that_cannot_be_stored_is_dropped(
    context: Context, records: Records, blobs: BlobStore
):
    await fill(context)
    faults = iter([True, False])

    class FailsOnce(BrokenStore):
        def put(self, source: IO[bytes]) -> Blob:
            # And not what checks whether the store can be used.
            is_workload = b"asks" in source.read(20)
            source.seek(0)
            if is_workload and next(faults):
                raise OSError(28, "No space left on device")
            return super().put(source)

    context = replace(context, blobs=FailsOnce(blobs.root, lambda content: False))
    assert await sample(context, B) is StepOutcome.DONE
    assert records.samples_unused(B) == 6
    assert [subtype for subtype, _ in told(records, PipelineEventKind.SAMPLING)][
        -3:
    ] == [
        "ERROR_UPLOADING",
        "NEW_WORKLOADS_CREATED",
        "SUCCESS",
    ]


async def test_a_store_that_takes_nothing_fails_generation(
    context: Context, records: Records, blobs: BlobStore
):
    context = replace(
        context, blobs=BrokenStore(blobs.root, lambda content: b"asks" in content)
    )
    assert await generate(context, B) is StepOutcome.FAILED
    assert last(records).subtype == "ERROR_UPLOADING"
    assert records.series_count(B) == 0


@pytest.mark.both_databases
async def test_missing_answers_leave_a_workload_for_its_next_turn(
    context: Context, records: Records, trusted: LocalTrusted
):
    await fill(context)
    await sample(context, B)
    first = records.unfinished(B)[0]
    (victim, *_) = await _prompts_of(records, first.id)
    trusted.forgets = lambda prompt: prompt == victim
    assert await answer(context, B) is StepOutcome.DONE
    assert [one.id for one in records.unfinished(B)] == [first.id]
    (missing,) = [
        data
        for subtype, data in told(records, PipelineEventKind.ANSWERING)
        if subtype == "ANSWERS_MISSING"
    ]
    assert missing == {"workload": first.id, "missing": 1, "of": 6}
    assert (records.counts(B).ready, records.counts(B).waiting) == (6, 6)
    assert await answer(context, B) is StepOutcome.FAILED
    trusted.forgets = lambda prompt: False
    assert await answer(context, B) is StepOutcome.DONE
    assert records.counts(B).ready == 12
    assert len(set(trusted.seeds)) == 2, "a workload keeps its seed"


async def _prompts_of(records: Records, workload_id: str) -> list[str]:
    with records.database.reading() as tx:
        wanted = (
            prompts.select().join(samples).where(samples.c.workload_id == workload_id)
        )
        return [row.content for row in tx.execute(wanted)]


async def test_no_workload_is_begun_that_would_pass_the_budget(
    context: Context, records: Records, trusted: LocalTrusted
):
    context = replace(context, policy=SMALL.model_copy(update={"target": 30}))
    await fill(context)
    await sample(context, B)
    trusted.solve_s = 100.0
    assert await answer(context, B) is StepOutcome.DONE
    # 0; 100 + 100; 200 + 100 is more than 260.
    assert last(records).data == {"answered": 2, "waiting": 3}
    trusted.solve_s = 80.0
    assert await answer(context, B) is StepOutcome.DONE
    assert last(records).data == {"answered": 3, "waiting": 0}
    assert await answer(context, B) is StepOutcome.SKIPPED


async def test_one_that_takes_longer_than_all_the_time_is_answered_alone(
    context: Context, records: Records, trusted: LocalTrusted
):
    await fill(context)
    await sample(context, B)
    trusted.solve_s = 1000.0
    assert await answer(context, B) is StepOutcome.DONE
    assert last(records).data == {"answered": 1, "waiting": 1}


async def test_an_executor_that_dies_is_not_asked_again_and_loses_nothing(
    context: Context, records: Records, trusted: LocalTrusted
):
    await fill(context)
    await sample(context, B)
    trusted.dead = True
    assert await answer(context, B) is StepOutcome.FAILED
    assert "trusted-practice-6: is gone" in last(records).data["reason"]
    assert len(records.unfinished(B)) == 2
    trusted.dead = False
    assert await answer(context, B) is StepOutcome.DONE


async def test_what_a_trusted_engine_is_is_noted_though_it_dies_later(
    context: Context, records: Records, blobs: BlobStore, trusted: LocalTrusted
):
    """Else answers of another engine would be used, and nobody would know."""
    await fill(context)
    await sample(context, B)
    trusted.runtime = {"engine": "1"}

    def dies(prompt: str) -> bool:
        trusted.dead = True
        return False

    trusted.forgets = dies
    assert await answer(context, B) is StepOutcome.FAILED
    assert records.samples_ready(B) == 6
    known = records.trusted_runtime(B)
    assert known and known.newest == {"engine": "1"}


async def test_a_workload_whose_file_is_gone_does_not_hold_up_its_class(
    context: Context, records: Records, blobs: BlobStore
):
    await fill(context)
    await sample(context, B)
    first, second = records.unfinished(B)
    blobs.delete(first.blob)
    assert await answer(context, B) is StepOutcome.DONE
    (fault,) = [
        data
        for subtype, data in told(records, PipelineEventKind.ANSWERING)
        if subtype == "ERROR_DOWNLOADING"
    ]
    assert (fault["workload"], fault["retired"]) == (first.id, True)
    assert records.unfinished(B) == []
    assert {
        one.workload_id
        for one in await take_samples(context, B, 12, records.new_batch("me"))
    } == {second.id}


@pytest.mark.both_databases
async def test_a_workload_whose_answers_no_database_keeps_does_not_hold_up_its_class(
    context: Context, records: Records, trusted: LocalTrusted
):
    await fill(context)
    await sample(context, B)
    spoilt, _sound = (one.seed for one in records.unfinished(B))
    trusted.says = lambda prompt, seed: (
        "\0" if seed == spoilt else answer_to(prompt, seed)
    )
    assert await answer(context, B) is StepOutcome.DONE
    assert records.counts(B).ready == 6
    assert records.unfinished(B) == [], "it would be answered in the same way again"
    (missing,) = [
        data
        for subtype, data in told(records, PipelineEventKind.ANSWERING)
        if subtype == "ANSWERS_MISSING"
    ]
    assert (missing["missing"], missing["retired"]) == (6, True)


async def test_one_thing_at_a_time_is_asked_of_a_trusted_executor(
    context: Context, records: Records, trusted: LocalTrusted, clock: HandClock
):
    async def meanwhile() -> None:
        assert await generate(context, B) is StepOutcome.BUSY
        assert "trusted trusted-practice-6" in last(records).data["reason"]

    await with_trusted(context, trusted, meanwhile)
    assert await generate(context, B) is StepOutcome.DONE
    assert trusted.most_at_once == 1


@pytest.mark.both_databases
async def test_samples_of_several_classes_come_as_a_map(
    context: Context, records: Records, blobs: BlobStore
):
    stock(records, blobs, A, workloads=1)
    stock(records, blobs, B, workloads=1)
    taken = await take_samples_by_class(context, {A: 3, B: 7}, records.new_batch("me"))
    assert {cls: len(found) for cls, found in taken.items()} == {A: 3, B: 6}
    assert [(event.subtype, event.gpu_class) for event in records.events()] == [
        ("INSUFFICIENT_PROMPTS", "practice-6")
    ]
    assert {len(one.series) for one in taken[A]} == {12}
    assert len({one.check_id for found in taken.values() for one in found}) == 9


@pytest.mark.both_databases
async def test_a_sample_whose_series_is_gone_is_skipped_alone(
    context: Context, records: Records, blobs: BlobStore
):
    stock(records, blobs, B, workloads=1)
    gone, damaged, *others = records.series(B)
    blobs.delete(gone.blob)
    blobs.path(damaged.blob).write_bytes(b"x\n" * 6)
    assert len(await take_samples(context, B, 6, records.new_batch("me"))) == 4
    assert records.series(B) == others
    assert (last(records).kind, last(records).subtype) == (
        "VERIFICATION_BATCH",
        "ERROR_DOWNLOADING",
    )
