"""Whatever befalls one class, the numbers of another are what they are without it."""

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.config.verification import VerificationPolicy
from gpuyard.verification.batch_samples import take_samples_by_class
from gpuyard.verification.classes import Class
from gpuyard.verification.clock import cancelled
from gpuyard.verification.database import Database
from gpuyard.verification.metrics import ClassFigures, figures
from gpuyard.verification.pipelines.dispatcher import PIPELINES, Dispatcher
from gpuyard.verification.records import Records
from gpuyard.verification.records.events import EventSubtype, PipelineEventKind
from tests.support.verification import A, B, BrokenStore, LocalTrusted, make_context
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
QUICK = VerificationPolicy(
    max_series=18,
    series_per_run=6,
    target=12,
    generate_every_s=0.03,
    sample_every_s=0.03,
    answer_every_s=0.03,
    evict_every_s=0.03,
    step_limit_s=20,
    lease_s=60,
)
Harm = Callable[[LocalTrusted, BrokenStore], None]


def dies(trusted: LocalTrusted, blobs: BrokenStore) -> None:
    trusted.dead = True


def hangs(trusted: LocalTrusted, blobs: BrokenStore) -> None:
    trusted.hanging = True


def makes_series_that_are_too_short(trusted: LocalTrusted, blobs: BrokenStore) -> None:
    trusted.shorter_by = 20


def has_storage_that_fails(trusted: LocalTrusted, blobs: BrokenStore) -> None:
    blobs.breaks = lambda content: b"practice-12" in content


def raises_what_nobody_expects(trusted: LocalTrusted, blobs: BrokenStore) -> None:
    def forgets(prompt: str) -> bool:
        raise ZeroDivisionError

    trusted.forgets = forgets


async def figures_of_b(
    records: Records, folder: Path, classes: list[Class], harm: Harm | None
) -> ClassFigures:
    """B's figures when it has all it wants, with class A beside it as far as A
    comes.
    """
    trusted_a = LocalTrusted(A)
    trusted_b = LocalTrusted(B)
    blobs = BrokenStore(folder, lambda content: False)
    context = make_context(records, blobs, trusted_a, trusted_b, policy=QUICK)
    if harm:
        harm(trusted_a, blobs)
    running = asyncio.create_task(Dispatcher(context, classes).run())
    try:
        await eventually(lambda: _rests(records), "class B to have its samples", 90)
        if A in classes:
            await eventually(
                lambda: _has_suffered(records, harm), "class A to have come to harm", 90
            )
    finally:
        await cancelled(running)
    batch = records.new_batch("me")
    taken = await take_samples_by_class(context, dict.fromkeys(classes, 7), batch)
    assert len(taken[B]) == 7
    if harm:
        assert taken[A] == []
    return next(one for one in figures(records) if one.gpu_class == B)


def _has_suffered(records: Records, harm: Harm | None) -> bool:
    told = {event.subtype for event in records.events(A)}
    return bool(
        told
        if harm in (None, hangs)
        else told & {EventSubtype.FAILURE, EventSubtype.ERROR_UPLOADING}
    )


def _rests(records: Records) -> bool:
    counts = records.counts(B)
    return counts.series == 18 and counts.ready == 12


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> ClassFigures:
    """B's figures where there is no other class."""
    folder = tmp_path_factory.mktemp("alone")
    records = Records(Database.open(folder / "verification.db"))
    return asyncio.run(figures_of_b(records, folder / "blobs", [B], None))


@pytest.mark.parametrize(
    "harm",
    [
        dies,
        hangs,
        makes_series_that_are_too_short,
        has_storage_that_fails,
        raises_what_nobody_expects,
    ],
    ids=lambda harm: harm.__name__,
)
async def test_a_class_that_breaks_leaves_the_other_as_it_is(
    alone: ClassFigures, tmp_path: Path, harm: Harm
):
    beside = Records(Database.open(tmp_path / "verification.db"))
    found = await figures_of_b(beside, tmp_path / "beside", [A, B], harm)
    figures_alike = ("series", "used", "ready", "waiting", "retired")
    assert [getattr(found, name) for name in figures_alike] == [
        getattr(alone, name) for name in figures_alike
    ]
    assert not {event.subtype for event in beside.events(B)} & {
        EventSubtype.FAILURE,
        EventSubtype.ERROR_UPLOADING,
    }
    assert beside.counts(A).ready == 0


async def test_sound_classes_of_different_size_fill_side_by_side(
    records: Records, tmp_path: Path
):
    trusted_a = LocalTrusted(A)
    trusted_b = LocalTrusted(B)
    context = make_context(
        records,
        BrokenStore(tmp_path / "b", lambda c: False),
        trusted_a,
        trusted_b,
        policy=QUICK,
    )
    dispatcher = Dispatcher(context, [A, B])
    for _ in range(4):
        outcomes = await asyncio.gather(dispatcher.once(A), dispatcher.once(B))
    assert [set(one) for one in outcomes] == [
        set(PipelineEventKind) - {PipelineEventKind.BATCH}
    ] * 2
    taken = await take_samples_by_class(
        context, {A: 12, B: 12}, records.new_batch("me")
    )
    assert {
        cls: (len(found), len(found[0].series)) for cls, found in taken.items()
    } == {A: (12, 12), B: (12, 6)}
    assert trusted_a.most_at_once == trusted_b.most_at_once == 1


def test_every_pipeline_takes_one_class():
    for pipeline in PIPELINES:
        assert list(inspect.signature(pipeline.run).parameters) == ["context", "cls"]
