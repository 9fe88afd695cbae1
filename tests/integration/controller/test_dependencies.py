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
        {"command": ["true"], "name": name, "depends_on": above}
        for name, above in zip(names, parents, strict=False)
    ]


async def test_a_chain_runs_link_by_link(instance: Controlled):
    ids = await instance.controller.requests.submit(chain("a", "b", "c"))
    for job_id, waiting in zip(ids, (ids[1:], ids[2:], []), strict=True):
        await instance.begun(job_id)
        assert {instance.job(other)["state"] for other in waiting} <= {"queued"}
        await instance.finish(job_id)
        await instance.until(job_id)
    assert [instance.job(job_id)["state"] for job_id in ids] == ["completed"] * 3


async def test_a_failed_parent_fails_all_below_it_and_says_so(instance: Controlled):
    ids = await instance.controller.requests.submit(chain("a", "b", "c"))
    await instance.finish(ids[0], exit_code=1)
    for job_id in ids:
        await instance.until(job_id)
    assert [(instance.job(i)["state"], instance.job(i)["reason"]) for i in ids] == [
        ("failed", "exit_code"),
        ("failed", "dependency_failed"),
        ("failed", "dependency_failed"),
    ]
    told = [
        event
        for event in instance.ledger.queries.events_after(0, 100, ids[1])
        if event["kind"] == "job.failed"
    ]
    assert told[0]["info"]["message"] == f"It depends on {ids[0]}, which ended failed."
    assert len(instance.host.runs) == 1


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize(
    ("exit_code", "starts", "never"),
    [
        (0, ["depends_on", "depends_on_any"], "depends_on_failed"),
        (1, ["depends_on_failed", "depends_on_any"], "depends_on"),
    ],
)
async def test_a_job_starts_after_the_end_that_it_waits_for(
    instance: Controlled, crashes: bool, exit_code: int, starts: list[str], never: str
):
    parent = await instance.submit(name="parent")
    children = {
        field: await instance.submit(**{field: ["parent"]})
        for field in ("depends_on", "depends_on_failed", "depends_on_any")
    }
    await instance.begun(parent)
    if crashes:
        await instance.restart()
    await instance.finish(parent, exit_code=exit_code)
    await instance.end_all([children[field] for field in starts])
    ended = await instance.until(children[never])
    assert (ended["state"], ended["reason"]) == ("failed", "dependency_failed")
    late = [await instance.submit(**{field: [parent]}) for field in starts]
    await instance.end_all(late)


async def test_why_tells_how_a_parent_must_end(instance: Controlled):
    parent = await instance.submit(name="parent")
    await instance.until(parent, "running")
    child = await instance.submit(depends_on_failed=["parent"])
    why = instance.controller.requests.why(child)
    assert why is not None
    assert (why.summary, why.would_help) == (
        f"It depends on {parent} (running; it must not complete).",
        (f"wait for {parent} to end without being completed",),
    )
    await instance.finish(parent)
    await instance.until(child)
    (event,) = [
        row
        for row in instance.ledger.queries.events_after(0, 100, child)
        if row["kind"] == "job.failed"
    ]
    assert event["info"]["message"] == (
        f"It starts only if {parent} does not complete, and that completed."
    )


async def test_a_parent_cannot_be_to_end_in_two_ways(instance: Controlled):
    parent = await instance.submit(name="parent")
    with pytest.raises(InvalidInputError, match="depends_on_any: 'parent' is to end"):
        await instance.submit(depends_on=[parent], depends_on_any=["parent"])
    with pytest.raises(InvalidInputError, match="depends_on_failed: there is no job"):
        await instance.submit(depends_on_failed=["nobody"])


async def test_a_cancelled_parent_fails_its_children(instance: Controlled):
    ids = await instance.controller.requests.submit(chain("a", "b"))
    await instance.cancel(ids[0])
    assert (await instance.until(ids[1]))["reason"] == "dependency_failed"


async def test_a_parent_that_is_retried_keeps_its_children_waiting(
    instance: Controlled,
):
    parent, child = await instance.controller.requests.submit(
        [{**body, "retry_count": 1} for body in chain("a", "b")]
    )
    await instance.finish(parent, exit_code=1)
    await instance.begun(parent)
    assert instance.job(child)["state"] == "queued"
    await instance.finish(parent)
    await instance.finish(child)
    assert (await instance.until(child))["state"] == "completed"


async def test_a_parent_that_completed_long_ago_holds_nobody_up(instance: Controlled):
    parent = await instance.submit(name="parent")
    await instance.finish(parent)
    await instance.until(parent)
    child = await instance.submit(depends_on=[parent])
    await instance.finish(child)
    assert (await instance.until(child))["state"] == "completed"


async def test_a_parent_that_failed_long_ago_fails_a_new_child(instance: Controlled):
    parent = await instance.submit(name="parent")
    await instance.finish(parent, exit_code=1)
    await instance.until(parent)
    child = await instance.submit(depends_on=["parent"])
    assert (await instance.until(child))["reason"] == "dependency_failed"


@pytest.mark.parametrize(("exit_code", "state"), [(0, "completed"), (1, "failed")])
async def test_a_parent_whose_end_is_just_being_written(
    instance: Controlled, exit_code: int, state: str
):
    """Memory has let go of the parent and the ledger does not know of its end yet: its
    child must not wait for ever.
    """
    parent = await instance.submit()
    attempt_id = await instance.begun(parent)
    await instance.until(parent, "running")
    await instance.settled()
    with held_commit(instance.ledger.engine) as begun:
        instance.host.ended(attempt_id, exit_code=exit_code)
        instance.provider.deliver_soon("node_1")
        await eventually(begun.is_set, "the end to be on its way to the ledger")
        assert parent not in instance.core.view.jobs
        submitting = asyncio.create_task(instance.submit(depends_on=[parent]))
        await eventually(
            lambda: instance.core.writer._group.waiters,
            "the submission to wait for the next commit",
        )
    child = await submitting
    if state == "completed":
        await instance.finish(child)
    assert (await instance.until(child))["state"] == state


async def test_a_child_waits_for_all_of_its_parents(instance: Controlled):
    one = await instance.submit()
    two = await instance.submit()
    child = await instance.submit(depends_on=[one, two])
    await instance.finish(one)
    await instance.until(one)
    assert instance.job(child)["state"] == "queued"
    await instance.finish(two)
    await instance.begun(child)


@pytest.mark.parametrize("bodies", [chain("a", "b"), chain("a", "b")[::-1]])
async def test_a_circle_is_refused_and_nothing_is_queued(instance: Controlled, bodies):
    circle = [
        body if body["depends_on"] else {**body, "depends_on": ["b"]} for body in bodies
    ]
    with pytest.raises(InvalidInputError, match="goes in a circle"):
        await instance.controller.requests.submit(circle)
    assert instance.ledger.queries.jobs_page(limit=10) == []


async def test_an_ambiguous_parent_is_a_fault_of_depends_on(instance: Controlled):
    ids = [await instance.submit() for _ in range(40)]
    ending = next(i[-1] for i in ids if sum(other.endswith(i[-1]) for other in ids) > 1)
    with pytest.raises(InvalidInputError, match=r"depends_on: there is no job"):
        await instance.submit(depends_on=[ending])  # too short to be an id's ending
    common = ids[0][:9]
    assert all(job_id.startswith(common) for job_id in ids)
    with pytest.raises(InvalidInputError, match="depends_on"):
        await instance.submit(depends_on=[common])
