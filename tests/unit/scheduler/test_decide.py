import math

import pytest

from gpuyard.scheduler import start_pass
from gpuyard.scheduler.decide import Decision, Fail, Preempt, Start, decide, undo
from gpuyard.scheduler.placement import place
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.queue import NEW_AT_ONCE
from tests.unit.scheduler.world import World, snapshot


@pytest.fixture
def world() -> World:
    world = World()
    world.node("a", cpus=16, gpus=4)
    return world


def decision(world: World):
    return decide(world.view, world.now, world.policy)


def test_nothing_to_do(world):
    assert decision(world).actions == ()
    assert decision(world).wake_at is None


def test_what_fits_starts_in_order(world):
    low = world.submit(priority=1, gpus=2)
    high = world.submit(priority=5, gpus=2)
    late = world.submit(gpus=2)
    assert [action.job_id for action in decision(world).actions] == [high, late]
    assert low in world.view.queue


def test_a_gpu_cools_before_its_next_job():
    world = World()
    world.view.cooling_s = 20.0
    world.node("a", gpus=1)
    first = world.submit(gpus=1)
    second = world.submit(gpus=1)
    assert world.decide_for(first)
    world.end_at_once(first)
    assert world.wake_at() == 1020.0
    assert world.view.cools(["GPU-a-0"])
    assert "wait 20s for cooling GPU-a-0" in world.why(second).would_help
    world.now = 1019.0
    assert not world.decide_for(second)
    # A job without a GPU need not wait.
    assert world.decide_for(world.submit())
    world.now = 1020.0
    assert world.decide_for(second)
    assert not world.view.cools(["GPU-a-0"])


def test_a_gpu_that_cools_is_kept_for_whom_it_was_freed():
    """Otherwise another job would be displaced for it, too."""
    world = World()
    world.view.cooling_s = 20.0
    world.node("a", gpus=2)
    for job_id in [world.submit(priority=1, gpus=1) for _ in range(2)]:
        world.set_job(job_id, preemptible=True)
    world.decide()
    urgent = world.submit(priority=5, gpus=1)
    (displaced,) = decision(world).actions
    assert isinstance(displaced, Preempt)
    world.end_at_once(displaced.job_id)
    world.now = 1010.0
    assert not decision(world).actions
    world.now = 1020.0
    assert world.decide_for(urgent)


def test_no_gpu_cools_for_longer_when_the_clock_is_set_back():
    world = World()
    world.view.cooling_s = 20.0
    world.node("a", gpus=1)
    first = world.submit(gpus=1)
    world.decide()
    world.end_at_once(first)
    world.now = 500.0
    assert world.decide_for(world.submit(gpus=1))


def test_of_many_that_come_at_once_nobody_starts_before_all_are_ranked(world):
    decision(world)
    count = 2 * NEW_AT_ONCE + 5
    for number in range(count):
        world.submit(priority=1, cpus=8, memory_gb=1 + number / 1000)
    urgent = world.submit(priority=5, cpus=16)
    looks = 0
    while not (found := decision(world)).actions:
        assert found.wake_at == world.now
        looks += 1
    assert looks == 2
    assert [action.job_id for action in found.actions] == [urgent]


def test_buckets_that_are_gone_before_they_were_ranked_keep_nobody_waking(world):
    decision(world)
    gone = [
        world.submit(memory_gb=1 + number / 1000) for number in range(2 * NEW_AT_ONCE)
    ]
    for job_id in gone:
        world.set_job(job_id, state="cancelled")
    last = world.submit(cpus=1)
    while not (found := decision(world)).actions:
        assert found.wake_at == world.now
    assert [action.job_id for action in found.actions] == [last]
    assert decision(world).wake_at is None


def test_starts_of_one_decision_count_for_each_other(world):
    for _ in range(6):
        world.submit(gpus=1)
    given = [
        uuid
        for shares in world.decide().values()
        for share in shares
        for uuid in share.gpu_uuids
    ]
    assert sorted(given) == ["GPU-a-0", "GPU-a-1", "GPU-a-2", "GPU-a-3"]


def test_a_decision_stands_until_it_is_firm_or_undone(world):
    job_id = world.submit(gpus=3)
    other = world.submit(gpus=3)
    (start,) = decision(world).actions
    assert isinstance(start, Start)
    assert start.job_id == job_id
    assert decision(world).actions == ()
    assert len(world.view.nodes["a"].free.devices) == 1
    undo(world.view, start)
    assert len(world.view.nodes["a"].free.devices) == 4
    undo(world.view, start)
    assert decision(world).actions == (start,)
    world.intend(start)
    assert len(world.view.nodes["a"].free.devices) == 1
    undo(world.view, start)
    assert len(world.view.nodes["a"].free.devices) == 1, "what is firm cannot be undone"
    assert other in world.view.queue


def test_undoing_leaves_no_trace(world):
    world.submit(gpus=3, priority=2)
    world.submit(gpus=1)
    world.submit(depends_on=["job_00099"])
    world.set_job("job_00099", state="failed")
    before = snapshot(world.view)
    actions = decision(world).actions
    assert len(actions) == 3
    for action in actions:
        undo(world.view, action)
    assert snapshot(world.view) == before


def test_a_job_cancelled_while_its_start_is_tentative(world):
    job_id = world.submit(gpus=4)
    (start,) = decision(world).actions
    world.set_job(job_id, state="cancelled")
    assert len(world.view.nodes["a"].free.devices) == 4
    undo(world.view, start)
    assert decision(world).actions == ()


def test_a_job_changed_while_its_start_is_tentative_is_not_started_twice(world):
    job_id = world.submit(gpus=1)
    (start,) = decision(world).actions
    world.set_job(job_id, state="queued", priority=5)
    assert decision(world).actions == ()
    undo(world.view, start)
    assert world.view.jobs[job_id].priority == 5
    assert [action.job_id for action in decision(world).actions] == [job_id]


def test_a_failed_dependency_is_named_once(world):
    parent = world.submit()
    child = world.submit(depends_on=[parent])
    world.decide()
    world.end(parent, "cancelled")
    (fail,) = decision(world).actions
    assert fail == Fail(
        child, "dependency_failed", f"It depends on {parent}, which ended cancelled."
    )
    assert decision(world).actions == ()
    undo(world.view, fail)
    assert decision(world).actions == (fail,)


def test_a_second_parent_that_ends_does_not_fail_the_child_twice(world):
    one = world.submit()
    two = world.submit()
    world.submit(depends_on=[one, two])
    world.decide()
    world.end(one, "failed")
    assert len(decision(world).actions) == 1
    world.end(two, "failed")
    assert decision(world).actions == ()


def test_a_delayed_job_waits_and_is_woken_for(world):
    job_id = world.submit(not_before=world.now + 60)
    assert decision(world) == Decision((), world.now + 60)
    world.now += 60
    assert set(world.decide()) == {job_id}


def test_a_retry_waits_its_backoff(world):
    job_id = world.submit()
    world.decide()
    world.end(job_id, "queued", not_before=world.now + 5)
    assert world.wake_at() == world.now + 5
    world.set_job(job_id, not_before=world.now + 9)
    assert world.wake_at() == world.now + 9
    world.now += 9
    assert set(world.decide()) == {job_id}


def test_a_clock_set_back_keeps_no_retry_waiting(world):
    job_id = world.submit()
    world.decide()
    world.end(job_id, "queued", not_before=world.now + world.policy.retry_max_s)
    assert not world.decide()
    world.now -= 3600
    assert set(world.decide()) == {job_id}


def test_wakes_when_ageing_can_change_the_order(world):
    world.policy = Policy(ageing_s=100.0)
    hold = world.submit(gpus=4)
    world.decide()
    low = world.submit(priority=1, gpus=4)
    assert world.wake_at() is None, "alone in line there is nothing to overtake"
    world.now += 30
    high = world.submit(priority=3, gpus=3)
    crossings = []
    while (wake_at := world.wake_at()) is not None:
        assert wake_at > world.now
        crossings.append(world.now + 0)
        world.now = wake_at
    assert len(crossings) <= 10
    world.end(hold)
    assert set(world.decide()) == {low}
    assert high in world.view.queue


def test_a_stream_of_urgent_jobs_does_not_starve_a_low_one():
    world = World(Policy(ageing_s=100.0, end_margin_s=0.0))
    world.node("a", gpus=1)
    running = world.submit(priority=5, gpus=1)
    world.decide()
    low = world.submit(priority=1, gpus=1)
    submitted = world.now
    while low not in world.running():
        world.now += 10
        world.submit(priority=5, gpus=1)
        world.submit(priority=5, gpus=1)
        world.end(running)
        (running,) = world.decide()
    assert world.now == submitted + 500, (
        "five steps from 1 to 6, where the oldest is first"
    )


def test_without_ageing_there_is_nothing_to_wake_for(world):
    world.policy = Policy(ageing_s=math.inf)
    for gpus in (4, 3, 2):
        world.submit(gpus=gpus)
    assert world.wake_at() is None


def test_work_is_bounded_by_buckets_and_not_by_jobs(world, monkeypatch):
    tried = []
    monkeypatch.setattr(
        start_pass,
        "place",
        lambda view, shape, *more: tried.append(shape) or place(view, shape),
    )
    world.submit(gpus=4, cpus=16.0)
    world.decide()
    for number in range(3000):
        world.submit(priority=1 + number % 5, gpus=1 + number % 4)
    tried.clear()
    assert not world.decide()
    assert len(tried) == 4


def test_on_full_nodes_not_each_of_many_new_shapes_is_tried(world, monkeypatch):
    tried = []
    monkeypatch.setattr(
        start_pass,
        "place",
        lambda view, shape, *more: tried.append(shape) or place(view, shape),
    )
    monkeypatch.setattr(start_pass, "MANY_OPEN", 200)
    running = world.submit(cpus=16.0)
    world.decide()
    shapes = {world.submit(cpus=1.0, memory_gb=number / 100) for number in range(300)}
    tried.clear()
    assert not world.decide()
    assert len(tried) == start_pass.MANY_TRIED
    world.end(running)
    assert len(set(world.decide()) & shapes) == 16


def test_a_burst_starts_at_once(world):
    jobs = {world.submit(gpus=1, cpus=0.5) for _ in range(4)} | {
        world.submit(cpus=0.5) for _ in range(10)
    }
    assert set(world.decide()) == jobs


def test_a_job_on_a_gpu_that_has_failed_does_not_hide_a_victim_on_a_sound_one(world):
    world.node("b", gpus=2)
    pinned = [("GPU-b-0",), ("GPU-b-1",)]
    first, second = [world.submit(gpus=1, gpu_uuids=uuids) for uuids in pinned]
    for job_id in (first, second):
        world.set_job(job_id, preemptible=True)
    world.decide()
    world.set_gpu("GPU-b-0", state="offline")
    urgent = world.submit(priority=5, gpus=1)
    world.set_node("a", "offline")
    (action,) = decision(world).actions
    assert isinstance(action, Preempt)
    assert (action.job_id, action.for_job) == (second, urgent)
