"""Of an array that limits it, only so many tasks run at once."""

import pytest

from gpuyard.domain.events import Change, Table
from tests.unit.scheduler.world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.node("box", cpus=16)
    return world


def tasks(world: World, count: int, at_most: int | None) -> list[str]:
    array_id = world.array("array_1", at_most, count)
    return [world.submit(array_id=array_id) for _ in range(count)]


def test_without_a_limit_all_start(world):
    found = tasks(world, 5, None)
    assert sorted(world.decide()) == found


def test_the_next_starts_when_one_ends_in_the_order_of_their_indices(world):
    found = tasks(world, 5, 2)
    alone = world.submit()
    assert sorted(world.decide()) == [*found[:2], alone]
    assert not world.decide()
    world.end(found[1], "failed")
    assert list(world.decide()) == [found[2]]
    world.end(found[0])
    world.end(found[2])
    assert list(world.decide()) == found[3:]


def test_a_task_that_is_tried_again_keeps_its_turn_unless_it_pauses(world):
    found = tasks(world, 3, 1)
    world.decide()
    world.end(found[0], "queued")
    assert list(world.decide()) == [found[0]]
    world.end(found[0], "queued", not_before=world.now + 10)
    assert list(world.decide()) == [found[1]]
    world.now += 10
    assert not world.decide()
    world.end(found[1])
    assert list(world.decide()) == [found[0]]


def test_held_and_cancelled_tasks_leave_their_turn_to_others(world):
    found = tasks(world, 4, 1)
    world.set_job(found[0], held=True)
    world.set_job(found[1], state="cancelled")
    assert list(world.decide()) == [found[2]]
    world.set_job(found[3], state="cancelled")
    world.set_job(found[0], held=False)
    world.end(found[2])
    assert list(world.decide()) == [found[0]]


def test_tasks_that_wait_for_another_job_take_nobodys_turn(world):
    parent = world.submit()
    array_id = world.array("array_1", 1)
    waiting = world.submit(depends_on=[parent], array_id=array_id)
    ready = world.submit(array_id=array_id)
    assert sorted(world.decide()) == [parent, ready]
    world.end(parent)
    assert not world.decide()
    world.end(ready)
    assert list(world.decide()) == [waiting]


def test_a_resumed_task_brings_its_limit_along(world):
    """The view may have been made when none of its tasks was live."""
    row = {"state": "queued", "priority": 3, "shape": {}, "created_at": 1.0}
    limit = Change(Table.ARRAYS, "array_1", {"at_most": 1})
    for number in (1, 2):
        values = {**row, "array_id": "array_1"}
        world.record(limit, Change(Table.JOBS, f"job_{number}", values))
    assert list(world.decide()) == ["job_1"]


def test_of_the_tasks_that_wait_the_urgent_one_is_next(world):
    found = tasks(world, 4, 1)
    world.set_job(found[2], priority=5)
    world.set_job(found[3], priority=5)
    world.set_job(found[3], priority=1)
    started = []
    while ready := list(world.decide()):
        started += ready
        world.end(ready[0])
    assert started == [found[0], found[2], found[1], found[3]]


def test_a_higher_limit_lets_more_run(world):
    found = tasks(world, 5, 1)
    world.decide()
    world.array("array_1", 3)
    assert sorted(world.decide()) == found[1:3]
    world.array("array_1", None)
    assert sorted(world.decide()) == found[3:]


def test_under_a_lower_limit_what_runs_goes_on_and_no_more_start(world):
    found = tasks(world, 5, 3)
    world.decide()
    world.array("array_1", 1)
    world.end(found[0])
    # One that is tried again has no turn before the others have ended.
    world.end(found[1], "queued")
    assert not world.decide()
    world.end(found[2])
    assert list(world.decide()) == [found[1]]
    world.end(found[1])
    assert list(world.decide()) == [found[3]]


def test_a_limit_takes_back_what_has_not_started(world):
    """It is set for an array that had none, and for one whose tasks wait for room."""
    found = tasks(world, 20, None)
    assert sorted(world.decide()) == found[:16]
    world.array("array_1", 17)
    assert list(world.view.arrays["array_1"].admitted - set(found[:16])) == [found[16]]
    world.array("array_1", 2)
    for job_id in found[:15]:
        world.end(job_id)
    assert list(world.decide()) == [found[16]]


def test_an_array_is_forgotten_when_its_last_task_is_over(world):
    array_id = world.array("array_1", 1, total=2)
    world.end(world.submit(array_id=array_id), "failed")
    assert array_id in world.view.arrays, "its second task is still to come"
    second = world.submit(array_id=array_id)
    world.decide()
    world.end(second)
    assert not world.view.arrays


def test_a_waiting_task_says_that_its_array_is_full(world):
    found = tasks(world, 2, 1)
    world.decide()
    answer = world.why(found[1])
    assert answer.constraint == "array"
    assert answer.summary == "It waits for its turn: its array runs at most 1 at once."
