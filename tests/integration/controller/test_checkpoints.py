"""Checkpoints: which are kept, and going on from one."""

import asyncio

import pytest

from gpuyard.domain import wire
from gpuyard.domain.errors import NotFoundError, ProviderError, RefusedError
from gpuyard.storage.blobs import BlobStore, BucketError
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


def kept(yard: Controlled, job_id: str) -> list[str]:
    return [row["path"] for row in yard.ledger.queries.checkpoints_of(job_id) if row["kept"]]


async def interrupted(yard: Controlled, *steps: int, **fields) -> str:
    """A job that saved a checkpoint at each of `steps` and was then cancelled."""
    job_id = await yard.submit(**fields)
    await yard.until(job_id, "running")
    for step in steps:
        await yard.save(job_id, f"out/step-{step}.pt", step=step)
    await yard.settled()
    await yard.cancel(job_id)
    await yard.until(job_id)
    return job_id


async def resumed_from(yard: Controlled, job_id: str) -> tuple[str | None, str | None]:
    """What the new attempt of a resumed job is told to go on from: a file name, and the ledger's path of it."""
    attempt_id = await yard.begun(job_id)
    await yard.until(job_id, "running")
    attempt = next(row for row in yard.attempts(job_id) if row["id"] == attempt_id)
    row = yard.ledger.queries.checkpoint(attempt["resumed_from"] or "")
    options = yard.host.attempts[attempt_id].config.provider_options
    if row:
        assert options["resume_sha256"] == row["sha256"]
        assert yard.blobs.has(row["sha256"])
    return options.get("resume_name"), row["path"] if row else None


async def test_a_checkpoint_is_listed_with_its_step_size_and_time(yard: Controlled):
    job_id = await yard.submit()
    sha256 = await yard.save(job_id, "out/a.pt", b"weights", step=10)
    (row,) = yard.ledger.queries.checkpoints_of(job_id)
    assert (row["path"], row["step"], row["size"], row["sha256"], row["kept"]) == ("out/a.pt", 10, 7, sha256, True)
    assert row["attempt_id"] == yard.attempts(job_id)[0]["id"]


async def test_a_checkpoint_that_is_told_twice_is_one(yard: Controlled):
    job_id = await yard.submit()
    await yard.save(job_id, "out/a.pt", step=10)
    report = await said_again(yard, job_id)
    assert kept(yard, job_id) == ["out/a.pt"]
    assert report.step == 10


async def said_again(yard: Controlled, job_id: str):
    """The host repeats its last report after a broken link, as one that was never acknowledged."""
    row = yard.ledger.queries.checkpoints_of(job_id)[-1]
    body = wire.CheckpointSaved(
        row["attempt_id"], row["path"], row["sha256"], row["size"], row["created_at"], row["step"]
    )
    await yard.provider.leave("node_1")
    yard.host.say(body)
    await yard.provider.join("node_1")
    return body


async def test_the_newest_are_kept_and_the_blobs_of_the_others_are_deleted(yard: Controlled):
    job_id = await yard.submit()
    blobs = [await yard.save(job_id, f"out/{step}.pt", step=step) for step in range(5)]
    await yard.settled()
    assert kept(yard, job_id) == ["out/3.pt", "out/4.pt"]
    await eventually(
        lambda: [yard.blobs.has(blob) for blob in blobs] == [False] * 3 + [True] * 2, "blobs to be deleted"
    )


async def test_a_blob_that_cannot_be_deleted_is_tried_again(yard: Controlled, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpuyard.controller.reports._DELETE_AGAIN_S", 0.01)
    delete, tries = BlobStore.delete, []

    def away(store: BlobStore, sha256: str) -> None:
        tries.append(sha256)
        if len(tries) < 4:
            raise BucketError("The bucket does not answer.")
        delete(store, sha256)

    monkeypatch.setattr(BlobStore, "delete", away)
    job_id = await yard.submit()
    blobs = [await yard.save(job_id, f"out/{step}.pt", step=step) for step in range(3)]
    await eventually(lambda: not yard.blobs.has(blobs[0]), "the oldest to be deleted in the end")
    await yard.settled()
    assert tries == [blobs[0]] * 4


async def test_one_that_cannot_be_fetched_for_the_moment_costs_no_retry(yard: Controlled):
    """What the agent says of it is what an engine's provider says by its error."""
    job_id = await interrupted(yard, 10, 20)
    await yard.resume(job_id, "10")
    for _ in range(3):
        await yard.finish(job_id, reason="storage_unreachable", message="The bucket does not answer.")
        await eventually(lambda: yard.job(job_id)["state"] != "queued", "another attempt")
    await yard.begun(job_id)
    yard.host.refuse_with = BucketError("The bucket does not answer.")
    before = yard.job(job_id)["attempts"]
    await yard.finish(job_id, reason="storage_unreachable")
    await eventually(lambda: yard.job(job_id)["attempts"] > before + 2, "tries")
    yard.host.refuse_with = None
    assert await resumed_from(yard, job_id) == ("step-10.pt", "out/step-10.pt")
    await yard.finish(job_id)
    row = await yard.until(job_id)
    assert (row["state"], row["failures"]) == ("completed", 0)
    assert {attempt["reason"] for attempt in yard.attempts(job_id)} == {"cancelled", "storage_unreachable", None}


async def test_one_that_is_gone_fails_the_job_for_good(yard: Controlled):
    job_id = await interrupted(yard, 10, retry_count=3)
    yard.host.refuse_with = ProviderError("The checkpoint cannot be read: it is gone.", "fake", "BAD_RESUME")
    await yard.resume(job_id)
    row = await yard.until(job_id)
    assert (row["state"], row["reason"], row["attempts"]) == ("failed", "bad_resume", 2)
    assert "it is gone" in yard.attempts(job_id)[-1]["message"]


async def test_a_blob_that_another_checkpoint_needs_is_left(yard: Controlled):
    one, two = await yard.submit(), await yard.submit()
    shared = await yard.save(one, "a.pt", b"the same bytes")
    assert await yard.save(two, "b.pt", b"the same bytes") == shared
    for step in range(3):
        await yard.save(one, f"{step}.pt")
    await yard.settled()
    assert "a.pt" not in kept(yard, one)
    assert yard.blobs.has(shared)
    for step in range(3):
        await yard.save(two, f"x{step}.pt")
    await yard.settled()
    assert not yard.blobs.has(shared)


async def test_resume_goes_on_from_the_newest(yard: Controlled):
    job_id = await interrupted(yard, 10, 20, checkpoint={"path": "out/*.pt"})
    await yard.resume(job_id)
    assert await resumed_from(yard, job_id) == ("step-20.pt", "out/step-20.pt")
    await yard.finish(job_id)
    row = await yard.until(job_id)
    assert (row["state"], row["attempts"]) == ("completed", 2)


@pytest.mark.parametrize("name", ["out/step-10.pt", "step-10.pt", "10"])
async def test_resume_goes_on_from_a_named_one(yard: Controlled, name):
    job_id = await interrupted(yard, 10, 20)
    await yard.resume(job_id, name)
    assert await resumed_from(yard, job_id) == ("step-10.pt", "out/step-10.pt")


async def test_resume_goes_on_from_one_named_by_its_id(yard: Controlled):
    job_id = await interrupted(yard, 10, 20)
    await yard.resume(job_id, yard.ledger.queries.checkpoints_of(job_id)[0]["id"])
    assert await resumed_from(yard, job_id) == ("step-10.pt", "out/step-10.pt")


async def test_a_job_without_checkpoints_starts_anew(yard: Controlled):
    job_id = await interrupted(yard)
    await yard.resume(job_id)
    assert await resumed_from(yard, job_id) == (None, None)


async def test_a_retry_goes_on_from_the_newest_too(yard: Controlled):
    job_id = await yard.submit(retry_count=1)
    await yard.save(job_id, "out/step-5.pt", step=5)
    await yard.finish(job_id, exit_code=1)
    await eventually(lambda: yard.job(job_id)["failures"] == 1)
    assert await resumed_from(yard, job_id) == ("step-5.pt", "out/step-5.pt")


async def test_an_unknown_or_pruned_checkpoint_is_named_with_those_there_are(yard: Controlled):
    job_id = await interrupted(yard, 1, 2, 3)
    for name in ("step-1.pt", "99", "ckpt_0"):
        with pytest.raises(NotFoundError, match=rf"no checkpoint '{name}'. Kept: out/step-2.pt, out/step-3.pt"):
            await yard.resume(job_id, name)
    assert yard.job(job_id)["state"] == "cancelled"


async def test_what_cannot_be_resumed_is_refused(yard: Controlled):
    job_id = await yard.submit()
    await yard.until(job_id, "running")
    with pytest.raises(RefusedError, match="only a job that is over"):
        await yard.resume(job_id)
    await yard.finish(job_id)
    await yard.until(job_id)
    with pytest.raises(RefusedError, match="has completed: there is nothing left to resume"):
        await yard.resume(job_id)


async def test_two_resumes_at_once_make_one_attempt(yard: Controlled):
    job_id = await interrupted(yard, 1)
    answers = await asyncio.gather(*(yard.resume(job_id) for _ in range(4)), return_exceptions=True)
    assert sorted(map(str, map(type, answers))).count(str(type(None))) == 1
    await yard.finish(job_id)
    assert (await yard.until(job_id))["attempts"] == 2
