"""Artifacts in the ledger and the store: recorded once, replaced, removed."""

import hashlib
import io
import os
import time

import pytest

from gpuyard.controller import artifacts, unused_blobs
from gpuyard.domain.artifacts import ArtifactsSaved, SavedArtifact
from gpuyard.domain.errors import NotFoundError
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def leave(
    instance: Controlled, job_id: str, *problems: str, **contents: str
) -> None:
    """The agent reports files with these contents."""
    files: list[SavedArtifact] = []
    for name, text in contents.items():
        blob = instance.blobs.put(io.BytesIO(text.encode()))
        files.append(SavedArtifact(f"out/{name}", blob.sha256, blob.size))
    await instance.on_host(
        job_id,
        lambda host, i: host.say(ArtifactsSaved(i, time.time(), files, [*problems])),
    )
    await instance.settled()


def there(instance: Controlled, text: str) -> bool:
    return instance.blobs.has(hashlib.sha256(text.encode()).hexdigest())


def left(instance: Controlled, job_id: str) -> dict[str, int]:
    rows = instance.ledger.queries.artifacts_of(job_id)
    return {row["path"]: row["size"] for row in rows}


async def test_one_that_is_told_twice_is_one_and_a_later_one_takes_its_place(
    instance: Controlled,
):
    job_id = await instance.submit()
    await leave(instance, job_id, a="first", b="same")
    await leave(instance, job_id, a="first", b="same")
    assert left(instance, job_id) == {"out/a": 5, "out/b": 4}
    await leave(instance, job_id, a="second!")
    assert left(instance, job_id) == {"out/a": 7, "out/b": 4}
    await eventually(lambda: not there(instance, "first"), "its blob to go")
    assert there(instance, "same")
    await instance.finish(job_id)


async def test_what_is_left_out_is_told_as_a_warning(instance: Controlled):
    job_id = await instance.submit()
    await leave(instance, job_id, "x.pt\x1b left out")
    assert instance.job(job_id)["warnings"] == ["artifacts: x.pt left out"]
    await instance.finish(job_id)


async def test_a_path_that_leads_out_is_not_believed(instance: Controlled):
    job_id = await instance.submit()
    blob = instance.blobs.put(io.BytesIO(b"x"))
    files = [
        SavedArtifact(path, blob.sha256, 1) for path in ("../x", "/x", "a\nb", "fine")
    ]
    await instance.on_host(
        job_id, lambda host, i: host.say(ArtifactsSaved(i, time.time(), files))
    )
    await instance.settled()
    assert left(instance, job_id) == {"fine": 1}
    await instance.finish(job_id)


async def test_removing_takes_the_blob_unless_another_job_needs_it(
    instance: Controlled,
):
    job_id = await instance.submit()
    other = await instance.submit()
    await leave(instance, job_id, a="shared", b="own")
    await leave(instance, other, a="shared")
    recorder = instance.controller.reports.artifacts
    with pytest.raises(NotFoundError):
        await recorder.remove(job_id, ["out/none"])
    removed = await recorder.remove(job_id, ["out/"])
    assert [row["path"] for row in removed] == ["out/a", "out/b"]
    assert left(instance, job_id) == {}
    await eventually(lambda: not there(instance, "own"), "its blob to go")
    assert there(instance, "shared")
    await instance.finish(job_id)
    await instance.finish(other)


async def test_a_blob_that_was_stored_again_stays_until_it_can_be_named(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    job_id = await instance.submit()
    await leave(instance, job_id, a="again", b="once")
    again = hashlib.sha256(b"again").hexdigest()
    # Another job has just stored the same, and its report is on the way.
    soon = time.time() + 120
    os.utime(instance.blobs.path(again), (soon, soon))
    waited_for: list[str] = []

    async def later(_core: object, _blobs: object, sha256: str, *_: object) -> None:
        waited_for.append(sha256)

    monkeypatch.setattr(unused_blobs, "_delete_later", later)
    await instance.controller.reports.artifacts.remove(job_id, [])
    await eventually(lambda: not there(instance, "once"), "its blob to go")
    assert there(instance, "again")
    assert waited_for == [again]

    # Nobody has named it in the hour.
    monkeypatch.setattr(unused_blobs, "_NAMED_AFTER_S", -200.0)
    core = instance.controller.core
    await unused_blobs.delete_unused(core, instance.blobs, again, time.time())
    assert not there(instance, "again")
    await instance.finish(job_id)


async def test_however_many_a_node_reports_a_job_has_no_more_than_the_most(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(artifacts, "MOST_OF_JOB", 2)
    job_id = await instance.submit()
    await leave(instance, job_id, a="1", b="2", c="3")
    await leave(instance, job_id, b="again", d="4")
    assert left(instance, job_id) == {"out/a": 1, "out/b": 5}
    await instance.finish(job_id)
