"""What is lent before a reservation begins: the passes that skip those who may not
start there decide as one that tries everybody.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.scheduler.lending import Lending
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.share_pass import SharePass
from gpuyard.scheduler.start_pass import StartPass
from gpuyard.scheduler.usage import Usage
from tests.support.examples import examples
from tests.unit.scheduler.world import World

ORDERS = [QueueOrder.BACKFILL, QueueOrder.GITTINS, QueueOrder.FAIR]
LIMITS_S = st.sampled_from([None, 5.0, 40.0, 90.0, 150.0, 5000.0])
PROJECTS = st.sampled_from([None, "vision", "speech", "guests"])
booked = st.tuples(
    st.sampled_from([0.0, 50.0, 100.0]), st.integers(1, 4), st.sampled_from([0, 1])
)
job = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 2),
        "cpus": st.sampled_from([0.5, 2.0, 9.0]),
        "timeout_s": LIMITS_S,
        "project": PROJECTS,
        "owner": st.sampled_from(["ana", "bo"]),
        "priority": st.sampled_from([1, 3]),
        "preemptible": st.sampled_from([False, False, False, True]),
    }
)
lab = st.fixed_dictionaries(
    {
        "booked": st.lists(booked, min_size=1, max_size=3),
        "before": st.lists(job, max_size=6),
        "after": st.lists(job, min_size=1, max_size=12),
        "ended": st.lists(st.integers(0, 5), max_size=3),
        "notice_s": st.sampled_from([30.0, 1000.0]),
    }
)


def _lend_without_skipping(self: StartPass, lent: Lending | None) -> None:
    self._lending = lent


def _play(order: QueueOrder, lab: dict) -> list[list[str]]:
    """What starts first, then once some have ended, then once time has passed."""
    policy = Policy(order, end_margin_s=2.0, reservation_notice_s=lab["notice_s"])
    world = World(policy, Usage(by_share=order is QueueOrder.FAIR))
    for name in ("one", "two"):
        world.node(name, cpus=10, gpus=3)
    for in_s, gpus, whose in lab["booked"]:
        project = ("vision", "speech")[whose]
        begins_at = world.now + in_s
        world.reserve(begins_at, begins_at + 500.0, project=project, gpus=gpus)
    for each in lab["before"]:
        world.submit(**each)
    started = [list(world.decide())]
    for each in lab["after"]:
        world.submit(**each)
    for number in sorted(set(lab["ended"])):
        if number < len(started[0]):
            world.end(started[0][number])
    started.append(list(world.decide()))
    world.now += 60.0
    started.append(list(world.decide()))
    return started


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=examples(100), deadline=None)
@given(lab=lab)
def test_who_is_skipped_could_not_have_started(order, lab):
    skipping = _play(order, lab)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StartPass, "_lend", _lend_without_skipping)
        patch.setattr(SharePass, "_hopeful_in", lambda self, _: self._hopeful)
        patch.setattr(StartPass, "_is_for_holders_only", lambda _: False)
        assert _play(order, lab) == skipping


@pytest.mark.parametrize("order", ORDERS)
def test_a_job_of_the_holder_may_use_a_reserved_and_another_gpu(order):
    world = World(
        Policy(order, end_margin_s=0.0), Usage(by_share=order is QueueOrder.FAIR)
    )
    world.node("box", cpus=10, gpus=3)
    world.reserve(world.now, world.now + 200.0, project="vision", gpus=2)
    small = world.submit(gpus=1, project="vision")
    large = world.submit(gpus=2, project="vision")
    world.submit(gpus=2, owner="ana")
    assert set(world.decide()) == {small, large}


@pytest.mark.parametrize("order", ORDERS)
def test_the_holder_may_start_before_its_reservation_begins(order):
    """Nobody else may: they are skipped, wherever they stand."""
    world = World(
        Policy(order, end_margin_s=0.0), Usage(by_share=order is QueueOrder.FAIR)
    )
    world.node("box", cpus=10, gpus=1)
    world.reserve(world.now + 100.0, world.now + 200.0, project="vision", gpus=1)
    for number in range(5):
        world.submit(gpus=1, cpus=float(number), timeout_s=500.0, owner="ana")
    own = world.submit(gpus=1, timeout_s=500.0, priority=1, project="vision")
    assert set(world.decide()) == {own}
