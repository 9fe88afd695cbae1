"""Reservations of many GPUs: with twice as many, a decision takes about twice as many
steps. They are counted, because its time would depend on the machine.
"""

import pytest

from gpuyard.domain.states import AttemptState
from gpuyard.scheduler.decide import decide
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.take_back import MOST_AT_ONCE
from tests.support.steps import steps_of
from tests.unit.scheduler.world import World

PER_NODE = 4
# As many jobs run on them as leave in one decision.
NODES = MOST_AT_ONCE // PER_NODE
# Four times as many would be the square.
ABOUT_TWICE = 2.8


def cluster(nodes: int) -> World:
    """Nodes that are reserved from now on, all lent to jobs of one GPU."""
    world = World(Policy(QueueOrder.BACKFILL, end_margin_s=0.0))
    for number in range(nodes):
        world.node(f"node-{number:03}", gpus=PER_NODE)
    gpus = nodes * PER_NODE
    for _ in range(gpus):
        world.submit(gpus=1, preemptible=True)
    assert len(world.decide()) == gpus
    world.reserve(world.now + 100.0, world.now + 500.0, project="vision", gpus=gpus)
    world.decide()
    return world


def leaving(world: World) -> list[str]:
    attempts = world.view.attempts.values()
    return [one.job_id for one in attempts if one.state is AttemptState.ENDING]


def steps_of_choosing(nodes: int) -> int:
    world = World()
    for number in range(nodes):
        world.node(f"node-{number:03}", gpus=PER_NODE)
    for begin in (100.0, 200.0):
        half = nodes * PER_NODE // 2
        world.reserve(world.now + begin, world.now + 500.0, project="vision", gpus=half)
    return steps_of(world.decide)


def steps_of_taking_back(nodes: int) -> int:
    world = cluster(nodes)
    for _ in range(nodes * PER_NODE):
        world.submit(gpus=1, project="vision")
    world.decide()
    world.now += 100.0
    return steps_of(world.decide)


@pytest.mark.parametrize("steps", [steps_of_choosing, steps_of_taking_back])
def test_twice_as_many_gpus_take_about_twice_as_many_steps(steps):
    assert steps(2 * NODES) / steps(NODES) < ABOUT_TWICE


def test_of_very_many_jobs_that_must_leave_some_leave_at_the_next_decision():
    gpus = (NODES + 1) * PER_NODE
    world = cluster(NODES + 1)
    own = [world.submit(gpus=1, project="vision") for _ in range(gpus)]
    world.decide()
    world.now += 100.0
    first = decide(world.view, world.now, world.policy)
    assert (len(first.actions), first.wake_at) == (MOST_AT_ONCE, world.now)
    second = decide(world.view, world.now, world.policy)
    assert len(second.actions) == gpus - MOST_AT_ONCE
    for action in (*first.actions, *second.actions):
        world.preempt(action)
    for job_id in leaving(world):
        world.end(job_id, "queued")
    assert set(world.decide()) == set(own)


def test_a_job_that_needs_a_whole_node_takes_back_one_where_fewest_must_leave():
    world = World(Policy(QueueOrder.BACKFILL, end_margin_s=0.0))
    for name in ("crowded", "shared"):
        world.node(name, gpus=PER_NODE)
    for _ in range(PER_NODE):
        world.submit(gpus=1, preemptible=True)
    assert len(world.decide()) == PER_NODE
    wide = [world.submit(gpus=2, preemptible=True) for _ in range(2)]
    assert len(world.decide()) == len(wide)
    world.reserve(world.now, world.now + 500.0, project="vision", gpus=2 * PER_NODE)
    world.submit(gpus=PER_NODE, project="vision")
    world.decide()
    assert set(leaving(world)) == set(wide)
