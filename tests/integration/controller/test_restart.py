"""`kill -9` of the server in every state of an attempt: no job is lost and none is run
twice.
"""

import asyncio

import pytest

from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def runs_once_to_its_end(instance: Controlled, job_id: str) -> None:
    await instance.finish(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["attempts"], row["failures"]) == ("completed", 1, 0)
    # Another job may run by now.
    own = [attempt["id"] for attempt in instance.attempts(job_id)]
    assert [instance.host.runs[attempt_id] for attempt_id in own] == [1]


def state(instance: Controlled, job_id: str) -> tuple[str, str]:
    return instance.job(job_id)["state"], instance.attempts(job_id)[0]["state"]


async def test_while_it_was_intended(instance: Controlled):
    instance.host.hold_start = asyncio.Event()
    job_id = await instance.submit()
    await instance.crash()
    instance.host.hold_start = None
    assert not instance.host.attempts
    await instance.start()
    await runs_once_to_its_end(instance, job_id)


async def test_while_the_reply_to_its_submission_was_on_its_way(instance: Controlled):
    instance.host.obedient = False
    instance.host.hold_reply = asyncio.Event()
    job_id = await instance.submit()
    await instance.begun(job_id)
    assert state(instance, job_id) == ("assigned", "intended")
    await instance.crash()
    instance.host.hold_reply = None
    await instance.start()
    assert state(instance, job_id) == ("assigned", "intended")
    await instance.on_host(job_id, lambda host, i: host.started(i))
    await instance.until(job_id, "running")
    await runs_once_to_its_end(instance, job_id)


async def test_while_it_was_sent_and_the_host_never_got_it(instance: Controlled):
    instance.host.deaf = True
    job_id = await instance.submit()
    await eventually(lambda: state(instance, job_id) == ("assigned", "sent"))
    await instance.crash()
    instance.host.deaf = False
    await instance.start()
    await runs_once_to_its_end(instance, job_id)


async def test_while_it_was_sent_and_had_not_started(instance: Controlled):
    instance.host.obedient = False
    job_id = await instance.submit()
    await eventually(lambda: state(instance, job_id) == ("assigned", "sent"))
    await instance.restart()
    await instance.on_host(job_id, lambda host, i: host.started(i))
    await runs_once_to_its_end(instance, job_id)


async def test_while_it_ran(instance: Controlled):
    job_id = await instance.submit(resources={"cpus": 4})
    await instance.until(job_id, "running")
    waiting = await instance.submit(resources={"cpus": 4})
    await instance.restart()
    assert (instance.job(job_id)["state"], instance.job(waiting)["state"]) == (
        "running",
        "queued",
    )
    await runs_once_to_its_end(instance, job_id)
    await instance.finish(waiting)
    assert (await instance.until(waiting))["state"] == "completed"


async def test_while_it_was_being_cancelled_and_the_host_had_not_heard(
    instance: Controlled,
):
    job_id = await instance.submit(retry_count=3)
    await instance.until(job_id, "running")
    await instance.provider.leave("node_1")
    await instance.cancel(job_id)
    assert state(instance, job_id) == ("running", "ending")
    await instance.restart()
    row = await instance.until(job_id)
    assert (row["state"], row["attempts"]) == ("cancelled", 1)
    assert instance.host.stops == [(instance.attempts(job_id)[0]["id"], "cancelled")]


async def test_while_it_ended_and_nobody_listened(instance: Controlled):
    job_id = await instance.submit()
    attempt_id = await instance.begun(job_id)
    await instance.until(job_id, "running")
    await instance.crash()
    instance.host.ended(attempt_id, exit_code=0)
    await instance.start()
    assert (await instance.until(job_id))["state"] == "completed"
    await eventually(
        lambda: not instance.host.attempts, "the host to be told to forget it"
    )


async def test_after_its_end_was_written_and_before_that_was_acknowledged(
    instance: Controlled,
):
    job_id = await instance.submit()
    attempt_id = await instance.finish(job_id)
    before = await instance.until(job_id)
    paid = instance.attempts(job_id)
    await instance.crash()
    instance.host.ended(attempt_id, exit_code=0)
    await instance.start()
    await instance.settled()
    assert (instance.job(job_id), instance.attempts(job_id)) == (before, paid)


async def test_while_its_retry_was_awaited(instance: Controlled):
    job_id = await instance.submit(retry_count=1)
    await instance.finish(job_id, exit_code=1)
    await eventually(lambda: instance.job(job_id)["failures"] == 1)
    await instance.restart()
    await instance.finish(job_id)
    row = await instance.until(job_id)
    assert (row["state"], row["attempts"]) == ("completed", 2)


async def test_while_children_waited_for_parents_of_every_kind(instance: Controlled):
    done, failed, running = [
        await instance.submit(name=name) for name in ("done", "failed", "running")
    ]
    await instance.provider.leave("node_1")
    children = [
        await instance.submit(depends_on=[parent]) for parent in (done, failed, running)
    ]
    for job_id, code in ((done, 0), (failed, 1)):
        instance.host.ended(instance.attempts(job_id)[0]["id"], exit_code=code)
    await instance.crash()
    await instance.start()
    await instance.finish(running)
    for child in (children[0], children[2]):
        await instance.finish(child)
    assert [(await instance.until(child))["state"] for child in children] == [
        "completed",
        "failed",
        "completed",
    ]


async def test_epochs_grow_and_a_resumed_job_keeps_its_tokens(instance: Controlled):
    job_id = await instance.submit()
    await instance.finish(job_id, exit_code=1)
    await instance.until(job_id)
    await instance.restart()
    await instance.resume(job_id)
    await instance.finish(job_id)
    await instance.until(job_id)
    one, two = instance.attempts(job_id)
    assert one["token"] < two["token"]
    assert one["epoch"] < two["epoch"]


async def test_over_and_over_in_the_middle_of_everything(instance: Controlled):
    body = {"command": ["true"], "retry_count": 1, "resources": {"cpus": 1}}
    ids = await instance.controller.requests.submit(
        [{**body, "name": f"n{n}"} for n in range(12)]
    )
    for round_ in range(6):
        await eventually(lambda: instance.host.attempts, "something to run")
        for attempt_id in list(instance.host.attempts)[:2]:
            instance.host.ended(attempt_id, exit_code=round_ % 2)
        instance.provider.deliver_soon("node_1")
        if round_ % 2:
            await asyncio.sleep(0)
        await instance.restart()
    await instance.end_all(ids)
    assert {instance.job(job_id)["state"] for job_id in ids} <= {"completed", "failed"}
    assert sum(instance.host.runs.values()) == sum(
        len(instance.attempts(job_id)) for job_id in ids
    )
