"""Advance reservations: who may start where before and while they hold."""

import pytest

from gpuyard.domain.states import AttemptState
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.start_pass import StartPass
from gpuyard.scheduler.usage import Usage
from tests.unit.scheduler.world import A100_80GB, T4, World

DAY = 86_400.0


@pytest.fixture(params=["fcfs", "backfill", "gittins", "fair"])
def world(request) -> World:
    """A node with two GPUs, under each policy."""
    order = QueueOrder(request.param)
    world = World(Policy(order, end_margin_s=0.0), Usage(by_share=order == "fair"))
    world.node("box", gpus=2)
    return world


def reserved(world: World) -> set[str]:
    (one,) = world.view.advance.coming
    return one.uuids()


def gpus_of(world: World, job_id: str) -> set[str]:
    attempt = world.view.attempts[f"attempt_{job_id}"]
    return {uuid for share in attempt.placements for uuid in share.gpu_uuids}


def test_only_jobs_of_the_holder_start_on_what_is_reserved(world):
    world.reserve(world.now, world.now + 100.0, project="vision", gpus=1)
    others = [world.submit(gpus=1) for _ in range(2)]
    own = world.submit(gpus=1, project="vision", priority=1)
    started = world.decide()
    assert set(started) == {others[0], own}
    assert gpus_of(world, own) == reserved(world)
    why = world.why(others[1])
    world.end(own)
    assert world.decide() == {}
    why = world.why(others[1])
    assert why.constraint == "reserved"
    assert "1 GPU is reserved for project vision from" in why.summary
    assert why.estimate_s == 100.0
    # It ends, and the decision asked to be woken then.
    assert world.wake_at() == world.now + 100.0
    world.now += 100.0
    assert set(world.decide()) == {others[1]}


def test_a_reservation_of_a_user_is_for_the_jobs_of_that_user(world):
    world.reserve(world.now, world.now + 100.0, None, "ana", gpus=2)
    other = world.submit(gpus=1, owner="bob")
    own = world.submit(gpus=1, owner="ana")
    assert set(world.decide()) == {own}
    assert world.why(other).constraint == "reserved"


def test_before_its_begin_those_start_that_end_in_time(world):
    world.reserve(world.now + 100.0, world.now + 200.0, project="vision", gpus=2)
    assert world.decide_for(world.submit(gpus=1, timeout_s=90.0))
    too_long = world.submit(gpus=1, timeout_s=110.0)
    assert not world.decide_for(too_long)
    assert "give it a timeout of at most" in world.why(too_long).would_help[0]
    world.set_job(too_long, state="cancelled")
    endless = world.submit(gpus=1)
    assert not world.decide_for(endless)
    world.set_job(endless, state="cancelled")
    assert world.decide_for(world.submit(gpus=1, preemptible=True))


def test_a_job_without_a_limit_is_taken_to_run_for_the_notice(world):
    begins_at = world.now + 8 * DAY
    world.reserve(begins_at, begins_at + DAY, project="vision", gpus=2)
    assert world.decide_for(world.submit(gpus=1))
    # A long limit is taken at its word.
    assert not world.decide_for(world.submit(gpus=1, timeout_s=9 * DAY))
    world.now += 1.5 * DAY
    assert not world.decide_for(world.submit(gpus=1))


def test_it_avoids_gpus_whose_jobs_may_outlast_its_begin(world):
    endless = world.submit(gpus=1)
    world.decide()
    world.reserve(world.now + 100.0, world.now + 200.0, project="vision", gpus=1)
    world.decide()
    assert reserved(world).isdisjoint(gpus_of(world, endless))


def test_once_its_holder_has_taken_the_room_no_other_job_is_tried(world, monkeypatch):
    """There may be thousands of others, and a look at each takes long."""
    world.reserve(world.now, world.now + 1000.0, project="vision", gpus=2)
    own = [world.submit(gpus=1, project="vision") for _ in range(4)]
    for number in range(20):
        world.submit(gpus=1, cpus=float(number))
    assert set(world.decide()) == set(own[:2])
    tried = []

    def refuse(_, job, __):
        tried.append(job.id)

    monkeypatch.setattr(StartPass, "_try", refuse)
    world.end(own[0])
    assert set(world.decide()) == {own[2]}
    assert tried == []


@pytest.mark.parametrize("order", ["backfill", "gittins", "fair"])
def test_what_is_lent_for_a_while_goes_to_the_first_job_that_ends_in_time(order):
    """Whoever stands before it, and may not start there, is not in its way."""
    world = World(
        Policy(QueueOrder(order), end_margin_s=0.0), Usage(by_share=order == "fair")
    )
    world.node("box", gpus=1)
    world.reserve(world.now + 100.0, world.now + 200.0, project="vision", gpus=1)
    for number in range(5):
        world.submit(gpus=1, cpus=float(number), timeout_s=500.0, owner="ana")
    short = world.submit(gpus=1, timeout_s=90.0, owner="ana", priority=1)
    assert set(world.decide()) == {short}
    world.end(short)
    world.now += 50.0
    preemptible = world.submit(gpus=1, preemptible=True, owner="ana", priority=1)
    assert set(world.decide()) == {preemptible}


def test_what_was_lent_leaves_when_the_holder_needs_it(world):
    world.reserve(world.now + 100.0, world.now + 500.0, project="vision", gpus=2)
    lent = [world.submit(gpus=1, preemptible=True) for _ in range(2)]
    assert set(world.decide()) == set(lent)
    own = world.submit(gpus=1, project="vision", timeout_s=600.0)
    assert world.decide() == {}
    assert world.wake_at() <= world.now + 100.0
    # It begins: only as many leave as are needed, and nobody else gets their place.
    world.now += 100.0
    assert world.decide() == {}
    leaving = [
        one.job_id
        for one in world.view.attempts.values()
        if one.state is AttemptState.ENDING
    ]
    assert len(leaving) == 1
    eager = world.submit(gpus=1, priority=4, preemptible=True)
    world.decide()
    world.end(leaving[0], "queued")
    assert set(world.decide()) == {own}
    # A second job of the holder takes the other one back.
    second = world.submit(gpus=1, project="vision")
    world.decide()
    (other,) = set(lent) - set(leaving)
    world.end(other, "queued")
    assert set(world.decide()) == {second}
    world.end(own)
    assert set(world.decide()) <= {eager, *lent}


def test_those_that_must_not_be_preempted_stay(world):
    stubborn = world.submit(gpus=2)
    world.decide()
    world.reserve(world.now, world.now + 500.0, project="vision", gpus=2)
    own = world.submit(gpus=2, project="vision")
    assert world.decide() == {}
    assert world.view.attempts[f"attempt_{stubborn}"].state is AttemptState.RUNNING
    world.end(stubborn)
    assert world.decide_for(own)


def test_a_gang_takes_back_several_nodes():
    world = World(Policy(QueueOrder.BACKFILL, end_margin_s=0.0))
    for name in ("one", "two"):
        world.node(name, gpus=2)
    world.reserve(world.now, world.now + 500.0, project="vision", gpus=4)
    lent = world.submit(gpus=1, preemptible=True)
    wide = world.submit(gpus=2, preemptible=True)
    assert set(world.decide()) == {lent, wide}
    gang = world.submit(gpus=2, nodes=2, project="vision")
    world.decide()
    for job_id in (lent, wide):
        world.end(job_id, "queued")
    assert set(world.decide()) == {gang}


def test_a_reserved_node_has_no_room_for_others_at_all():
    world = World(Policy(QueueOrder.BACKFILL, end_margin_s=0.0))
    world.node("box", gpus=1)
    world.reserve(world.now, world.now + 500.0, project="vision", gpus=None, node="box")
    assert not world.decide_for(world.submit(cpus=1.0))
    assert world.decide_for(world.submit(cpus=1.0, project="vision"))


def test_reserved_gpus_keep_their_part_of_cores_and_memory():
    world = World(Policy(QueueOrder.BACKFILL, end_margin_s=0.0))
    world.node("box", cpus=16, gpus=2)
    world.reserve(world.now, world.now + 500.0, project="vision", gpus=1)
    assert not world.decide_for(world.submit(cpus=9.0))
    assert world.decide_for(world.submit(cpus=7.5))
    # What the holder uses there is not kept twice.
    assert world.decide_for(world.submit(cpus=6.0, gpus=1, project="vision"))
    assert world.decide_for(world.submit(cpus=0.5))


def test_when_a_gpu_fails_it_gets_another(world):
    world.reserve(world.now + 100.0, world.now + 500.0, project="vision", gpus=1)
    world.decide()
    (before,) = reserved(world)
    world.set_gpu(before, state="offline")
    world.decide()
    assert reserved(world).isdisjoint({before})
    assert len(reserved(world)) == 1


def test_it_gets_gpus_of_its_class_and_leaves_those_that_others_must_have():
    world = World(Policy(QueueOrder.BACKFILL))
    world.node("old", gpus=2, card=T4)
    world.node("new", gpus=2, card=A100_80GB)
    begin = world.now + 100.0
    world.reserve(begin, begin + 100.0, gpus=2)
    world.reserve(begin + 50.0, begin + 100.0, gpus=2, gpu_class="a100-80gb")
    world.decide()
    any_, a100 = world.view.advance.coming
    assert set(any_.shares) == {"old"}
    assert set(a100.shares) == {"new"}


def test_when_it_is_removed_everybody_may_start(world):
    one = world.reserve(world.now, world.now + 500.0, project="vision", gpus=2)
    job = world.submit(gpus=2)
    assert not world.decide_for(job)
    world.unreserve(one)
    assert world.decide_for(job)


def test_a_head_that_is_kept_out_holds_no_place_that_is_reserved(world):
    if world.policy.order is QueueOrder.FCFS:
        pytest.skip("here nobody passes the first")
    world.reserve(world.now, world.now + 500.0, project="vision", gpus=1)
    wide = world.submit(gpus=2)
    assert not world.decide_for(wide)
    assert world.decide_for(world.submit(gpus=1, timeout_s=50.0))


def test_what_is_reserved_twice_is_for_the_project_and_for_the_user(world):
    world.reserve(world.now, world.now + 100.0, project="vision", gpus=1)
    world.reserve(world.now, world.now + 100.0, None, "ana", gpus=1)
    others = [world.submit(gpus=1, project="vision") for _ in range(2)]
    own = world.submit(gpus=1, project="vision", owner="ana", priority=1)
    assert set(world.decide()) == {others[0], own}
    world.end(own)
    assert world.decide() == {}
    world.end(others[0])
    assert set(world.decide()) == {others[1]}
