"""Checkpoints: which are kept, and going on from one."""

import asyncio

import pytest

from gpuyard.domain import wire
from gpuyard.domain.errors import NotFoundError, ProviderError, RefusedError
from gpuyard.storage.blobs import BlobStore, BucketError
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


def kept(instance: Controlled, job_id: str) -> list[str]:
    return [
        row["path"]
        for row in instance.ledger.queries.checkpoints_of(job_id)
        if row["kept"]
    ]


async def interrupted(instance: Controlled, *steps: int, **fields) -> str:
    """A job that saved a checkpoint at each of `steps` and was then cancelled."""
    job_id = await instance.submit(**fields)
    await instance.until(job_id, "running")
    for step in steps:
        await instance.save(job_id, f"out/step-{step}.pt", step=step)
    await instance.settled()
    await instance.cancel(job_id)
    await instance.until(job_id)
    return job_id


async def resumed_from(
    instance: Controlled, job_id: str
) -> tuple[str | None, str | None]:
    """What the new attempt of a resumed job is told to go on from: a file name, and the
    ledger's path of it.
    """
    attempt_id = await instance.begun(job_id)
    await instance.until(job_id, "running")
    attempt = next(row for row in instance.attempts(job_id) if row["id"] == attempt_id)
    row = instance.ledger.queries.checkpoint(attempt["resumed_from"] or "")
    resume = instance.host.attempts[attempt_id].order.resume_from
    if row:
        assert resume is not None and resume.sha256 == row["sha256"]
        assert instance.blobs.has(row["sha256"])
    return resume.name if resume else None, row["path"] if row else None


async def test_a_checkpoint_is_listed_with_its_step_size_and_time(instance: Controlled):
    job_id = await instance.submit()
    sha256 = await instance.save(job_id, "out/a.pt", b"weights", step=10)
    (row,) = instance.ledger.queries.checkpoints_of(job_id)
    assert (row["path"], row["step"], row["size"], row["sha256"], row["kept"]) == (
        "out/a.pt",
        10,
        7,
        sha256,
        True,
    )
    assert row["attempt_id"] == instance.attempts(job_id)[0]["id"]


async def test_a_checkpoint_that_is_told_twice_is_one(instance: Controlled):
    job_id = await instance.submit()
    await instance.save(job_id, "out/a.pt", step=10)
    report = await said_again(instance, job_id)
    assert kept(instance, job_id) == ["out/a.pt"]
    assert report.step == 10


async def test_a_file_that_is_written_again_with_the_same_content_is_one(
    instance: Controlled,
):
    job_id = await instance.submit()
    for content, step in ((b"a", 10), (b"a", 20), (b"b", 30), (b"a", 40)):
        await instance.save(job_id, "out/ckpt.pt", content, step=step)
    await instance.save(job_id, "out/best.pt", b"a", step=50)
    await instance.settled()
    rows = instance.ledger.queries.checkpoints_of(job_id)
    assert [(row["path"], row["step"]) for row in rows] == [
        ("out/ckpt.pt", 10),
        ("out/ckpt.pt", 30),
        ("out/ckpt.pt", 40),
        ("out/best.pt", 50),
    ]


async def said_again(instance: Controlled, job_id: str):
    """The host repeats its last report after a broken link, as one that was never
    acknowledged.
    """
    row = instance.ledger.queries.checkpoints_of(job_id)[-1]
    body = wire.CheckpointSaved(
        row["attempt_id"],
        row["path"],
        row["sha256"],
        row["size"],
        row["created_at"],
        row["step"],
    )
    await instance.provider.leave("node_1")
    instance.host.say(body)
    await instance.provider.join("node_1")
    return body


async def test_the_newest_are_kept_and_the_blobs_of_the_others_are_deleted(
    instance: Controlled,
):
    job_id = await instance.submit()
    blobs = [
        await instance.save(job_id, f"out/{step}.pt", step=step) for step in range(5)
    ]
    await instance.settled()
    assert kept(instance, job_id) == ["out/3.pt", "out/4.pt"]
    await eventually(
        lambda: (
            [instance.blobs.has(blob) for blob in blobs] == [False] * 3 + [True] * 2
        ),
        "blobs to be deleted",
    )


async def test_a_blob_that_cannot_be_deleted_is_tried_again(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gpuyard.controller.unused_blobs._FIRST_PAUSE_S", 0.01)
    delete = BlobStore.delete
    tries = []

    def away(store: BlobStore, sha256: str) -> None:
        tries.append(sha256)
        if len(tries) < 4:
            raise BucketError("The bucket does not answer.")
        delete(store, sha256)

    monkeypatch.setattr(BlobStore, "delete", away)
    job_id = await instance.submit()
    blobs = [
        await instance.save(job_id, f"out/{step}.pt", step=step) for step in range(3)
    ]
    await eventually(
        lambda: not instance.blobs.has(blobs[0]), "the oldest to be deleted in the end"
    )
    await instance.settled()
    assert tries == [blobs[0]] * 4


async def test_one_that_cannot_be_fetched_for_the_moment_costs_no_retry(
    instance: Controlled,
):
    """What the agent says of it is what an external queue says by its error."""
    job_id = await interrupted(instance, 10, 20)
    await instance.resume(job_id, "10")
    for _ in range(3):
        await instance.finish(
            job_id, reason="storage_unreachable", message="The bucket does not answer."
        )
        await eventually(
            lambda: instance.job(job_id)["state"] != "queued", "another attempt"
        )
    await instance.begun(job_id)
    instance.host.refuse_with = BucketError("The bucket does not answer.")
    before = instance.job(job_id)["attempts"]
    await instance.finish(job_id, reason="storage_unreachable")
    await eventually(lambda: instance.job(job_id)["attempts"] > before + 2, "tries")
    instance.host.refuse_with = None
    assert await resumed_from(instance, job_id) == ("step-10.pt", "out/step-10.pt")
    await instance.finish(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["failures"]) == ("completed", 0)
    assert {attempt["reason"] for attempt in instance.attempts(job_id)} == {
        "cancelled",
        "storage_unreachable",
        None,
    }


async def test_one_that_is_gone_fails_the_job_for_good(instance: Controlled):
    job_id = await interrupted(instance, 10, retry_count=3)
    instance.host.refuse_with = ProviderError(
        "The checkpoint cannot be read: it is gone.", "fake", "BAD_RESUME"
    )
    await instance.resume(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["reason"], row["attempts"]) == ("failed", "bad_resume", 2)
    assert "it is gone" in instance.attempts(job_id)[-1]["message"]


async def test_a_blob_that_another_checkpoint_needs_is_left(instance: Controlled):
    one = await instance.submit()
    two = await instance.submit()
    shared = await instance.save(one, "a.pt", b"the same bytes")
    assert await instance.save(two, "b.pt", b"the same bytes") == shared
    for step in range(3):
        await instance.save(one, f"{step}.pt")
    await instance.settled()
    assert "a.pt" not in kept(instance, one)
    assert instance.blobs.has(shared)
    for step in range(3):
        await instance.save(two, f"x{step}.pt")
    await instance.settled()
    assert not instance.blobs.has(shared)


async def test_resume_goes_on_from_the_newest(instance: Controlled):
    job_id = await interrupted(instance, 10, 20, checkpoint={"path": "out/*.pt"})
    await instance.resume(job_id)
    assert await resumed_from(instance, job_id) == ("step-20.pt", "out/step-20.pt")
    await instance.finish(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["attempts"]) == ("completed", 2)


@pytest.mark.parametrize("name", ["out/step-10.pt", "step-10.pt", "10"])
async def test_resume_goes_on_from_a_named_one(instance: Controlled, name):
    job_id = await interrupted(instance, 10, 20)
    await instance.resume(job_id, name)
    assert await resumed_from(instance, job_id) == ("step-10.pt", "out/step-10.pt")


async def test_resume_goes_on_from_one_named_by_its_id(instance: Controlled):
    job_id = await interrupted(instance, 10, 20)
    await instance.resume(
        job_id, instance.ledger.queries.checkpoints_of(job_id)[0]["id"]
    )
    assert await resumed_from(instance, job_id) == ("step-10.pt", "out/step-10.pt")


async def test_a_job_without_checkpoints_starts_anew(instance: Controlled):
    job_id = await interrupted(instance)
    await instance.resume(job_id)
    assert await resumed_from(instance, job_id) == (None, None)


async def test_a_retry_goes_on_from_the_newest_too(instance: Controlled):
    job_id = await instance.submit(retry_count=1)
    await instance.save(job_id, "out/step-5.pt", step=5)
    await instance.finish(job_id, exit_code=1)
    await eventually(lambda: instance.job(job_id)["failures"] == 1)
    assert await resumed_from(instance, job_id) == ("step-5.pt", "out/step-5.pt")


async def test_an_unknown_or_pruned_checkpoint_is_named_with_those_there_are(
    instance: Controlled,
):
    job_id = await interrupted(instance, 1, 2, 3)
    for name in ("step-1.pt", "99", "ckpt_0"):
        with pytest.raises(
            NotFoundError,
            match=rf"no checkpoint '{name}'. Kept: out/step-2.pt, out/step-3.pt",
        ):
            await instance.resume(job_id, name)
    assert instance.job(job_id)["state"] == "cancelled"


async def test_what_cannot_be_resumed_is_refused(instance: Controlled):
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    with pytest.raises(RefusedError, match="only a job that is over"):
        await instance.resume(job_id)
    await instance.finish(job_id)
    await instance.until(job_id)
    with pytest.raises(
        RefusedError, match="has completed: there is nothing left to resume"
    ):
        await instance.resume(job_id)


async def test_two_resumes_at_once_make_one_attempt(instance: Controlled):
    job_id = await interrupted(instance, 1)
    answers = await asyncio.gather(
        *(instance.resume(job_id) for _ in range(4)), return_exceptions=True
    )
    assert sorted(map(str, map(type, answers))).count(str(type(None))) == 1
    await instance.finish(job_id)
    assert (await instance.until(job_id))["attempts"] == 2


async def resumed_at(instance: Controlled, *steps: int) -> str:
    """A job that was cancelled at step 160, resumed, and then prints these steps."""
    job_id = await interrupted(instance, 140, 160)
    await instance.resume(job_id)
    await instance.until(job_id, "running")
    for step in steps:
        await instance.progress(job_id, step)
    await instance.settled()
    return job_id


async def test_a_program_that_begins_anew_after_a_resume_is_told_once(
    instance: Controlled,
) -> None:
    job_id = await resumed_at(instance, 0, 10, 20, 30)
    (warning,) = instance.job(job_id)["warnings"]
    assert warning.startswith("attempt 2 was to resume from step 160, but")
    journal = instance.ledger.queries.events_after(0, 1000)
    (event,) = [row for row in journal if row["kind"] == "job.began_anew"]
    assert (event["info"]["step"], event["info"]["checkpoint_step"]) == (10, 160)


@pytest.mark.parametrize("steps", [(160, 170), (150, 155, 160), (0, 160), (170,), (0,)])
async def test_a_program_that_resumes_or_may_do_so_is_not_warned_of(
    instance: Controlled, steps: tuple[int, ...]
) -> None:
    job_id = await resumed_at(instance, *steps)
    assert not instance.job(job_id)["warnings"]


async def test_a_program_that_begins_anew_removes_no_better_checkpoint(
    instance: Controlled,
) -> None:
    keep = instance.settings.node.keep_checkpoints
    steps = [100 + 10 * number for number in range(keep)]
    job_id = await interrupted(instance, *steps)
    await instance.resume(job_id)
    await instance.until(job_id, "running")
    better = [f"out/step-{step}.pt" for step in steps]
    for step in range(10, 20):
        await instance.save(job_id, f"out/step-{step}.pt", step=step)
    await instance.settled()
    newest = [f"out/step-{step}.pt" for step in range(20 - keep, 20)]
    assert kept(instance, job_id) == better + newest
    await instance.save(job_id, "out/step-500.pt", step=500)
    await instance.settled()
    assert kept(instance, job_id) == [*newest[1:], "out/step-500.pt"]
