"""Deadlines: whose job comes first because of one, and who is told what of them."""

import pytest

from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState
from gpuyard.scheduler.deadlines import Told
from gpuyard.scheduler.decide import decide
from gpuyard.scheduler.estimate import estimate
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.parties import ShareRules
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.usage import Usage
from tests.unit.scheduler.shared_lab import DAY, HOUR, Lab
from tests.unit.scheduler.world import World

FAIR = Policy(order=QueueOrder.FAIR, ageing_s=HOUR, end_margin_s=0.0)


def lab_of(policy: Policy = FAIR) -> World:
    """One GPU, which is in use."""
    by_share = policy.order is QueueOrder.FAIR
    world = World(policy, Usage(by_share=by_share))
    world.node("box", gpus=1)
    world.submit(gpus=1, estimated_s=DAY)
    world.decide()
    return world


@pytest.fixture
def world() -> World:
    return lab_of()


def order(world: World) -> list[str]:
    """Which jobs start one after the other, as soon as the GPU is free."""
    started: list[str] = []
    while running := world.running():
        world.end(running[0])
        started += world.decide()
    return started


def due_in(world: World, seconds: float, **fields) -> str:
    return world.submit(gpus=1, deadline=world.now + seconds, **fields)


# --- the order ---


def test_the_earlier_deadline_goes_first_among_equal_jobs_of_a_user(world):
    without = world.submit(gpus=1)
    later = due_in(world, 2 * DAY)
    earlier = due_in(world, DAY)
    urgent = world.submit(gpus=1, priority=4)
    assert order(world) == [urgent, earlier, later, without]


def test_within_a_minute_the_order_of_submission_counts(world):
    world.now = 1000 * 60.0
    first = due_in(world, DAY + 59.0)
    second = due_in(world, DAY + 1.0)
    assert order(world) == [first, second]


def test_a_job_without_a_deadline_comes_once_it_has_aged(world):
    """However many of its owner's jobs come with one."""
    without = world.submit(gpus=1)
    world.now += 3 * HOUR
    others = [due_in(world, HOUR) for _ in range(3)]
    assert order(world) == [without, *others]


@pytest.mark.parametrize(
    "policy", [QueueOrder.FCFS, QueueOrder.BACKFILL, QueueOrder.GITTINS]
)
def test_nobody_passes_others_by_a_deadline_where_all_share_one_line(policy):
    world = lab_of(Policy(order=policy, end_margin_s=0.0))
    first = world.submit(gpus=1, owner="ana")
    second = due_in(world, HOUR, owner="bob")
    assert order(world) == [first, second]


def test_deadlines_give_nobody_a_larger_share():
    lab = Lab(2, ShareRules(DAY))

    def submit_more() -> None:
        while lab.waiting("ana") < 3:
            lab.submit("ana", HOUR, deadline=lab.now + HOUR)
        while lab.waiting("bob") < 3:
            lab.submit("bob", HOUR)

    lab.run(4 * DAY, submit_more)
    assert lab.part("ana") == pytest.approx(0.5, abs=0.05)


def test_another_deadline_changes_the_order(world):
    first = due_in(world, DAY)
    second = due_in(world, 2 * DAY)
    world.set_job(second, deadline=world.now + HOUR, deadline_told=None)
    world.set_job(first, deadline=None, deadline_told=None)
    assert order(world) == [second, first]


# --- what is told ---


def running_job_due_in(world: World, seconds: float) -> str:
    """The job that has the GPU."""
    (job_id,) = world.running()
    deadline = world.now + seconds
    world.set_job(job_id, attempt_id=f"attempt_{job_id}", deadline=deadline)
    return job_id


def test_it_is_told_once_that_it_will_be_late_and_once_that_it_is(world):
    job_id = due_in(world, DAY, estimated_s=2 * HOUR)
    begin = world.now
    told: list[tuple[float, Told]] = []
    while (at := world.wake_at()) is not None and at < begin + 2 * DAY:
        world.now = max(at, world.now)
        found = world.look_at_deadlines()
        told += [(world.now - begin, told) for told in found.values()]
    assert told == [(22 * HOUR + 1.0, Told.LATE), (DAY, Told.MISSED)]
    assert job_id in world.view.jobs
    assert not world.view.deadlines


def test_what_others_of_its_type_take_is_learned_while_it_waits(world):
    job_id = due_in(world, DAY)
    world.view.learning.add(world.view.jobs[job_id].job_type, 1, 10 * DAY)
    world.now = world.view.deadlines.next_look()
    assert world.look_at_deadlines() == {job_id: Told.LATE}


def test_a_job_that_runs_in_time_is_looked_at_seldom(world):
    running_job_due_in(world, DAY + 60.0)
    looks = 0
    while world.now < 1000.0 + DAY:
        world.now = world.view.deadlines.next_look()
        looks += 1
        if world.now <= 1000.0 + DAY:
            assert not world.look_at_deadlines()
    assert looks < 15


def test_of_a_job_whose_node_is_silent_nothing_is_said(world):
    running = running_job_due_in(world, HOUR)
    world.set_node("box", "silent")
    world.now += 2 * HOUR
    assert not world.look_at_deadlines()
    world.set_node("box", "online")
    world.now += 60.0
    assert world.look_at_deadlines() == {running: Told.MISSED}


def test_a_clock_that_is_set_back_repeats_nothing(world):
    due_in(world, HOUR)
    world.now += 2 * HOUR
    assert len(world.look_at_deadlines()) == 1
    world.now -= 2 * HOUR
    assert decide(world.view, world.now, FAIR).wake_at != world.now
    world.now += 3 * HOUR
    assert not world.look_at_deadlines()


def test_a_job_that_has_ended_is_not_looked_at(world):
    job_id = due_in(world, HOUR)
    world.set_job(job_id, state="cancelled")
    assert world.view.deadlines.next_look() is None


def test_to_be_told_something_breaks_no_promise(world):
    """Room is being made for it: others must not get that now."""
    job_id = due_in(world, HOUR)
    world.view.promise(job_id, (), frozenset())
    world.set_job(job_id, deadline_told=1, warnings=["late"])
    assert job_id in world.view.promises
    assert job_id in world.view.queue


# --- what people are told who ask ---


def test_why_says_until_when_it_must_start(world):
    job_id = due_in(world, 5 * HOUR, estimated_s=2 * HOUR)
    assert world.why(job_id).deadline == (
        "Its deadline is 1970-01-01 05:16:40 UTC, in 5h00m: it is expected to run for"
        " 2h00m, so it must start within 3h00m."
    )
    world.now += 4 * HOUR
    assert world.why(job_id).deadline.endswith(
        "in 1h00m: it is expected to run for 2h00m, which is too long."
    )
    world.now += 4 * HOUR
    assert world.why(job_id).deadline.endswith("which has passed.")


def test_why_says_what_is_not_known_and_what_does_not_count():
    world = lab_of(Policy(order=QueueOrder.BACKFILL))
    job_id = due_in(world, 5 * HOUR)
    assert world.why(job_id).deadline.endswith(
        "in 5h00m. How long it runs is not known. The order of the queue does not heed"
        " it (policy backfill)."
    )
    assert world.why(world.submit(gpus=1)).deadline == ""


@pytest.mark.parametrize(
    ("left_s", "gpus", "in_time"),
    [(3 * HOUR, 0, True), (HOUR, 0, False), (3 * HOUR, 1, None), (HOUR, 1, False)],
)
def test_an_estimate_says_whether_it_ends_in_time(world, left_s, gpus, in_time):
    """With a GPU it is not known when it starts."""
    job = LiveJob(
        "job_99999",
        JobState.QUEUED,
        Shape(gpus=gpus),
        3,
        world.now,
        estimated_s=2 * HOUR,
        deadline=world.now + left_s,
    )
    found = estimate(world.view, job, world.now, world.policy, 1.0)
    assert found.in_time is in_time
    assert found.deadline.startswith("Its deadline is ")


def test_no_deadline_costs_nothing(world):
    world.submit(gpus=1)
    assert len(world.view.deadlines) == 0
    assert world.view.deadlines.next_look() is None
