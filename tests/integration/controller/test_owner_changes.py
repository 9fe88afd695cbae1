"""What an owner changes of a submitted job: hold, release, other values."""

import pytest

from gpuyard.domain.errors import CapacityError, InvalidInputError, RefusedError
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio

ALL_CORES = {"cpus": 4}


async def test_a_held_job_starts_only_after_its_release(instance: Controlled):
    blocker = await instance.submit(resources=ALL_CORES)
    held, free = [await instance.submit(resources=ALL_CORES) for _ in range(2)]
    changes = instance.controller.changes
    await changes.hold([held])
    await changes.hold([held])
    await instance.finish(blocker)
    await instance.finish(free)
    await instance.until(free)
    await instance.settled()
    assert (instance.job(held)["state"], instance.job(held)["attempts"]) == (
        "queued",
        0,
    )
    await changes.release([held])
    await instance.finish(held)
    assert (await instance.until(held))["state"] == "completed"
    kinds = [kind for kind, of in instance.notes if of == held]
    assert kinds[:3] == ["job.submitted", "job.held", "job.released"]


async def test_a_hold_outlives_a_crash_and_so_does_its_release(instance: Controlled):
    born_held = await instance.submit(held=True)
    child = await instance.submit(depends_on=[born_held], held=True)
    await instance.restart()
    why = instance.controller.requests.why(born_held)
    assert why is not None
    assert (why.constraint, why.summary) == (
        "held",
        "It is held by `gpuyard hold` or `gpuyard run --hold`.",
    )
    await instance.controller.changes.release([born_held])
    await instance.restart()
    await instance.finish(born_held)
    await instance.until(born_held)
    await instance.settled()
    assert instance.job(child)["state"] == "queued"
    await instance.controller.changes.release([child])
    await instance.begun(child)


async def test_a_hold_of_several_is_all_or_none(instance: Controlled):
    running = await instance.submit(resources=ALL_CORES)
    waiting = await instance.submit(resources=ALL_CORES)
    await instance.until(running, "running")
    changes = instance.controller.changes
    with pytest.raises(RefusedError, match="is running; only a queued job can be held"):
        await changes.hold([waiting, running])
    assert not instance.core.view.jobs[waiting].held
    await changes.hold([waiting])
    await instance.cancel(waiting)
    with pytest.raises(RefusedError, match="is cancelled; only a queued job"):
        await changes.release([waiting])
    await instance.resume(waiting)
    await instance.finish(running)
    await instance.begun(waiting)


async def test_a_held_job_fails_with_its_parent(instance: Controlled):
    parent = await instance.submit()
    child = await instance.submit(depends_on=[parent], held=True)
    await instance.finish(parent, exit_code=1)
    assert (await instance.until(child))["reason"] == "dependency_failed"


async def test_a_new_priority_changes_the_order(instance: Controlled):
    blocker = await instance.submit(resources=ALL_CORES)
    first, second = [await instance.submit(resources=ALL_CORES) for _ in range(2)]
    await instance.controller.changes.update(second, {"priority": 5})
    await instance.restart()
    await instance.finish(blocker)
    await instance.begun(second)
    assert instance.job(first)["state"] == "queued"
    await instance.controller.changes.update(second, {"priority": 1, "name": "x"})
    row = instance.job(second)
    assert (row["priority"], row["name"]) == (1, "x")


async def test_a_new_time_limit_reaches_the_node(instance: Controlled):
    blocker = await instance.submit(resources=ALL_CORES)
    job_id = await instance.submit(resources=ALL_CORES, timeout_s=60)
    await instance.controller.changes.update(job_id, {"timeout_s": 7200.0})
    await instance.finish(blocker)
    attempt_id = await instance.begun(job_id)
    assert instance.host.attempts[attempt_id].order.timeout_s == 7200.0
    with pytest.raises(RefusedError, match="fixed when it starts"):
        await instance.controller.changes.update(job_id, {"timeout_s": 60.0})
    await instance.finish(job_id)
    await instance.until(job_id)
    with pytest.raises(RefusedError, match="is over; only its name can change"):
        await instance.controller.changes.update(job_id, {"priority": 5})
    await instance.controller.changes.update(job_id, {"name": "done"})
    assert instance.job(job_id)["name"] == "done"


async def test_a_resumed_job_may_need_something_else(instance: Controlled):
    job_id = await instance.submit(timeout_s=60, resources={"memory_gb": 1})
    await instance.finish(job_id, exit_code=1)
    await instance.until(job_id)
    requests = instance.controller.requests
    with pytest.raises(CapacityError, match="GPU"):
        await requests.resume(job_id, None, {"gpus": {"count": 64}})
    with pytest.raises(InvalidInputError, match="timeout_s"):
        await requests.resume(job_id, None, {"timeout_s": -1})
    assert instance.job(job_id)["state"] == "failed"
    await requests.resume(job_id, None, {"timeout_s": 7200.0, "priority": 5})
    attempt_id = await instance.begun(job_id)
    order = instance.host.attempts[attempt_id].order
    row = instance.job(job_id)
    assert (order.timeout_s, row["timeout_s"], row["priority"]) == (7200.0, 7200.0, 5)
    assert row["shape"]["memory_gb"] == 1
