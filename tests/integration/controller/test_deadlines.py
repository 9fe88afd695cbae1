"""Deadlines: who is told of them and when, by this server and by the next one."""

import time
from typing import Any

import pytest

from gpuyard.controller import deadlines
from gpuyard.controller.controller import Controller
from gpuyard.domain import wire
from gpuyard.domain.errors import InvalidInputError, RefusedError
from gpuyard.domain.schedules import ScheduleSpec
from gpuyard.domain.validation import parse_model
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio

ALL_CORES = {"cpus": 4}
HOUR = 3600.0


def later(instance: Controlled, seconds: float) -> None:
    """The clock of the server is set forward from the true time, or back."""
    set_clock(instance.controller, seconds)
    instance.core.schedule()


def set_clock(controller: Controller, seconds: float) -> None:
    controller.core.clock = lambda: time.time() + seconds


async def due(instance: Controlled, in_s: float, **fields: Any) -> str:
    return await instance.submit(deadline=time.time() + in_s, **fields)


async def told(instance: Controlled, job_id: str) -> list[str]:
    """The events about its deadline."""
    await instance.settled()
    journal = instance.ledger.queries.events_after(0, 1000)
    return [
        row["kind"]
        for row in journal
        if row["job_id"] == job_id and "deadline" in row["info"]
    ]


async def waiting(instance: Controlled, in_s: float, **fields: Any) -> str:
    """A job with a deadline that waits behind another."""
    blocker = await instance.submit(resources=ALL_CORES)
    await instance.until(blocker, "running")
    return await due(instance, in_s, resources=ALL_CORES, **fields)


async def test_who_will_be_late_is_told_once_and_who_is_late_once(
    instance: Controlled,
):
    job_id = await waiting(instance, 4 * HOUR, estimated_duration_s=3 * HOUR)
    assert await told(instance, job_id) == []
    later(instance, 2 * HOUR)
    assert await told(instance, job_id) == ["job.warning"]
    await instance.restart()
    later(instance, 2 * HOUR)
    assert await told(instance, job_id) == ["job.warning"]
    later(instance, 5 * HOUR)
    both = ["job.warning", "job.deadline_missed"]
    assert await told(instance, job_id) == both
    await instance.restart()
    later(instance, 5 * HOUR)
    later(instance, 0)
    later(instance, 5 * HOUR)
    assert await told(instance, job_id) == both
    first, second = instance.job(job_id)["warnings"]
    assert first.startswith("it will probably miss its deadline, ")
    assert first.endswith("expected to run for 3h00m more")
    assert second.startswith("it has missed its deadline, ")


async def test_a_job_that_ended_in_time_is_not_late_for_a_server_that_was_away(
    instance: Controlled,
):
    in_time, late = [await due(instance, HOUR) for _ in range(2)]
    own = {job_id: await instance.begun(job_id) for job_id in (in_time, late)}
    for job_id in own:
        await instance.until(job_id, "running")
    await instance.crash()
    instance.host.ended(own[in_time], exit_code=0)
    instance.host.attempts[own[late]].live = False
    instance.host.say(wire.Ended(own[late], time.time() + 2 * HOUR, time.time()))
    instance.extend = lambda controller: set_clock(controller, 3 * HOUR)
    await instance.start()
    for job_id in own:
        await instance.until(job_id)
    assert await told(instance, in_time) == []
    assert await told(instance, late) == ["job.deadline_missed"]


async def test_the_tasks_of_an_array_are_told_of_together(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    """But never too many at once: others have their turn in between."""
    monkeypatch.setattr(deadlines, "MOST_LOOKED_AT", 2)
    arrays = instance.controller.requests.arrays
    deadline = time.time() + HOUR
    array = {"command": ["true"], "array": "0-2", "deadline": deadline, "held": True}
    array_id = await arrays.create(array)
    later(instance, 2 * HOUR)
    await eventually(lambda: not instance.core.view.deadlines, "all to be told of")
    await instance.settled()
    missed = [job for kind, job in instance.notes if kind == "job.deadline_missed"]
    tasks = instance.ledger.queries.task_ids(array_id)
    assert missed == [tasks[0], tasks[2]]
    assert [instance.job(task)["deadline_told"] for task in tasks] == [2, 2, 2]


async def test_a_deadline_is_changed_and_told_of_anew(instance: Controlled):
    job_id = await due(instance, HOUR, held=True)
    later(instance, 2 * HOUR)
    assert await told(instance, job_id) == ["job.deadline_missed"]
    later(instance, 0)
    changes = instance.controller.changes
    await changes.update(job_id, {"deadline": time.time() + 3 * HOUR})
    assert instance.core.view.jobs[job_id].deadline_told is None
    await instance.restart()
    later(instance, 4 * HOUR)
    kinds = [kind for kind in await told(instance, job_id) if kind != "job.updated"]
    assert kinds == ["job.deadline_missed", "job.deadline_missed"]
    await instance.controller.changes.update(job_id, {"deadline": None})
    assert instance.job(job_id)["deadline"] is None
    assert instance.core.view.deadlines.next_look() is None


async def test_a_deadline_in_the_past_is_refused(instance: Controlled):
    job_id = await due(instance, HOUR, held=True)
    changes = {"deadline": time.time() - 1.0}
    for refused in (
        instance.submit(**changes),
        instance.controller.changes.update(job_id, changes),
    ):
        with pytest.raises(InvalidInputError, match="which is past") as caught:
            await refused
        (fault,) = caught.value.faults
        assert (fault.field, fault.remedy) == (
            "deadline",
            "give a later time, or leave it out",
        )
    await instance.cancel(job_id)
    with pytest.raises(RefusedError, match="is over; only its name can change"):
        await instance.controller.changes.update(job_id, {"deadline": None})
    resume = instance.controller.requests.resume
    with pytest.raises(InvalidInputError, match="which is past"):
        await resume(job_id, None, changes)
    await resume(job_id, None, {"deadline": time.time() + 9 * HOUR})
    await instance.finish(job_id)
    await instance.until(job_id)
    assert await told(instance, job_id) == []


async def test_a_submission_is_repeated_after_its_deadline(instance: Controlled):
    """Nothing is refused that was accepted, and 8h means another moment by then."""
    ids: set[str] = set()
    for hours in (0, 9):
        later(instance, hours * HOUR)
        fields = {"deadline": "8h", "idempotency_key": "again"}
        ids.add(await instance.submit(**fields))
    (job_id,) = ids
    deadline = instance.job(job_id)["deadline"]
    assert 0 <= deadline - time.time() - 8 * HOUR + 60 < 120
    await instance.finish(job_id)
    await instance.until(job_id)


async def test_what_was_accepted_is_not_refused_when_it_is_repeated_late(
    instance: Controlled,
):
    create = instance.controller.requests.arrays.create
    deadline = time.time() + HOUR
    job = {"deadline": deadline, "held": True, "idempotency_key": "once"}
    array = {"command": ["true"], "array": "0-1", **job}
    job_id = await instance.submit(**job)
    array_id = await create(array)
    later(instance, 2 * HOUR)
    assert await instance.submit(**job) == job_id
    assert await create(array) == array_id
    with pytest.raises(InvalidInputError, match="which is past"):
        await create({**array, "idempotency_key": "another"})


async def test_an_array_gets_another_deadline(instance: Controlled):
    """Also a task that has a spec of its own; what is over keeps its own."""
    queries = instance.ledger.queries
    update = instance.controller.changes.update_array
    array = {"command": ["true"], "array": "0-2", "held": True}
    first = time.time() + HOUR
    array_id = await instance.controller.requests.arrays.create(
        {**array, "deadline": first}
    )
    over, *tasks = queries.task_ids(array_id)
    await instance.cancel(over)
    await instance.controller.changes.update(tasks[0], {"timeout_s": 60.0})
    later(instance, 2 * HOUR)
    await told(instance, tasks[0])
    with pytest.raises(InvalidInputError, match="which is past"):
        await update(array_id, {"deadline": first})
    deadline = first + 9 * HOUR
    await update(array_id, {"deadline": deadline})
    await instance.restart()
    queries = instance.ledger.queries
    rows = [instance.job(task) for task in (over, *tasks)]
    assert [row["deadline"] for row in rows] == [first, deadline, deadline]
    assert [row["deadline_told"] for row in rows[1:]] == [None, None]
    specs = queries.specs([array_id, *tasks])
    assert {spec["deadline"] for spec in specs.values()} == {deadline}
    update = instance.controller.changes.update_array
    await update(array_id, {"deadline": None})
    assert [instance.job(task)["deadline"] for task in tasks] == [None, None]
    assert "deadline" not in queries.specs([array_id])[array_id]
    await instance.controller.requests.cancel_many(tasks)
    with pytest.raises(RefusedError, match="only its limit can change"):
        await update(array_id, {"deadline": deadline})


async def test_the_job_of_a_schedule_takes_no_deadline():
    """Its jobs come again and again; the schedule has `deadline_s`."""
    spec = {"cron": "@daily", "job": {"command": ["true"], "deadline": 4e9}}
    with pytest.raises(InvalidInputError, match="is one moment") as caught:
        parse_model(ScheduleSpec, spec)
    assert caught.value.faults[0].field == "job.deadline"
