"""`kill -9` of the server in every state of an attempt: no job is lost and none is run twice."""

import asyncio

import pytest

from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def runs_once_to_its_end(yard: Controlled, job_id: str) -> None:
    await yard.finish(job_id)
    row = await yard.until(job_id)
    assert (row["state"], row["attempts"], row["failures"]) == ("completed", 1, 0)
    assert [count for count in yard.host.runs.values() if count] == [1]


def state(yard: Controlled, job_id: str) -> tuple[str, str]:
    return yard.job(job_id)["state"], yard.attempts(job_id)[0]["state"]


async def test_while_it_was_intended(yard: Controlled):
    yard.host.hold_start = asyncio.Event()
    job_id = await yard.submit()
    await yard.crash()
    yard.host.hold_start = None
    assert not yard.host.attempts
    await yard.start()
    await runs_once_to_its_end(yard, job_id)


async def test_while_the_reply_to_its_submission_was_on_its_way(yard: Controlled):
    yard.host.obedient = False
    yard.host.hold_reply = asyncio.Event()
    job_id = await yard.submit()
    await yard.begun(job_id)
    assert state(yard, job_id) == ("assigned", "intended")
    await yard.crash()
    yard.host.hold_reply = None
    await yard.start()
    assert state(yard, job_id) == ("assigned", "intended")
    await yard.on_host(job_id, lambda host, i: host.started(i))
    await yard.until(job_id, "running")
    await runs_once_to_its_end(yard, job_id)


async def test_while_it_was_sent_and_the_host_never_got_it(yard: Controlled):
    yard.host.deaf = True
    job_id = await yard.submit()
    await eventually(lambda: state(yard, job_id) == ("assigned", "sent"))
    await yard.crash()
    yard.host.deaf = False
    await yard.start()
    await runs_once_to_its_end(yard, job_id)


async def test_while_it_was_sent_and_had_not_started(yard: Controlled):
    yard.host.obedient = False
    job_id = await yard.submit()
    await eventually(lambda: state(yard, job_id) == ("assigned", "sent"))
    await yard.restart()
    await yard.on_host(job_id, lambda host, i: host.started(i))
    await runs_once_to_its_end(yard, job_id)


async def test_while_it_ran(yard: Controlled):
    job_id = await yard.submit(resources={"cpus": 4})
    await yard.until(job_id, "running")
    waiting = await yard.submit(resources={"cpus": 4})
    await yard.restart()
    assert (yard.job(job_id)["state"], yard.job(waiting)["state"]) == ("running", "queued")
    await runs_once_to_its_end(yard, job_id)
    await yard.finish(waiting)
    assert (await yard.until(waiting))["state"] == "completed"


async def test_while_it_was_being_cancelled_and_the_host_had_not_heard(yard: Controlled):
    job_id = await yard.submit(retry_count=3)
    await yard.until(job_id, "running")
    await yard.provider.leave("node_1")
    await yard.cancel(job_id)
    assert state(yard, job_id) == ("running", "ending")
    await yard.restart()
    row = await yard.until(job_id)
    assert (row["state"], row["attempts"]) == ("cancelled", 1)
    assert yard.host.stops == [(yard.attempts(job_id)[0]["id"], "cancelled")]


async def test_while_it_ended_and_nobody_listened(yard: Controlled):
    job_id = await yard.submit()
    attempt_id = await yard.begun(job_id)
    await yard.until(job_id, "running")
    await yard.crash()
    yard.host.ended(attempt_id, exit_code=0)
    await yard.start()
    assert (await yard.until(job_id))["state"] == "completed"
    await eventually(lambda: not yard.host.attempts, "the host to be told to forget it")


async def test_after_its_end_was_written_and_before_that_was_acknowledged(yard: Controlled):
    job_id = await yard.submit()
    attempt_id = await yard.finish(job_id)
    before = await yard.until(job_id)
    paid = yard.attempts(job_id)
    await yard.crash()
    yard.host.ended(attempt_id, exit_code=0)
    await yard.start()
    await yard.settled()
    assert (yard.job(job_id), yard.attempts(job_id)) == (before, paid)


async def test_while_its_retry_was_awaited(yard: Controlled):
    job_id = await yard.submit(retry_count=1)
    await yard.finish(job_id, exit_code=1)
    await eventually(lambda: yard.job(job_id)["failures"] == 1)
    await yard.restart()
    await yard.finish(job_id)
    row = await yard.until(job_id)
    assert (row["state"], row["attempts"]) == ("completed", 2)


async def test_while_children_waited_for_parents_of_every_kind(yard: Controlled):
    done, failed, running = [await yard.submit(name=name) for name in ("done", "failed", "running")]
    await yard.provider.leave("node_1")
    children = [await yard.submit(depends_on=[parent]) for parent in (done, failed, running)]
    for job_id, code in ((done, 0), (failed, 1)):
        yard.host.ended(yard.attempts(job_id)[0]["id"], exit_code=code)
    await yard.crash()
    await yard.start()
    await yard.finish(running)
    for child in (children[0], children[2]):
        await yard.finish(child)
    assert [(await yard.until(child))["state"] for child in children] == ["completed", "failed", "completed"]


async def test_epochs_grow_and_a_resumed_job_keeps_its_tokens(yard: Controlled):
    job_id = await yard.submit()
    await yard.finish(job_id, exit_code=1)
    await yard.until(job_id)
    await yard.restart()
    await yard.resume(job_id)
    await yard.finish(job_id)
    await yard.until(job_id)
    one, two = yard.attempts(job_id)
    assert one["token"] < two["token"]
    assert one["epoch"] < two["epoch"]


async def test_over_and_over_in_the_middle_of_everything(yard: Controlled):
    body = {"command": ["true"], "retry_count": 1, "resources": {"cpus": 1}}
    ids = await yard.controller.requests.submit([{**body, "name": f"n{n}"} for n in range(12)])
    for round_ in range(6):
        await eventually(lambda: yard.host.attempts, "something to run")
        for attempt_id in list(yard.host.attempts)[:2]:
            yard.host.ended(attempt_id, exit_code=round_ % 2)
        yard.provider.deliver_soon("node_1")
        if round_ % 2:
            await asyncio.sleep(0)
        await yard.restart()
    await yard.end_all(ids)
    assert {yard.job(job_id)["state"] for job_id in ids} <= {"completed", "failed"}
    assert sum(yard.host.runs.values()) == sum(len(yard.attempts(job_id)) for job_id in ids)
