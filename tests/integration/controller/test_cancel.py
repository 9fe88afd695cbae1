"""Cancelling: in every state, twice, and in a race with the end."""

import asyncio

import pytest

from gpuyard.domain.errors import RefusedError
from tests.support.controlled import Controlled
from tests.support.ledger import held_commit
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def test_a_queued_job_is_cancelled_at_once_and_never_runs(yard: Controlled):
    running = await yard.submit(resources={"cpus": 4})
    queued = await yard.submit(resources={"cpus": 4})
    await yard.cancel(queued)
    row = yard.job(queued)
    assert (row["state"], row["reason"], row["attempts"]) == ("cancelled", "cancelled", 0)
    await yard.finish(running)
    await yard.until(running)
    assert len(yard.host.runs) == 1


async def test_all_are_cancelled_with_the_decisions_of_one(yard: Controlled, monkeypatch):
    running = await yard.submit(resources={"cpus": 4})
    await yard.until(running, "running")
    first, *_ = waiting = [await yard.submit(resources={"cpus": 1 + number % 4}) for number in range(250)]
    child = await yard.submit(resources={"cpus": 1}, depends_on=[first])
    core, decided = yard.controller.core, 0
    schedule = core.schedule

    def counted():
        nonlocal decided
        decided += 1
        schedule()

    monkeypatch.setattr(core, "schedule", counted)
    await yard.controller.requests.cancel_all()
    assert {yard.job(job_id)["state"] for job_id in (*waiting, child)} == {"cancelled"}
    await yard.until(running)
    assert (yard.job(running)["state"], len(yard.host.runs)) == ("cancelled", 1)
    assert decided < 10


async def test_a_running_job_is_stopped_and_its_room_is_free(yard: Controlled):
    job_id = await yard.submit(resources={"cpus": 4})
    await yard.until(job_id, "running")
    next_one = await yard.submit(resources={"cpus": 4})
    await yard.cancel(job_id)
    row = await yard.until(job_id)
    assert (row["state"], row["reason"], row["cancel_requested"]) == ("cancelled", "cancelled", True)
    (attempt,) = yard.attempts(job_id)
    assert (attempt["state"], attempt["signal"], yard.host.stops) == ("ended", 15, [(attempt["id"], "cancelled")])
    await yard.until(next_one, "running")


async def test_a_cancel_that_comes_twice_is_one(yard: Controlled):
    yard.host.obedient = False
    job_id = await yard.submit()
    await yard.on_host(job_id, lambda host, i: host.started(i))
    await asyncio.gather(*(yard.cancel(job_id) for _ in range(5)))
    await yard.cancel(job_id)
    assert yard.attempts(job_id)[0]["state"] == "ending"
    await yard.finish(job_id, signal=15, stopped="cancelled")
    assert (await yard.until(job_id))["state"] == "cancelled"
    assert [kind for kind, of in yard.notes if of == job_id].count("job.cancel_requested") == 1
    await yard.cancel(job_id)
    assert yard.job(job_id)["state"] == "cancelled"


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ({"exit_code": 0}, "completed"),
        ({"exit_code": 1}, "cancelled"),
        ({"signal": 15, "stopped": "cancelled"}, "cancelled"),
    ],
)
async def test_a_cancel_wins_or_loses_cleanly_against_the_end(yard: Controlled, outcome, state):
    yard.host.obedient = False
    job_id = await yard.submit(retry_count=3)
    await yard.on_host(job_id, lambda host, i: host.started(i))
    await yard.cancel(job_id)
    await yard.finish(job_id, **outcome)
    assert (await yard.until(job_id))["state"] == state
    assert len(yard.attempts(job_id)) == 1


async def test_an_end_and_a_cancel_at_the_same_moment(yard: Controlled):
    ids = [await yard.submit(resources={"cpus": 0.1}) for _ in range(20)]
    for job_id in ids:
        await yard.until(job_id, "running")
    await asyncio.gather(*(work for job_id in ids for work in (yard.finish(job_id), yard.cancel(job_id))))
    for job_id in ids:
        assert (await yard.until(job_id))["state"] in ("completed", "cancelled")
        assert len(yard.attempts(job_id)) == 1


async def test_a_job_that_is_done_stays_done(yard: Controlled):
    job_id = await yard.submit()
    await yard.finish(job_id)
    before = await yard.until(job_id)
    await yard.cancel(job_id)
    assert yard.job(job_id) == before


async def test_a_launch_that_is_cancelled_before_it_reaches_its_host_never_runs(yard: Controlled):
    yard.host.hold_start = asyncio.Event()
    one, two = await yard.controller.requests.submit([{"command": ["true"]}] * 2)
    # Both are intended, and the first submission is under way.
    await yard.cancel(two)
    assert (await yard.until(two))["state"] == "cancelled"
    yard.host.hold_start.set()
    await yard.finish(one)
    await yard.until(one)
    assert sorted(yard.host.runs.values()) == [0, 1]


async def test_a_launch_that_is_being_cancelled_is_not_begun(yard: Controlled):
    yard.host.hold_start = asyncio.Event()
    one, two = await yard.controller.requests.submit([{"command": ["true"]}] * 2)
    await yard.core.committed()
    with held_commit(yard.ledger.engine) as begun:
        cancelling = asyncio.create_task(yard.cancel(two))
        await eventually(begun.is_set, "the cancel to be on its way to the ledger")
        assert yard.core.view.jobs[two].cancel_requested
        yard.host.hold_start.set()
        await yard.begun(one)
        await eventually(lambda: not yard.core._tasks, "the launch to be over")
        assert len(yard.host.runs) == 1
    await cancelling
    assert (await yard.until(two))["state"] == "cancelled"


async def test_a_cancel_while_a_retry_is_awaited(yard: Controlled):
    job_id = await yard.submit(retry_count=1)
    await yard.finish(job_id, exit_code=1)
    await eventually(lambda: yard.job(job_id)["failures"] == 1)
    await yard.cancel(job_id)
    row = await yard.until(job_id)
    assert (row["state"], row["not_before"]) == ("cancelled", None)


async def test_a_cancel_while_the_host_is_away_is_done_when_it_is_back(yard: Controlled):
    job_id = await yard.submit()
    await yard.until(job_id, "running")
    await yard.provider.leave("node_1")
    await yard.cancel(job_id)
    assert yard.attempts(job_id)[0]["state"] == "ending"
    await yard.provider.join("node_1")
    assert (await yard.until(job_id))["state"] == "cancelled"


async def test_one_whose_start_may_be_on_its_way_is_stopped_and_not_given_up(yard: Controlled):
    yard.host.deaf = True
    job_id = await yard.submit()
    await eventually(lambda: [row["state"] for row in yard.attempts(job_id)] == ["sent"])
    await yard.provider.leave("node_1")
    await yard.cancel(job_id)
    yard.host.deaf = False
    await yard.provider.join("node_1")
    row = await yard.until(job_id)
    (attempt,) = yard.attempts(job_id)
    assert (row["state"], attempt["state"]) == ("cancelled", "ended"), "the node said so, nobody guessed it"
    assert yard.host.stops == [(attempt["id"], "cancelled")]


async def test_a_cancelled_job_is_not_resumed_while_it_still_ends(yard: Controlled):
    yard.host.obedient = False
    job_id = await yard.submit()
    await yard.on_host(job_id, lambda host, i: host.started(i))
    await yard.cancel(job_id)
    with pytest.raises(RefusedError, match="only a job that is over can be resumed"):
        await yard.resume(job_id)
    await yard.finish(job_id, stopped="cancelled")
    await yard.until(job_id)
    await yard.resume(job_id)
    assert (await yard.until(job_id, "assigned", "running"))["cancel_requested"] is False
