import pytest

from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState
from gpuyard.scheduler.observe import observe
from gpuyard.scheduler.view import View
from tests.unit.scheduler.world import T4, World, snapshot


@pytest.fixture
def world() -> World:
    world = World()
    world.node("a", gpus=2)
    return world


def test_columns_not_named_keep_their_value(world):
    job_id = world.submit(priority=2, timeout_s=60.0, gpus=1)
    world.set_job(job_id, priority=5)
    job = world.view.jobs[job_id]
    assert (job.priority, job.timeout_s, job.shape, job.project) == (
        5,
        60.0,
        Shape(gpus=1),
        "lab",
    )
    world.set_node("a", "silent", "no report for 30 s")
    assert world.view.nodes["a"].cpus == 16
    assert world.view.nodes["a"].why_not == "silent: no report for 30 s"
    world.set_gpu("GPU-a-1", state="quarantined", problem="ECC errors")
    device = world.view.devices["GPU-a-1"]
    assert (device.name, device.index, device.usable) == ("NVIDIA L4", 1, False)


def test_a_changed_priority_moves_the_job(world):
    first = world.submit(gpus=2)
    second = world.submit(gpus=2)
    world.set_job(second, priority=5)
    assert list(world.decide()) == [second]
    assert first in world.view.queue


def test_equal_shapes_are_one_object(world):
    first = world.submit(gpus=1, gpu_memory_gb=16.0)
    second = world.submit(gpus=1, gpu_memory_gb=16.0)
    assert world.view.jobs[first].shape is world.view.jobs[second].shape


def test_an_attempt_holds_its_booking_until_it_ends(world):
    job_id = world.submit(gpus=1, cpus=4.0, memory_gb=8.0)
    world.decide()
    free = world.view.nodes["a"].free
    assert (free.cpus, free.memory_gb, len(free.devices)) == (12.0, 56.0, 1)
    for _ in range(2):
        world.end(job_id)
        free = world.view.nodes["a"].free
        assert (free.cpus, free.memory_gb, len(free.devices)) == (16.0, 64.0, 2)
    assert not world.view.attempts
    assert not world.view.jobs


def test_an_attempt_keeps_what_is_not_named(world):
    job_id = world.submit(gpus=1)
    world.decide()
    attempt = world.view.attempts[f"attempt_{job_id}"]
    token = attempt.token
    placements = attempt.placements
    world.now += 5
    world.record(Change(Table.ATTEMPTS, attempt.id, {"state": "ending"}))
    assert (attempt.started_at, attempt.token, attempt.placements) == (
        1000.0,
        token,
        placements,
    )
    assert len(world.view.nodes["a"].free.devices) == 1


def test_a_silent_node_keeps_its_bookings(world):
    job_id = world.submit(gpus=2)
    world.decide()
    world.set_node("a", "silent")
    world.set_job(job_id, state="unknown")
    world.set_node("a", "online")
    assert not world.view.nodes["a"].free.devices


def test_rows_may_come_in_any_order():
    world = World()
    world.node("a", gpus=1)
    world.submit(gpus=1, timeout_s=60.0)
    world.decide()
    changes = [change for event in world.journal for change in event.changes]
    backwards = View()
    last: dict[tuple[Table, str], dict] = {}
    for change in changes:
        last.setdefault((change.table, change.key), {}).update(change.values)
    rows = [Change(table, key, values) for (table, key), values in last.items()]
    observe(backwards, Event(EventKind.NODE_CHANGED, 0.0, tuple(reversed(rows))))
    assert snapshot(backwards) == snapshot(world.view)


def test_a_gpu_that_left_and_came_back(world):
    world.set_gpu("GPU-a-0", node_id=None)
    assert list(world.view.nodes["a"].devices) == ["GPU-a-1"]
    world.set_gpu("GPU-a-0", node_id="a")
    assert list(world.view.nodes["a"].devices) == ["GPU-a-0", "GPU-a-1"]


def test_a_gpu_that_moved_to_another_node(world):
    world.node("b")
    world.set_gpu("GPU-a-0", node_id="b", index=3)
    assert list(world.view.nodes["a"].devices) == ["GPU-a-1"]
    assert world.view.nodes["b"].devices["GPU-a-0"].index == 3


def test_devices_are_kept_from_the_smallest(world):
    world.gpu("a", 2, T4)
    assert [device.name for device in world.view.nodes["a"].free.devices] == [
        "Tesla T4",
        "NVIDIA L4",
        "NVIDIA L4",
    ]


def test_other_tables_and_late_words_are_ignored(world):
    before = snapshot(world.view)
    world.record(
        Change(Table.SPECS, "job_1", {"spec": "…"}),
        Change(Table.CHECKPOINTS, "c", {"step": 3}),
    )
    world.record(Change(Table.JOBS, "job_gone", {"reason": "late"}))
    world.record(Change(Table.ATTEMPTS, "attempt_gone", {"started_at": 3.0}))
    world.record(Change(Table.ATTEMPTS, "attempt_gone", {"state": "lost"}))
    assert snapshot(world.view) == before


@pytest.mark.parametrize(
    ("table", "values", "missing"),
    [
        (Table.JOBS, {"state": "queued"}, "shape"),
        (Table.JOBS, {"state": "queued", "shape": {}}, "priority"),
        (Table.ATTEMPTS, {"state": "sent"}, "job_id"),
    ],
)
def test_a_first_appearance_that_lacks_a_column(table, values, missing):
    view = View()
    with pytest.raises(KeyError, match=missing):
        observe(
            view, Event(EventKind.JOB_SUBMITTED, 0.0, (Change(table, "x", values),))
        )
    assert snapshot(view) == snapshot(View())


def test_an_unknown_state_is_an_error():
    with pytest.raises(ValueError, match="asleep"):
        observe(
            View(),
            Event(
                EventKind.JOB_SUBMITTED,
                0.0,
                (Change(Table.JOBS, "x", {"state": "asleep"}),),
            ),
        )


class TestDependencies:
    def test_a_child_waits_for_all_its_parents(self, world):
        one = world.submit()
        two = world.submit()
        child = world.submit(depends_on=[one, two])
        assert set(world.decide()) == {one, two}
        world.end(one)
        assert not world.decide()
        world.end(two)
        assert set(world.decide()) == {child}

    def test_a_failed_parent_fails_the_child_and_the_grandchild(self, world):
        parent = world.submit()
        child = world.submit(depends_on=[parent])
        grandchild = world.submit(depends_on=[child])
        world.decide()
        world.end(parent, "timed_out")
        world.decide()
        assert child not in world.view.jobs
        world.decide()
        assert grandchild not in world.view.jobs
        world.decide()
        assert not world.view.ended

    def test_parents_may_be_told_before_the_child(self, world):
        world.set_job("job_old", state="completed")
        child = world.submit(depends_on=["job_old"])
        assert set(world.decide()) == {child}

    def test_parents_may_be_told_after_the_child(self, world):
        child = world.submit(depends_on=["job_old"])
        assert not world.decide()
        world.set_job("job_old", state="completed")
        assert set(world.decide()) == {child}

    def test_an_end_set_by_hand_serves_a_child_and_is_forgotten(self, world):
        world.view.ended["job_old"] = JobState.COMPLETED
        child = world.submit(depends_on=["job_old"])
        assert set(world.decide()) == {child}
        world.decide()
        assert not world.view.ended

    def test_ends_nobody_asks_for_are_forgotten(self, world):
        for _ in range(20):
            world.submit()
        while started := world.decide():
            for job_id in started:
                world.end(job_id)
        assert not world.view.ended

    def test_an_end_is_kept_while_a_child_waits_and_then_forgotten(self, world):
        slow = world.submit()
        quick = world.submit()
        child = world.submit(depends_on=[slow, quick])
        world.decide()
        world.end(quick)
        world.decide()
        world.end(slow)
        assert set(world.decide()) == {child}
        assert not world.view.ended
        assert not world.view.dependents

    def test_a_child_that_is_cancelled_lets_go_of_its_parents(self, world):
        parent = world.submit()
        child = world.submit(depends_on=[parent])
        world.set_job(child, state="cancelled")
        world.decide()
        world.end(parent)
        world.decide()
        assert not world.view.dependents
        assert not world.view.ended

    def test_a_retry_does_not_ask_for_parents_again(self, world):
        parent = world.submit()
        child = world.submit(depends_on=[parent])
        world.decide()
        world.end(parent)
        world.decide()
        world.end(child, "queued", depends_on=[parent])
        assert set(world.decide()) == {child}

    def test_a_running_child_found_at_recovery_does_not_ask_for_parents(self, world):
        row = {
            "state": "running",
            "shape": {},
            "priority": 3,
            "created_at": 1.0,
            "depends_on": ["job_old"],
        }
        world.set_job("job_child", **row)
        world.set_job("job_child", state="queued")
        assert set(world.decide()) == {"job_child"}

    def test_a_parent_that_is_resumed_saves_its_child(self, world):
        parent = world.submit()
        child = world.submit(depends_on=[parent])
        world.decide()
        world.end(parent, "failed")
        assert child in world.view.doomed
        world.set_job(
            parent, state="queued", shape={}, priority=3, created_at=world.now
        )
        assert child not in world.view.doomed
        assert set(world.decide()) == {parent}
        world.end(parent)
        assert set(world.decide()) == {child}


def test_a_job_with_an_id_known_as_ended_can_be_resumed(world):
    job_id = world.submit(gpus=1)
    world.decide()
    world.end(job_id, "failed")
    world.set_job(
        job_id, state="queued", shape={"gpus": 1}, priority=3, created_at=world.now
    )
    assert world.view.jobs[job_id].state is JobState.QUEUED
    assert set(world.decide()) == {job_id}
