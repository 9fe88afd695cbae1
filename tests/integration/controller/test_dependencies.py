"""Jobs that wait for others."""

import asyncio

import pytest

from gpuyard.domain.errors import InvalidInputError
from tests.support.controlled import Controlled
from tests.support.ledger import held_commit
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


def chain(*names: str) -> list[dict]:
    """Each waits for the one before it."""
    parents = [[], *([name] for name in names)]
    return [
        {"command": ["true"], "name": name, "depends_on": above} for name, above in zip(names, parents, strict=False)
    ]


async def test_a_chain_runs_link_by_link(yard: Controlled):
    ids = await yard.controller.requests.submit(chain("a", "b", "c"))
    for job_id, waiting in zip(ids, (ids[1:], ids[2:], []), strict=True):
        await yard.begun(job_id)
        assert {yard.job(other)["state"] for other in waiting} <= {"queued"}
        await yard.finish(job_id)
        await yard.until(job_id)
    assert [yard.job(job_id)["state"] for job_id in ids] == ["completed"] * 3


async def test_a_failed_parent_fails_all_below_it_and_says_so(yard: Controlled):
    ids = await yard.controller.requests.submit(chain("a", "b", "c"))
    await yard.finish(ids[0], exit_code=1)
    for job_id in ids:
        await yard.until(job_id)
    assert [(yard.job(i)["state"], yard.job(i)["reason"]) for i in ids] == [
        ("failed", "exit_code"), ("failed", "dependency_failed"), ("failed", "dependency_failed")]  # fmt: skip
    told = [event for event in yard.ledger.queries.events_after(0, 100, ids[1]) if event["kind"] == "job.failed"]
    assert told[0]["info"]["message"] == f"It depends on {ids[0]}, which ended failed."
    assert len(yard.host.runs) == 1


async def test_a_cancelled_parent_fails_its_children(yard: Controlled):
    ids = await yard.controller.requests.submit(chain("a", "b"))
    await yard.cancel(ids[0])
    assert (await yard.until(ids[1]))["reason"] == "dependency_failed"


async def test_a_parent_that_is_retried_keeps_its_children_waiting(yard: Controlled):
    parent, child = await yard.controller.requests.submit(
        [{**body, "retry_count": 1} for body in chain("a", "b")])  # fmt: skip
    await yard.finish(parent, exit_code=1)
    await yard.begun(parent)
    assert yard.job(child)["state"] == "queued"
    await yard.finish(parent)
    await yard.finish(child)
    assert (await yard.until(child))["state"] == "completed"


async def test_a_parent_that_completed_long_ago_holds_nobody_up(yard: Controlled):
    parent = await yard.submit(name="parent")
    await yard.finish(parent)
    await yard.until(parent)
    child = await yard.submit(depends_on=[parent])
    await yard.finish(child)
    assert (await yard.until(child))["state"] == "completed"


async def test_a_parent_that_failed_long_ago_fails_a_new_child(yard: Controlled):
    parent = await yard.submit(name="parent")
    await yard.finish(parent, exit_code=1)
    await yard.until(parent)
    child = await yard.submit(depends_on=["parent"])
    assert (await yard.until(child))["reason"] == "dependency_failed"


@pytest.mark.parametrize(("exit_code", "state"), [(0, "completed"), (1, "failed")])
async def test_a_parent_whose_end_is_just_being_written(yard: Controlled, exit_code: int, state: str):
    """Memory has let go of the parent and the ledger does not know of its end yet: its child must not wait for ever."""
    parent = await yard.submit()
    attempt_id = await yard.begun(parent)
    await yard.until(parent, "running")
    await yard.settled()
    with held_commit(yard.ledger.engine) as begun:
        yard.host.ended(attempt_id, exit_code=exit_code)
        yard.provider.deliver_soon("node_1")
        await eventually(begun.is_set, "the end to be on its way to the ledger")
        assert parent not in yard.core.view.jobs
        submitting = asyncio.create_task(yard.submit(depends_on=[parent]))
        await eventually(lambda: yard.core.writer._group.waiters, "the submission to wait for the next commit")
    child = await submitting
    if state == "completed":
        await yard.finish(child)
    assert (await yard.until(child))["state"] == state


async def test_a_child_waits_for_all_of_its_parents(yard: Controlled):
    one, two = await yard.submit(), await yard.submit()
    child = await yard.submit(depends_on=[one, two])
    await yard.finish(one)
    await yard.until(one)
    assert yard.job(child)["state"] == "queued"
    await yard.finish(two)
    await yard.begun(child)


@pytest.mark.parametrize("bodies", [chain("a", "b"), chain("a", "b")[::-1]])
async def test_a_circle_is_refused_and_nothing_is_queued(yard: Controlled, bodies):
    circle = [body if body["depends_on"] else {**body, "depends_on": ["b"]} for body in bodies]
    with pytest.raises(InvalidInputError, match="goes in a circle"):
        await yard.controller.requests.submit(circle)
    assert yard.ledger.queries.jobs_page(limit=10, filters={}) == []


async def test_an_ambiguous_parent_is_a_fault_of_depends_on(yard: Controlled):
    ids = [await yard.submit() for _ in range(40)]
    ending = next(i[-1] for i in ids if sum(other.endswith(i[-1]) for other in ids) > 1)
    with pytest.raises(InvalidInputError, match=r"depends_on: there is no job"):
        await yard.submit(depends_on=[ending])  # too short to be an id's ending
    common = ids[0][:9]
    assert all(job_id.startswith(common) for job_id in ids)
    with pytest.raises(InvalidInputError, match="depends_on"):
        await yard.submit(depends_on=[common])
