"""Arrays: queued in one commit, run task by task, across crashes; cancelled, resumed and
found as one.
"""

import asyncio
from typing import Any

import msgspec
import pytest

from gpuyard.controller.array_events import ArraySubmission, PreparedArray
from gpuyard.controller.core import FOLDED_AT_ONCE, SLICE
from gpuyard.controller.intake import Intake
from gpuyard.domain.arrays import array_range
from gpuyard.domain.errors import (
    InvalidInputError,
    IsArrayError,
    LedgerError,
    NotFoundError,
    RefusedError,
)
from gpuyard.domain.ids import new_id
from gpuyard.domain.tiers import Tiers
from gpuyard.ledger.queries import JobFilter
from gpuyard.ledger.retention import (
    RetentionLimits,
    arrays_without_tasks,
    removal_event,
    rows_of_jobs,
)
from gpuyard.ledger.tables import notices, specs
from tests.support.controlled import Controlled
from tests.support.ledger import failing_commits
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def submit(instance: Controlled, array: str = "0-3", **fields: Any) -> str:
    body = {"name": "sweep", "command": ["train", "{i}"], **fields, "array": array}
    return await instance.controller.requests.arrays.create(body)


def tasks(instance: Controlled, array_id: str) -> list[str]:
    return instance.ledger.queries.task_ids(array_id)


def states(instance: Controlled, array_id: str) -> dict[str, int]:
    rows = instance.ledger.queries.task_counts([array_id])
    return {row["state"]: row["n"] for row in rows}


def orders(instance: Controlled) -> dict[str, Any]:
    """The orders that reached the host, by job."""
    return {each.order.job_id: each.order for each in instance.host.attempts.values()}


async def test_an_array_is_one_commit_with_one_spec(instance: Controlled):
    groups: list[list[str]] = []
    instance.core.listeners.append(
        lambda _, events: groups.append([event.kind.value for event in events])
    )
    count = 2 * FOLDED_AT_ONCE + 3
    held = await submit(instance, f"0-{count - 1}", held=True)
    submitted = ["array.submitted", *["job.submitted"] * count]
    assert [group for group in groups if group] == [submitted]
    with instance.ledger.engine.connect() as connection:
        rows = connection.execute(specs.select()).mappings().all()
    assert [row["job_id"] for row in rows] == [held]
    found = instance.ledger.queries.jobs_by_id(tasks(instance, held)).values()
    assert {row["array_index"] for row in found} == set(range(count))
    last = tasks(instance, held)[-1]
    spec = instance.ledger.queries.specs([last])[last]
    assert (spec["command"], spec["held"]) == (["train", str(count - 1)], True)
    await instance.controller.requests.cancel_many(tasks(instance, held))


async def test_a_failed_commit_leaves_nothing_of_an_array(instance: Controlled):
    with failing_commits(instance.ledger.engine), pytest.raises(LedgerError):
        await submit(instance, f"0-{FOLDED_AT_ONCE + 5}")
    assert not instance.core.view.jobs
    with pytest.raises(NotFoundError):
        instance.controller.requests.find("sweep")


@pytest.mark.parametrize("limit", ["", "%2"])
async def test_a_crash_loses_no_task_and_repeats_none(instance: Controlled, limit: str):
    array_id = await submit(instance, f"0-5{limit}", resources={"cpus": 1})
    ids = tasks(instance, array_id)
    for job_id in ids[:2]:
        await instance.until(job_id, "running")
    await instance.restart()
    await instance.finish(ids[0])
    await instance.until(ids[2], "running")
    await instance.restart()
    if limit:
        assert len(instance.core.view.attempts) == 2
        assert instance.core.view.arrays[array_id].admitted == {ids[1], ids[2]}
    await instance.end_all(ids)
    assert states(instance, array_id) == {"completed": 6}
    assert [len(instance.attempts(job_id)) for job_id in ids] == [1] * 6


async def test_each_task_gets_its_index_after_a_retry_too(instance: Controlled):
    array_id = await submit(instance, "3,8", retry_count=1)
    ids = tasks(instance, array_id)
    for job_id in ids:
        await instance.until(job_id, "running")
    ran = orders(instance)
    assert [ran[job_id].command for job_id in ids] == [("train", "3"), ("train", "8")]
    assert [ran[i].environment["GPUYARD_ARRAY_INDEX"] for i in ids] == ["3", "8"]
    await instance.finish(ids[1], exit_code=1)
    await eventually(lambda: len(instance.attempts(ids[1])) == 2, "a second attempt")
    await instance.begun(ids[1])
    assert orders(instance)[ids[1]].command == ("train", "8")
    await instance.end_all(ids)


async def test_an_array_is_resumed_where_its_tasks_did_not_complete(
    instance: Controlled,
):
    array_id = await submit(instance, "0-2%1")
    ids = tasks(instance, array_id)
    await instance.finish(ids[0])
    await instance.finish(ids[1], exit_code=3)
    await instance.begun(ids[2])
    await instance.cancel(ids[2])
    await instance.until(ids[2])
    assert states(instance, array_id) == {"completed": 1, "failed": 1, "cancelled": 1}
    await instance.restart()
    await instance.controller.requests.resume_array(array_id, {"priority": 5})
    assert instance.job(ids[1])["priority"] == 5
    assert len(instance.core.view.attempts) == 1
    await instance.begun(ids[1])
    assert orders(instance)[ids[1]].command == ("train", "1")
    await instance.end_all(ids)
    assert states(instance, array_id) == {"completed": 3}
    with pytest.raises(RefusedError, match="No task of"):
        await instance.controller.requests.resume_array(array_id)


async def test_people_find_an_array_and_its_tasks(instance: Controlled):
    find = instance.controller.requests.find
    find_array = instance.controller.requests.lookup.find_array
    older = await submit(instance, "0-1", held=True)
    array_id = await submit(instance, "4,7-9", held=True)
    ids = tasks(instance, array_id)
    for reference in ("sweep", array_id, array_id[-8:]):
        assert find_array(reference) == array_id
        assert find(f"{reference}_8") == ids[2]
        with pytest.raises(IsArrayError, match=f"such as {reference}_4"):
            find(reference)
    assert find(ids[0]) == find(ids[0][-12:]) == ids[0]
    assert find(f"{older[-8:]}_1") == tasks(instance, older)[1]
    with pytest.raises(NotFoundError, match=r"no task 5\. Its tasks are 4,7-9"):
        find("sweep_5")
    await instance.controller.changes.update(ids[3], {"name": "best"})
    assert find("best") == ids[3]
    single = await instance.submit(name="sweep_8", held=True)
    assert find("sweep_8") == single
    with pytest.raises(NotFoundError, match="single job and no array"):
        find_array("sweep_8")
    everything = [single, *ids, *tasks(instance, older)]
    many = await instance.controller.requests.lookup.find_many(["sweep", "sweep_8"])
    assert many == [*ids, single]
    await instance.controller.requests.cancel_many(everything)


async def test_a_task_that_is_gone_is_told_from_one_that_never_was(
    instance: Controlled,
):
    array_id = await submit(instance, "0-2", held=True)
    (first, *others) = tasks(instance, array_id)
    await instance.cancel(first)
    with instance.ledger.engine.connect() as tx:
        gone = removal_event(rows_of_jobs(tx, [first]), instance.core.clock())
    instance.core.emit([gone])
    await instance.core.committed()
    with pytest.raises(NotFoundError, match="task 0 of the array 'sweep' is no longer"):
        instance.controller.requests.find("sweep_0")
    await instance.controller.requests.cancel_many(others)


async def test_the_limit_and_the_priority_of_an_array_change(instance: Controlled):
    async def update(array_id: str, changes: dict[str, Any]) -> None:
        await instance.controller.changes.update_array(array_id, changes)

    array_id = await submit(instance, "0-4%1", resources={"cpus": 0.1})
    ids = tasks(instance, array_id)
    await instance.begun(ids[0])
    await instance.finish(ids[0], exit_code=1)
    await instance.until(ids[0])
    await instance.begun(ids[1])
    await update(array_id, {"at_most": 2, "priority": 5})
    await instance.begun(ids[2])
    await instance.restart()
    assert {instance.core.view.jobs[job_id].priority for job_id in ids[1:]} == {5}
    assert len(instance.core.view.attempts) == 2
    row = instance.ledger.queries.array(array_id)
    assert row and (row["at_most"], row["priority"]) == (2, 5)
    specs = instance.ledger.queries.specs([array_id, ids[3]])
    assert {spec["priority"] for spec in specs.values()} == {5}
    await update(array_id, {"at_most": None})
    await instance.begun(ids[4])
    await instance.end_all(ids)
    assert not instance.core.view.arrays
    with pytest.raises(RefusedError, match="only its limit can change"):
        await update(array_id, {"priority": 1})
    await update(array_id, {"at_most": 1})
    # What is resumed is under the new limit, and has the new priority.
    await instance.controller.requests.resume_array(array_id)
    assert instance.core.view.arrays[array_id].at_most == 1
    assert instance.core.view.jobs[ids[0]].priority == 5
    await instance.end_all(ids)


async def test_a_task_with_a_spec_of_its_own_gets_the_priority_too(
    instance: Controlled,
):
    array_id = await submit(instance, "0-1", held=True)
    ids = tasks(instance, array_id)
    await instance.controller.changes.update(ids[1], {"timeout_s": 60.0})
    await instance.controller.changes.update_array(array_id, {"priority": 4})
    specs = instance.ledger.queries.specs(ids)
    assert [specs[i]["priority"] for i in ids] == [4, 4]
    assert specs[ids[1]]["timeout_s"] == 60.0
    await instance.controller.requests.cancel_many(ids)


async def test_tasks_that_start_meanwhile_are_not_held_and_refuse_nothing(
    instance: Controlled,
):
    array_id = await submit(instance, "0-3%1")
    ids = tasks(instance, array_id)
    lookup = instance.controller.requests.lookup
    (jobs, waiting) = await lookup.find_waiting(["sweep"])
    await instance.finish(ids[0])
    await instance.begun(ids[1])
    assert (jobs, waiting[-1]) == ([], ids[3])
    held = await instance.controller.changes.hold(jobs, waiting)
    assert held == ids[2:]
    with pytest.raises(RefusedError, match="only a queued job can be held"):
        await instance.controller.changes.hold([ids[1]], waiting)
    assert await instance.controller.changes.release([], waiting) == ids[2:]
    await instance.end_all(ids)
    with pytest.raises(RefusedError, match="None of its tasks waits"):
        await instance.controller.changes.hold([], waiting)


@pytest.mark.parametrize("what", ["cancel", "hold"])
async def test_what_is_still_taken_in_can_be_held_and_cancelled(
    instance: Controlled, what: str
):
    """The ledger may have all tasks of an array before the view does."""
    body = {"name": "sweep", "command": ["train"], "held": True}
    (job, _) = Intake(Tiers()).read(msgspec.Raw(msgspec.json.encode(body)))
    ids = [new_id("job") for _ in range(2 * SLICE)]
    wanted = array_range(f"0-{len(ids) - 1}")
    array = PreparedArray(new_id("array"), None, job, wanted, ids)
    instance.core.emit_many(ArraySubmission(array, instance.core.clock()))
    if what == "hold":
        assert await instance.controller.changes.release([], ids) == ids
    await instance.controller.requests.cancel_many(ids)
    await instance.until(ids[-1])
    assert not instance.core.view.jobs


async def test_a_job_waits_for_all_tasks_of_an_array(instance: Controlled):
    array_id = await submit(instance, "0-1")
    after = await instance.submit(depends_on=["sweep"])
    ids = tasks(instance, array_id)
    assert instance.job(after)["depends_on"] == ids
    await instance.finish(ids[0])
    await instance.until(ids[0])
    assert instance.job(after)["state"] == "queued"
    await instance.finish(ids[1])
    await instance.finish(after)
    assert (await instance.until(after))["state"] == "completed"


async def test_a_large_array_whose_parent_has_ended_starts(instance: Controlled):
    """Decisions are made while it is taken in, and forget what has ended."""
    parent = await instance.submit(name="prepare")
    await instance.finish(parent)
    await instance.until(parent)
    request = asyncio.create_task(
        submit(instance, f"0-{2 * FOLDED_AT_ONCE}", depends_on=["prepare"])
    )
    while not request.done():
        instance.core.schedule()
        await asyncio.sleep(0)
    assert not instance.core.view.dependents
    await instance.controller.requests.cancel_many(tasks(instance, await request))


async def test_an_array_waits_for_a_job(instance: Controlled):
    first = await instance.submit(name="prepare")
    array_id = await submit(instance, depends_on=["prepare"])
    await instance.finish(first, exit_code=1)
    ids = tasks(instance, array_id)
    assert (await instance.until(ids[-1]))["reason"] == "dependency_failed"


async def test_a_repeated_request_is_one_array(instance: Controlled):
    fields = {"idempotency_key": "k", "held": True}
    first, second = await asyncio.gather(
        submit(instance, **fields), submit(instance, **fields)
    )
    assert first == second
    assert len(tasks(instance, first)) == 4
    with pytest.raises(RefusedError, match=f"used for another array \\({first}\\)"):
        await submit(instance, "0-4", **fields)
    with pytest.raises(RefusedError):
        await submit(instance, **fields, priority=5)
    await instance.controller.requests.cancel_many(tasks(instance, first))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"array": "5-2"}, "array: has 5-2"),
        ({"timeout": "2h"}, "timeout: is not a field"),
        ({"command": [], "prompt": "hi"}, "array: is given with prompt"),
        ({"depends_on": ["nobody"]}, "depends_on: there is no job 'nobody'"),
        ({"idempotency_key": 5}, "idempotency_key: is not a name"),
    ],
)
async def test_bad_input_queues_nothing(
    instance: Controlled, fields: dict[str, Any], told: str
):
    with pytest.raises(InvalidInputError, match=told):
        await submit(instance, **{"array": "0-3", **fields})
    assert not instance.core.view.jobs


async def test_a_listing_shows_an_array_once(instance: Controlled):
    array_id = await submit(instance, "0-2", held=True, labels={"a": "b"})
    queries = instance.ledger.queries
    labelled = JobFilter(labels={"a": "b"}, states=["queued"])
    assert [row["id"] for row in queries.arrays_page(limit=9, wanted=labelled)] == [
        array_id
    ]
    assert not queries.arrays_page(limit=9, wanted=JobFilter(labels={"a": "c"}))
    assert not queries.arrays_page(limit=9, before=array_id)
    assert not queries.jobs_page(limit=9, wanted=JobFilter(without_tasks=True))
    of_array = queries.jobs_page(limit=9, wanted=JobFilter(array_id=array_id))
    assert [row["array_index"] for row in of_array] == [2, 1, 0]
    await instance.controller.requests.cancel_many(tasks(instance, array_id))


async def test_an_array_goes_with_its_last_task(instance: Controlled):
    told = ["https://example.org/a"]
    array_id = await submit(instance, "0-1", idempotency_key="k", notify=told)
    await instance.end_all(tasks(instance, array_id))
    now = instance.core.clock()

    def gone(keys_before: float) -> list[str]:
        limits = RetentionLimits(now, None, keys_before, None, None, None, None, 0)
        return instance.ledger.read(arrays_without_tasks, limits)

    assert gone(now + 1) == []
    settings = instance.controller.retention.limits
    limits = RetentionLimits(now + 1, None, now + 1, None, None, None, None, 10**6)
    instance.controller.retention.limits = lambda: limits
    removed = await instance.controller.retention.run()
    instance.controller.retention.limits = settings
    assert (removed["jobs"], removed["arrays"]) == (2, 1)
    assert instance.ledger.queries.array(array_id) is None
    with instance.ledger.engine.connect() as connection:
        for table in (specs, notices):
            assert not connection.execute(table.select()).all()


async def test_a_task_that_starts_meanwhile_keeps_no_other_from_being_held(
    instance: Controlled,
):
    array_id = await submit(instance, "0-3", resources={"cpus": 2})
    first, second, third, last = tasks(instance, array_id)
    await instance.until(second, "running")
    lookup = instance.controller.requests.lookup
    changes = instance.controller.changes
    waiting = await lookup.find_waiting(["sweep"])
    assert waiting == ([], [third, last])
    await instance.finish(first)
    await instance.until(third, "running")
    assert await changes.hold(*waiting) == [last]
    named = await lookup.find_waiting(["sweep_2", "sweep"])
    with pytest.raises(RefusedError, match="is running; only a queued job can be held"):
        await changes.hold(*named)
    await instance.controller.requests.cancel_many(tasks(instance, array_id))
