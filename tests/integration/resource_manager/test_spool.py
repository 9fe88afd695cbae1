"""Tasks as files: those that are written slowly, thousands at once, urgent ones that come
later, and names that leave no room for a result.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpuyard.resource_manager import spool
from gpuyard.resource_manager.spool import Spool
from tests.integration.resource_manager.conftest import Managed
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The spool's folder, which is looked at often."""
    monkeypatch.setattr(spool, "_EVERY_S", 0.01)
    root = tmp_path / "tasks"
    for folder in ("priority_1", "priority_3", "priority_5"):
        (root / "script_queue" / folder).mkdir(parents=True)
    (root / "processing").mkdir()
    return root


def task(task_id: str, **more: Any) -> str:
    """The text of a task that needs no GPU."""
    fields = {
        "task_id": task_id,
        "task_class": "script",
        "task_type": "process",
        "script": "/bin/true",
        "gpu_requirement": "none",
    }
    return json.dumps({**fields, **more})


async def taken(tasks: Path, name: str) -> None:
    """Let the spool look at all files once more: a new one is submitted."""
    (tasks / "script_queue" / "priority_1" / name).write_text(task(name))
    await eventually((tasks / "processing" / name).exists, "it to be submitted")


async def test_the_result_of_a_task_waits_for_no_tasks_that_came_later(
    instance: Managed, tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    """Though thousands of files were written at once."""
    monkeypatch.setattr(spool, "_AT_ONCE", 2)
    ended = await instance.submit(idempotency_key="ended")
    await instance.finish(ended)
    (tasks / "processing" / "ended.json").write_text(task("ended"))
    for number in range(5):
        path = tasks / "script_queue" / "priority_3" / f"{number}.json"
        path.write_text(task(f"later-{number}"))
    await instance.restart_with(spool={"path": tasks})
    last = tasks / "processing" / "4.json"
    await eventually(last.exists, "the last task to be submitted")
    result = tasks / "complete" / "ended.result.json"
    # A file that is moved keeps the time at which it was written.
    assert result.stat().st_mtime_ns < last.stat().st_ctime_ns


async def test_a_task_waits_for_no_thousands_of_results(
    instance: Managed, tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spool, "_AT_ONCE", 1)
    ended = [f"ended-{number}" for number in range(10)]
    for name in ended:
        await instance.finish(await instance.submit(idempotency_key=name))
        (tasks / "processing" / f"{name}.json").write_text(task(name))
    for name in "abc":
        path = tasks / "script_queue" / "priority_3" / f"{name}.json"
        path.write_text(task(name))
    await instance.restart_with(spool={"path": tasks})
    results = [tasks / "complete" / f"{name}.result.json" for name in ended]
    await eventually(lambda: all(path.exists() for path in results), "all results")
    submitted = (tasks / "processing" / "c.json").stat()
    written = max(path.stat().st_mtime_ns for path in results)
    assert submitted.st_ctime_ns < written


async def test_an_urgent_task_waits_for_no_thousands_that_came_before(
    instance: Managed, tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spool, "_AT_ONCE", 1)
    count = 100
    for number in range(count):
        path = tasks / "script_queue" / "priority_1" / f"{number:03}.json"
        path.write_text(task(f"usual-{number}"))
    await instance.restart_with(spool={"path": tasks})
    processing = tasks / "processing"
    await eventually((processing / "000.json").exists, "the first")
    urgent = tasks / "script_queue" / "priority_5" / "urgent.json"
    urgent.write_text(task("urgent"))
    last = processing / f"{count - 1:03}.json"
    assert not last.exists()
    await eventually(last.exists, "the last")
    moved = (processing / "urgent.json").stat()
    assert moved.st_ctime_ns < last.stat().st_ctime_ns


async def test_a_file_that_is_written_slowly_is_taken_when_it_is_whole(
    instance: Managed, tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whatever the clock of its file server says."""
    monkeypatch.setattr(spool, "_WRITTEN_AFTER_S", 1000.0)
    await instance.restart_with(spool={"path": tasks})
    slow = tasks / "script_queue" / "priority_5" / "slow.json"
    text = task("slow")
    for end in (0, 1, len(text) // 2, len(text) - 1):
        slow.write_text(text[:end])
        os.utime(slow, (0, 0))
        await taken(tasks, f"beside-{end}.json")
        assert slow.exists()
    slow.write_text(text)
    await eventually((tasks / "processing" / "slow.json").exists, "it to be taken")
    half = tasks / "script_queue" / "priority_5" / "half.json"
    half.write_text(text[:-1])
    await taken(tasks, "beside.json")
    monkeypatch.setattr(spool, "_WRITTEN_AFTER_S", 0.0)
    reason = tasks / "failed" / "half.reason.txt"
    await eventually(reason.exists, "it to be refused")
    assert "is not JSON" in reason.read_text()


async def test_a_name_that_leaves_no_room_for_a_result_is_refused(
    instance: Managed, tasks: Path
):
    queue = tasks / "script_queue" / "priority_3"
    (queue / f"{'x' * 245}.json").write_text(task("long"))
    (queue / f"{'y' * 195}.json").write_text(task("right"))
    await instance.restart_with(spool={"path": tasks})
    failed = tasks / "failed"
    await eventually(lambda: list(failed.glob("x*.reason.txt")), "it to be refused")
    (reason,) = failed.glob("x*.reason.txt")
    assert reason.read_text() == (
        f"{'x' * 20}…: has a name of 250 bytes (give it at most 200, so that"
        " `.result.json` has room)\n"
    )
    queries = instance.ledger.queries
    await eventually(lambda: queries.jobs_by_idempotency_key(["right"]), "the other")
    (job,) = queries.jobs_by_idempotency_key(["right"]).values()
    await instance.finish(job)
    result = tasks / "complete" / f"{'y' * 195}.result.json"
    await eventually(result.exists, "its result")


async def test_large_tasks_share_no_commit(
    instance: Managed, tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    """Fifty prompts of ten megabytes would fill the memory."""
    monkeypatch.setattr(spool, "_MAX_BYTES_AT_ONCE", 2500)
    for number in range(4):
        path = tasks / "script_queue" / "priority_3" / f"{number}.json"
        path.write_text(task(f"t-{number}", script_args={"text": "x" * 900}))
    huge = tasks / "script_queue" / "priority_5" / "huge.json"
    huge.write_text(task("huge", script_args={"text": "x" * 9000}))
    controller = instance.controller
    made = Spool(tasks, instance.core, controller.requests, controller.logs)
    made._make_folders()
    looked_at: set[Path] = set()
    groups: list[list[str]] = []
    while group := made._next_group(looked_at):
        looked_at.update(path for path, _, _ in group)
        groups.append([path.name for path, _, _ in group])
    assert groups == [["huge.json"], ["0.json", "1.json"], ["2.json", "3.json"]]
