"""Workspaces: their quota, and their removal with a warning first."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuyard.controller import workspaces
from gpuyard.domain.errors import RefusedError
from gpuyard.storage.workspace_use import Use, note_use, use_of
from gpuyard.storage.workspaces import Workspace
from tests.support.controlled import Controlled
from tests.support.s3 import Bucket
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
DAY_S = 86400.0


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Controlled]:
    """Its workspaces may take 1,000 bytes, those of one project more."""
    settings = {"quota_gb": 1e-6, "quotas_gb": {"vision": 1.0}}
    made = Controlled(tmp_path, workspaces=settings)
    await made.start()
    yield made
    await made.settled()
    await made.stop()


def fill(instance: Controlled, size: int, key: str = "default/corpus") -> Path:
    folder = instance.folder / "workspaces" / key
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data").write_bytes(bytes(size))
    return folder


def told(instance: Controlled) -> list[dict[str, Any]]:
    journal = instance.ledger.queries.events_after(0, 1000)
    return [
        {"kind": row["kind"], **row["info"]}
        for row in journal
        if row["kind"].startswith("workspace.")
    ]


async def accepted(instance: Controlled) -> str:
    """The id of a job that is submitted until it is not refused: a project is not
    measured for each.
    """
    while True:
        with suppress(RefusedError):
            return await instance.submit(workspace="corpus")
        await asyncio.sleep(0.01)


async def test_what_is_in_a_bucket_comes_before_a_job_and_goes_back_after_it(
    bucket: Bucket, tmp_path: Path
):
    settings = {"url": bucket.url, "quota_gb": 1e-6}
    instance = Controlled(tmp_path, workspaces=settings)
    await instance.start()
    s3 = bucket.s3.client
    s3.put_object(Bucket=bucket.name, Key="deep/er/default/corpus/data", Body=b"to be")
    job = await instance.submit(workspace="corpus")
    await instance.begun(job)
    folder = tmp_path / "workspaces/default/corpus"
    assert (folder / "data").read_bytes() == b"to be"
    (folder / "made").write_bytes(bytes(2000))
    await instance.finish(job)
    made = "deep/er/default/corpus/made"
    await eventually(lambda: made in bucket.objects(), "what it made in the bucket")
    with bucket.away():
        waits = await instance.submit(workspace="corpus")
        reasons = lambda: [row["reason"] for row in instance.attempts(waits)]  # noqa: E731
        await eventually(lambda: "storage_unreachable" in reasons(), "a failed try")
    await instance.finish(waits)
    await instance.settled()
    (folder / "later").write_bytes(b"when no job ran")
    await instance.controller.workspaces.look()
    assert "deep/er/default/corpus/later" in bucket.objects()
    with pytest.raises(RefusedError, match="The workspaces of the project default"):
        await instance.submit(workspace="corpus")
    long_ago = time.time() - 40 * DAY_S
    for path in folder.iterdir():
        os.utime(path, (long_ago, long_ago))
    note_use(folder, Use(long_ago, warned_at=long_ago, by_job=True))
    await instance.controller.workspaces.look()
    assert not folder.exists()
    assert bucket.objects() == []
    await instance.settled()
    await instance.stop()


async def test_a_link_in_place_of_a_workspace_is_not_measured(instance: Controlled):
    target = fill(instance, 10).parent
    (target / "link").symlink_to(instance.folder)
    await instance.controller.workspaces.look()
    sizes = {
        one.name: one.size for one in await instance.controller.workspaces.listing()
    }
    assert sizes == {"corpus": 10}


async def test_over_the_quota_new_jobs_are_refused_until_files_are_removed(
    small: Controlled,
):
    fill(small, 950)
    running = await small.submit(workspace="corpus")
    await small.controller.workspaces.look()
    fill(small, 2000)
    for _ in range(2):  # it is told once
        await small.controller.workspaces.look()
    with pytest.raises(RefusedError, match="The workspaces of the project default"):
        await small.submit(workspace="another")
    plain = await small.submit()
    await small.settled()
    assert [(one["kind"], one["size"]) for one in told(small)] == [
        ("workspace.nearly_full", 950),
        ("workspace.over_quota", 2000),
    ]
    assert "over it, no new jobs" in small.job(running)["warnings"][-1]
    fill(small, 10)
    again = await accepted(small)
    fill(small, 2000, "vision/corpus")
    await small.controller.workspaces.look()
    other = await small.submit(workspace="corpus", project="vision")
    for job_id in (running, plain, again, other):
        await small.finish(job_id)


async def test_the_quota_holds_from_the_first_job_after_a_start(small: Controlled):
    """A server may end when it is idle, and start with the next job."""
    fill(small, 2000)
    first = [small.submit(workspace="corpus") for _ in range(2)]
    refused = await asyncio.gather(*first, return_exceptions=True)
    assert [type(one) for one in refused] == [RefusedError, RefusedError]
    fill(small, 10)
    await small.finish(await accepted(small))


async def test_jobs_wait_once_for_workspaces_that_take_long_to_measure(
    small: Controlled, monkeypatch: pytest.MonkeyPatch
):
    seconds = 0.2
    monkeypatch.setattr(workspaces, "_FIRST_S", seconds)
    measured = asyncio.Event()

    async def slow_listing() -> list[Workspace]:
        await measured.wait()
        return []

    monkeypatch.setattr(small.controller.workspaces, "listing", slow_listing)
    began = time.monotonic()
    keys = [f"default/corpus{number}" for number in range(20)]
    await small.controller.workspaces.check(keys)
    assert seconds <= time.monotonic() - began < 10 * seconds
    measured.set()


async def test_one_that_nobody_uses_is_removed_after_a_warning(instance: Controlled):
    look = instance.controller.workspaces.look
    folder = fill(instance, 10)
    await look()
    found = use_of(folder)
    assert found is not None and found.warned_at is None
    assert found.used_at > time.time() - 60, "one from before counts as used now"

    now = time.time()
    long_ago = now - 40 * DAY_S
    os.utime(folder / "data", (long_ago, long_ago))
    note_use(folder, Use(long_ago, by_job=True))
    await look()  # a server that was off for long warns first
    await look()
    await instance.settled()
    (warning,) = told(instance)
    assert warning["kind"] == "workspace.expires"
    assert warning["workspace"] == "corpus"
    assert warning["goes_at"] == pytest.approx(now + 7 * DAY_S, abs=60)

    note_use(folder, Use(long_ago, now - 8 * DAY_S, by_job=True))
    job_id = await instance.submit(workspace="corpus")
    await look()
    assert folder.exists(), "a job uses it"
    await instance.finish(job_id)
    await instance.until(job_id)
    note_use(folder, Use(long_ago, now - 8 * DAY_S, by_job=True))
    await look()
    await instance.settled()
    assert not list(folder.parent.iterdir())
    assert [one["kind"] for one in told(instance)][1:] == ["workspace.removed"]


async def test_a_job_that_comes_at_the_last_moment_keeps_its_workspace(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    workspaces = instance.controller.workspaces
    folder = fill(instance, 10)
    now = time.time()
    os.utime(folder / "data", (now - 40 * DAY_S, now - 40 * DAY_S))
    note_use(folder, Use(now - 40 * DAY_S, now - 8 * DAY_S, by_job=True))
    goes_at = workspaces.goes_at

    def used_meanwhile(*given: Any) -> float:
        note_use(folder, Use(now, by_job=True))
        return goes_at(*given)

    monkeypatch.setattr(workspaces, "goes_at", used_meanwhile)
    await workspaces.look()
    assert folder.exists()


async def test_accounts_may_pass_through_the_folder_of_a_project(instance: Controlled):
    job_id = await instance.submit(workspace="corpus")
    await instance.finish(job_id)
    project = instance.folder / "workspaces" / "default"
    assert not project.exists(), "the agent makes it, which knows of accounts"


async def test_a_folder_that_no_job_has_used_stays(instance: Controlled):
    workspaces = instance.controller.workspaces
    folder = fill(instance, 10)
    long_ago = time.time() - 40 * DAY_S
    os.utime(folder / "data", (long_ago, long_ago))
    note_use(folder, Use(long_ago, long_ago))
    await workspaces.look()
    assert folder.exists()
    assert not told(instance)


async def test_the_first_one_of_a_project_counts_as_one_of_jobs(instance: Controlled):
    job_id = await instance.submit(workspace="corpus")
    await instance.finish(job_id)
    await instance.until(job_id)
    folder = fill(instance, 10)
    await instance.controller.workspaces.look()
    found = use_of(folder)
    assert found is not None and found.by_job


async def test_one_that_was_written_to_is_used(instance: Controlled):
    folder = fill(instance, 10)
    note_use(folder, Use(time.time() - 40 * DAY_S, time.time() - 9 * DAY_S))
    await instance.controller.workspaces.look()
    found = use_of(folder)
    assert found is not None and found.warned_at is None
    assert found.used_at > time.time() - 60
    assert not told(instance)
