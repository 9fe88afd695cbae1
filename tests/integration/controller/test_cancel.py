"""Cancelling: in every state, twice, and in a race with the end."""

import asyncio

import pytest

from gpuyard.domain.errors import NotFoundError, RefusedError
from tests.support.controlled import Controlled
from tests.support.ledger import held_commit
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def test_a_queued_job_is_cancelled_at_once_and_never_runs(instance: Controlled):
    running = await instance.submit(resources={"cpus": 4})
    queued = await instance.submit(resources={"cpus": 4})
    await instance.cancel(queued)
    row = instance.job(queued)
    assert (row["state"], row["reason"], row["attempts"]) == (
        "cancelled",
        "cancelled",
        0,
    )
    await instance.finish(running)
    await instance.until(running)
    assert len(instance.host.runs) == 1


async def test_all_are_cancelled_with_the_decisions_of_one(
    instance: Controlled, monkeypatch
):
    running = await instance.submit(resources={"cpus": 4})
    await instance.until(running, "running")
    first, *_ = waiting = [
        await instance.submit(resources={"cpus": 1 + number % 4})
        for number in range(250)
    ]
    child = await instance.submit(resources={"cpus": 1}, depends_on=[first])
    core = instance.controller.core
    decided = 0
    schedule = core.schedule

    def counted():
        nonlocal decided
        decided += 1
        schedule()

    monkeypatch.setattr(core, "schedule", counted)
    await instance.controller.requests.cancel_many(list(core.view.jobs))
    assert {instance.job(job_id)["state"] for job_id in (*waiting, child)} == {
        "cancelled"
    }
    await instance.until(running)
    assert (instance.job(running)["state"], len(instance.host.runs)) == ("cancelled", 1)
    assert decided < 10


async def test_many_are_cancelled_before_the_answer_and_others_are_not(
    instance: Controlled,
):
    over = await instance.submit()
    await instance.finish(over)
    await instance.until(over)
    running, *waiting = [
        await instance.submit(resources={"cpus": 4}, name=f"sweep-{number}")
        for number in range(4)
    ]
    *cancelled, kept = waiting
    requests = instance.controller.requests
    wanted = [cancelled[0], "sweep-2", cancelled[0], running, over]
    ids = await requests.lookup.find_many(wanted)
    assert ids == [*cancelled, running, over]
    await requests.cancel_many(ids)
    assert [instance.job(job_id)["state"] for job_id in cancelled] == ["cancelled"] * 2
    assert (await instance.until(running))["state"] == "cancelled"
    assert instance.job(over)["state"] == "completed"
    await instance.until(kept, "running")


async def test_a_job_that_is_not_known_cancels_nothing(instance: Controlled):
    job_id = await instance.submit()
    with pytest.raises(NotFoundError, match="'nobody'"):
        await instance.controller.requests.lookup.find_many([job_id, "nobody"])


async def test_a_running_job_is_stopped_and_its_room_is_free(instance: Controlled):
    job_id = await instance.submit(resources={"cpus": 4})
    await instance.until(job_id, "running")
    next_one = await instance.submit(resources={"cpus": 4})
    await instance.cancel(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["reason"], row["cancel_requested"]) == (
        "cancelled",
        "cancelled",
        True,
    )
    (attempt,) = instance.attempts(job_id)
    assert (attempt["state"], attempt["signal"], instance.host.stops) == (
        "ended",
        15,
        [(attempt["id"], "cancelled")],
    )
    await instance.until(next_one, "running")


async def test_a_cancel_that_comes_twice_is_one(instance: Controlled):
    instance.host.obedient = False
    job_id = await instance.submit()
    await instance.on_host(job_id, lambda host, i: host.started(i))
    await asyncio.gather(*(instance.cancel(job_id) for _ in range(5)))
    await instance.cancel(job_id)
    assert instance.attempts(job_id)[0]["state"] == "ending"
    await instance.finish(job_id, signal=15, stopped="cancelled")
    assert (await instance.until(job_id))["state"] == "cancelled"
    assert [kind for kind, of in instance.notes if of == job_id].count(
        "job.cancel_requested"
    ) == 1
    await instance.cancel(job_id)
    assert instance.job(job_id)["state"] == "cancelled"


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ({"exit_code": 0}, "completed"),
        ({"exit_code": 1}, "cancelled"),
        ({"signal": 15, "stopped": "cancelled"}, "cancelled"),
    ],
)
async def test_a_cancel_wins_or_loses_cleanly_against_the_end(
    instance: Controlled, outcome, state
):
    instance.host.obedient = False
    job_id = await instance.submit(retry_count=3)
    await instance.on_host(job_id, lambda host, i: host.started(i))
    await instance.cancel(job_id)
    await instance.finish(job_id, **outcome)
    assert (await instance.until(job_id))["state"] == state
    assert len(instance.attempts(job_id)) == 1


async def test_an_end_and_a_cancel_at_the_same_moment(instance: Controlled):
    ids = [await instance.submit(resources={"cpus": 0.1}) for _ in range(20)]
    for job_id in ids:
        await instance.until(job_id, "running")
    await asyncio.gather(
        *(
            work
            for job_id in ids
            for work in (instance.finish(job_id), instance.cancel(job_id))
        )
    )
    for job_id in ids:
        assert (await instance.until(job_id))["state"] in ("completed", "cancelled")
        assert len(instance.attempts(job_id)) == 1


async def test_a_job_that_is_done_stays_done(instance: Controlled):
    job_id = await instance.submit()
    await instance.finish(job_id)
    before = await instance.until(job_id)
    await instance.cancel(job_id)
    assert instance.job(job_id) == before


async def test_a_launch_that_is_cancelled_before_it_reaches_its_host_never_runs(
    instance: Controlled,
):
    instance.host.hold_start = asyncio.Event()
    one, two = await instance.controller.requests.submit([{"command": ["true"]}] * 2)
    # Both are intended, and the first submission is under way.
    await instance.cancel(two)
    assert (await instance.until(two))["state"] == "cancelled"
    instance.host.hold_start.set()
    await instance.finish(one)
    await instance.until(one)
    assert sorted(instance.host.runs.values()) == [0, 1]


async def test_a_launch_that_is_being_cancelled_is_not_begun(instance: Controlled):
    await instance.settled()  # the host's Hello has been dealt with
    instance.host.hold_start = asyncio.Event()
    one, two = await instance.controller.requests.submit([{"command": ["true"]}] * 2)
    await instance.core.committed()
    with held_commit(instance.ledger.engine) as begun:
        cancelling = asyncio.create_task(instance.cancel(two))
        await eventually(begun.is_set, "the cancel to be on its way to the ledger")
        assert instance.core.view.jobs[two].cancel_requested
        instance.host.hold_start.set()
        await instance.begun(one)
        await eventually(lambda: not instance.core._tasks, "the launch to be over")
        assert len(instance.host.runs) == 1
    await cancelling
    assert (await instance.until(two))["state"] == "cancelled"


async def test_a_cancel_while_a_retry_is_awaited(instance: Controlled):
    job_id = await instance.submit(retry_count=1)
    await instance.finish(job_id, exit_code=1)
    await eventually(lambda: instance.job(job_id)["failures"] == 1)
    await instance.cancel(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["not_before"]) == ("cancelled", None)


async def test_a_cancel_while_the_host_is_away_is_done_when_it_is_back(
    instance: Controlled,
):
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    await instance.provider.leave("node_1")
    await instance.cancel(job_id)
    assert instance.attempts(job_id)[0]["state"] == "ending"
    await instance.provider.join("node_1")
    assert (await instance.until(job_id))["state"] == "cancelled"


async def test_one_whose_start_may_be_on_its_way_is_stopped_and_not_given_up(
    instance: Controlled,
):
    instance.host.deaf = True
    job_id = await instance.submit()
    await eventually(
        lambda: [row["state"] for row in instance.attempts(job_id)] == ["sent"]
    )
    await instance.provider.leave("node_1")
    await instance.cancel(job_id)
    instance.host.deaf = False
    await instance.provider.join("node_1")
    row = await instance.until(job_id)
    (attempt,) = instance.attempts(job_id)
    assert (row["state"], attempt["state"]) == (
        "cancelled",
        "ended",
    ), "the node said so, nobody guessed it"
    assert instance.host.stops == [(attempt["id"], "cancelled")]


async def test_a_cancelled_job_is_not_resumed_while_it_still_ends(instance: Controlled):
    instance.host.obedient = False
    job_id = await instance.submit()
    await instance.on_host(job_id, lambda host, i: host.started(i))
    await instance.cancel(job_id)
    with pytest.raises(RefusedError, match="only a job that is over can be resumed"):
        await instance.resume(job_id)
    await instance.finish(job_id, stopped="cancelled")
    await instance.until(job_id)
    await instance.resume(job_id)
    assert (await instance.until(job_id, "assigned", "running"))[
        "cancel_requested"
    ] is False
