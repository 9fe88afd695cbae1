"""History whose time is over goes with all that belongs to it; what is needed stays."""

import asyncio
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuyard.domain.artifacts import (
    LINKS_NOTE,
    ArtifactsSaved,
    SavedArtifact,
    links_note,
)
from gpuyard.domain.batches import BatchState
from gpuyard.domain.carried_environment import CarriedEnvironment
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.packages import PackageKind, PackageList
from gpuyard.storage.code_store import CodeMissingError
from gpuyard.storage.code_tree import CodeEntry, CodeTree
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio
# Everything that has ended is older than this.
_NOW = 1e-9
SOON = {"retention": {"jobs_days": _NOW, "keys_days": 0}}


@pytest.fixture
async def short(tmp_path: Path) -> AsyncIterator[Controlled]:
    """An instance that keeps a job for less than a millisecond after its end."""
    made = Controlled(tmp_path, **SOON)
    await made.start()
    yield made
    await made.settled()
    made.check()
    await made.stop()


async def prune(instance: Controlled) -> dict[str, int]:
    """What a pass removes."""
    await instance.settled()
    found = await instance.controller.retention.run()
    return {kind: count for kind, count in found.items() if count}


def ids(instance: Controlled) -> set[str]:
    return {row["id"] for row in instance.ledger.queries.jobs_page(limit=100)}


def series(instance: Controlled, job_id: str, *names: str) -> None:
    """Points of the job's attempt, as an agent would report them."""
    attempt = instance.attempts(job_id)[-1]["id"]
    writer = instance.core.writer
    for name in names:
        at = instance.core.clock()
        row = {"attempt_id": attempt, "job_id": job_id, "name": name, "value": 1.0}
        writer.add_points([{**row, "n": n, "step": n, "at": at} for n in range(3)])
    writer.set_progress(job_id, {"step": 3})


async def test_a_job_goes_with_everything_that_belongs_to_it(short: Controlled) -> None:
    job_id = await short.submit()
    blob = await short.save(job_id, "out/1.pt")
    series(short, job_id, "loss", "system/memory_mb")
    attempt_id = await short.finish(job_id)
    await short.until(job_id)
    output = short.folder / "logs" / "attempts" / f"{attempt_id}.log"
    output.parent.mkdir(parents=True)
    output.write_text("its output")
    times = output.with_suffix(".times")
    times.touch()
    running = await short.submit()
    await short.begun(running)
    await short.settled()
    planned = await short.controller.retention.plan()
    counts = {kind: amount.count for kind, amount in planned.items() if amount.count}
    assert counts == {
        "jobs": 1,
        "specs": 1,
        "attempts": 1,
        "checkpoints": 1,
        "checkpoint files": 1,
        "points": 6,
        "logs": 1,
    }
    assert all(amount.bytes > 0 for amount in planned.values() if amount.count)
    assert await prune(short) == {
        "jobs": 1,
        "specs": 1,
        "attempts": 1,
        "checkpoints": 1,
        "points": 6,
    }
    queries = short.ledger.queries
    assert ids(short) == {running}
    assert queries.attempts_of([job_id]) == queries.specs([job_id]) == {}
    assert queries.series(job_id) == queries.progress_of([job_id]) == {}
    assert not queries.checkpoints_of(job_id)
    assert not short.blobs.has(blob)
    assert not output.exists()
    assert not times.exists()
    assert short.provider.discarded == [("node_1", attempt_id)]
    await short.finish(running)


async def test_the_lists_of_links_go_with_their_artifacts(short: Controlled) -> None:
    job_id = await short.submit()
    blob = short.blobs.put(io.BytesIO(b"left"))
    files = [SavedArtifact("out/1", blob.sha256, blob.size)]
    await short.on_host(
        job_id, lambda host, i: host.say(ArtifactsSaved(i, short.core.clock(), files))
    )
    await short.settled()
    (row,) = short.ledger.queries.artifacts_of(job_id)
    names = (links_note(row["id"]), LINKS_NOTE)
    for name in names:
        short.core.writer.set_note(name, {"key": name})
    await short.finish(job_id)
    await short.until(job_id)
    assert (await prune(short))["artifacts"] == 1
    notes = [short.ledger.queries.note(name) for name in names]
    assert notes == [{}, {"key": LINKS_NOTE}]


async def test_a_blob_that_another_job_needs_stays(short: Controlled) -> None:
    ended = await short.submit()
    running = await short.submit()
    blob = await short.save(ended, "out/1.pt", b"the same")
    assert blob == await short.save(running, "out/2.pt", b"the same")
    await short.finish(ended)
    await short.until(ended)
    assert (await prune(short))["jobs"] == 1
    assert short.blobs.has(blob)
    await short.finish(running)


async def test_a_blob_that_is_stored_again_meanwhile_stays(short: Controlled) -> None:
    """An agent has stored the same checkpoint, and is about to report it."""
    ended = await short.submit()
    running = await short.submit()
    await short.begun(running)
    blob = await short.save(ended, "out/1.pt", b"the same")
    await short.finish(ended)
    await short.until(ended)
    soon = short.core.clock() + 120
    os.utime(short.blobs.path(blob), (soon, soon))
    assert await prune(short) == {}
    assert short.blobs.has(blob)
    assert await short.save(running, "out/2.pt", b"the same") == blob
    assert (await prune(short))["jobs"] == 1
    assert short.blobs.has(blob)
    await short.finish(running)


async def test_a_job_whose_blob_cannot_be_deleted_stays(
    short: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await short.submit()
    await short.save(job_id, "out/1.pt")
    await short.finish(job_id)
    await short.until(job_id)

    def away(_sha256: str) -> None:
        raise OSError("the bucket does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(short.blobs, "delete", away)
        assert await prune(short) == {}
    assert ids(short) == {job_id}
    assert (await prune(short))["jobs"] == 1


async def test_a_job_stays_while_others_refer_to_it(short: Controlled) -> None:
    parent = await short.submit()
    child = await short.submit(depends_on=[parent])
    worker = await short.submit()
    study = await short.submit(labels={"study": "s1"})
    for job_id in (parent, worker, study):
        await short.finish(job_id)
        await short.until(job_id)
    batch = {"state": BatchState.COMPLETED.value, "ended_at": 0.0}
    item = {"batch_id": "batch_1", "number": 0, "job_id": worker}
    changes = (
        Change(Table.BATCHES, "batch_1", {**batch, "ended_at": 1e12}),
        Change(Table.ITEMS, "batch_1_0", item),
        Change(Table.SPECS, "batch_1", {"body": {"user": "ann"}}),
    )
    short.core.emit([Event(EventKind.BATCH_SUBMITTED, 0.0, changes)])
    await short.begun(child)
    assert await prune(short) == {}
    assert ids(short) == {parent, child, worker, study}
    # The child goes before its parent, and the batch before its worker.
    await short.finish(child)
    await short.until(child)
    change = Change(Table.BATCHES, "batch_1", batch)
    short.core.emit([Event(EventKind.BATCH_CHANGED, 0.0, (change,))])
    removed = await prune(short)
    assert removed["jobs"] == 3
    assert removed["items"] == removed["batches"] == 1
    assert not short.ledger.queries.specs(["batch_1"])
    assert ids(short) == {study}


async def test_a_job_stays_while_its_key_may_come_again(tmp_path: Path) -> None:
    days = {"retention": {"jobs_days": _NOW, "keys_days": 1}}
    made = Controlled(tmp_path, **days)
    await made.start()
    keyed = await made.submit(idempotency_key="again")
    other = await made.submit()
    await made.end_all([keyed, other])
    assert (await prune(made))["jobs"] == 1
    assert ids(made) == {keyed}
    assert await made.submit(idempotency_key="again") == keyed
    await made.stop()


async def test_the_newest_jobs_stay_and_series_go_before_their_jobs(
    tmp_path: Path,
) -> None:
    limits = {"jobs_days": 0, "jobs": 2, "keys_days": 0, "usage_days": _NOW}
    made = Controlled(tmp_path, retention=limits)
    await made.start()
    jobs = [await made.submit() for _ in range(4)]
    for job_id in jobs:
        await made.begun(job_id)
        await made.settled()
        series(made, job_id, "loss", "system/memory_mb")
    await made.end_all(jobs)
    removed = await prune(made)
    assert removed["jobs"] == 2
    assert removed["usage"] == 6
    assert ids(made) == set(jobs[2:])
    assert list(made.ledger.queries.series(jobs[3])) == ["loss"]
    await made.stop()


async def test_a_kill_in_the_middle_leaves_nothing_that_is_not_found_again(
    short: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await short.submit() for _ in range(4)]
    blobs = [await short.save(job_id, f"{job_id}.pt") for job_id in jobs]
    await short.end_all(jobs)
    await short.settled()
    monkeypatch.setattr("gpuyard.controller.retention.JOBS_AT_ONCE", 1)
    deleted = []
    delete = short.blobs.delete

    def kill(sha256: str) -> None:
        delete(sha256)
        deleted.append(sha256)
        if len(deleted) == 3:
            raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(short.blobs, "delete", kill)
        with pytest.raises(RuntimeError, match="killed"):
            await short.controller.retention.run()
    await short.restart()
    short.check()
    assert len(ids(short)) == 2
    assert (await prune(short))["jobs"] == 2
    assert not any(short.blobs.has(blob) for blob in blobs)


async def test_all_who_ask_for_a_pass_at_once_are_answered(short: Controlled) -> None:
    await short.finish(await short.submit())
    await short.settled()
    retention = short.controller.retention
    answers = await asyncio.gather(*(retention.run_on_request(10) for _ in range(3)))
    assert [(done, removed["jobs"]) for done, removed in answers] == [(True, 1)] * 3


async def test_a_log_that_cannot_be_deleted_is_not_in_the_way(tmp_path: Path) -> None:
    made = Controlled(tmp_path, retention={"logs_days": 1})
    await made.start()
    logs = tmp_path / "logs" / "attempts"
    (logs / "attempt_a.log").mkdir(parents=True)
    (logs / "attempt_b.log").touch()
    for path in logs.iterdir():
        os.utime(path, (0, 0))
    assert await prune(made) == {"logs": 1}
    assert [path.name for path in logs.iterdir()] == ["attempt_a.log"]
    await made.stop()


@pytest.mark.parametrize("field", ["carried_environment", "packages"])
async def test_an_environment_goes_with_the_last_job_that_carries_it(
    short: Controlled, field: str
) -> None:
    submissions = short.controller.submissions
    digest = submissions.environments.put(CarriedEnvironment({"LR": "0.1"}))
    if field == "packages":
        files = {"requirements.txt": "numpy"}
        packages = PackageList("requirements.txt", PackageKind.REQUIREMENTS, files)
        digest = submissions.packages.put(packages)
    jobs = [await short.submit(**{field: digest}) for _ in range(2)]
    for job_id in jobs:
        await short.begun(job_id)
    file = short.folder / "environments" / digest[:2] / digest[2:]
    os.utime(file, (0, 0))
    await short.finish(jobs[0])
    await short.until(jobs[0])
    assert (await prune(short))["jobs"] == 1
    assert file.exists()
    await short.finish(jobs[1])
    await short.until(jobs[1])
    assert (await prune(short))["environments"] == 1
    assert not file.exists()


async def test_code_stays_while_there_is_a_batch_that_was_submitted_with_it(
    short: Controlled,
) -> None:
    store = short.controller.submissions.code
    digest = store.put(CodeTree([]))
    os.utime(short.folder / "code" / "trees" / digest[:2] / digest[2:], (0, 0))
    # Its id comes after those of all jobs.
    batch = {"state": BatchState.COMPLETED.value, "ended_at": 1e12}
    changes = (
        Change(Table.BATCHES, "whisper-talks", batch),
        Change(Table.SPECS, "whisper-talks", {"body": {"submitted_code": digest}}),
    )
    short.core.emit([Event(EventKind.BATCH_SUBMITTED, 0.0, changes)])
    await short.core.committed()
    assert await prune(short) == {}
    assert store.get(digest).entries == []


async def test_code_goes_with_the_last_job_that_was_submitted_with_it(
    short: Controlled,
) -> None:
    store = short.controller.submissions.code
    (sha256,) = store.put_files([b"print()"])
    entry = CodeEntry("train.py", sha256)
    digest = store.put(CodeTree([entry]))
    job_id = await short.submit(submitted_code=digest)
    await short.begun(job_id)
    for folder, name in (("trees", digest), ("files", sha256)):
        os.utime(short.folder / "code" / folder / name[:2] / name[2:], (0, 0))
    assert await prune(short) == {}
    await short.finish(job_id)
    await short.until(job_id)
    assert (await prune(short))["code"] == 1
    with pytest.raises(CodeMissingError):
        store.file(sha256)
