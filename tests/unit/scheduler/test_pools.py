"""Which nodes a pool asks for and ends; what waits for it."""

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.nodes import Device, Node
from gpuyard.scheduler.pool_demand import Wish, shares_on, waiting_for
from gpuyard.scheduler.pools import (
    LONGEST_AGAIN_S,
    Failures,
    PoolLimits,
    PoolNode,
    PoolPlan,
    PoolStage,
    WaitingWork,
    nodes_for,
    plan_pool,
)
from tests.unit.scheduler.world import World

LIMITS = PoolLimits(least=1, most=4, idle_s=600.0, boot_s=60.0)
ONE_JOB = WaitingWork(1, 1, 1, 3600.0, None)


def node(stage=PoolStage.JOINED, name="a", asked_at=0.0, **fields) -> PoolNode:
    return PoolNode(name, stage, asked_at, **fields)


def plan(*nodes: PoolNode, waiting=(), now=10_000.0, limits=LIMITS, **more) -> PoolPlan:
    return plan_pool(limits, nodes, waiting, now, **more)


# --- growing ---


def test_it_asks_for_its_minimum_and_for_what_waits():
    assert plan().ask == 1
    busy = node()
    assert plan(busy).ask == 0
    assert plan(busy, waiting=[ONE_JOB]).ask == 1
    assert plan(busy, node(PoolStage.BOOTING, "b"), waiting=[ONE_JOB]).ask == 0
    many = plan(busy, waiting=[replace(ONE_JOB, jobs=100)])
    assert many.ask == 3
    assert many.why == "it asks for 3 nodes for what waits"


def test_what_starts_before_a_new_node_would_be_there_asks_for_none():
    soon = plan(node(), waiting=[replace(ONE_JOB, wait_s=59.0)])
    assert soon.ask == 0
    assert soon.why == "the job that waits starts before a new node would be there"
    assert plan(node(), waiting=[replace(ONE_JOB, wait_s=61.0)]).ask == 1


def test_its_maximum_counts_each_node_that_still_costs():
    ending = [node(PoolStage.ENDING, str(number)) for number in range(4)]
    full = plan(*ending, waiting=[ONE_JOB])
    assert full.ask == 0
    assert full.why == "it has the 4 nodes that it may have"


@pytest.mark.parametrize(
    ("work", "nodes"),
    [
        ([], 0),
        ([WaitingWork(10, 4, 1, 3600.0, None)], 3),
        # Twelve of them run one behind the other while a node comes.
        ([WaitingWork(100, 4, 1, 5.0, None)], 3),
        # Two kinds share a node.
        ([WaitingWork(1, 2, 1, 3600.0, None)] * 2, 1),
        # A gang takes a node for each of its shares.
        ([WaitingWork(1, 8, 3, 3600.0, None)], 3),
        ([WaitingWork(10, 10, 1, 3600.0, None)], 1),
    ],
)
def test_so_many_nodes_is_work_worth(work, nodes):
    assert nodes_for(work, 60.0) == nodes


def test_after_a_failure_it_pauses_longer_each_time():
    failed = Failures(1, 9_990.0, "CAPACITY: none left")
    paused = plan(failures=failed)
    assert paused.ask == 0
    assert paused.why == "it asks again in 5s: CAPACITY: none left"
    assert paused.wake_at == failed.over_at == 10_005.0
    assert plan(failures=failed, now=10_005.0).ask == 1
    pauses = [Failures(count, 0.0).over_at for count in (1, 2, 3, 100)]
    assert pauses == [15.0, 30.0, 60.0, LONGEST_AGAIN_S]


# --- shrinking ---


def test_an_idle_node_goes_after_its_time_and_not_below_the_minimum():
    first = node(name="a", idle_since=9_000.0)
    second = node(name="b", idle_since=9_100.0)
    assert plan(first).drain == ()
    assert plan(first, second).drain == (("a", "nothing ran on it for 10m00s"),)
    waits = plan(first, second, now=9_599.0)
    assert waits.drain == ()
    assert waits.wake_at == 9_600.0


def test_no_idle_node_goes_while_work_waits_or_right_after_one_came():
    nodes = (node(name="a", idle_since=0.0), node(name="b"))
    assert plan(*nodes, waiting=[ONE_JOB]).drain == ()
    fresh = node(PoolStage.BOOTING, "c", asked_at=9_999.0)
    later = plan(*nodes, fresh)
    assert later.drain == ()
    assert later.wake_at == 10_599.0


def test_nodes_above_a_maximum_that_was_lowered_go_the_idle_ones_first():
    nodes = (
        node(name="old", asked_at=1.0),
        node(name="new", asked_at=2.0),
        node(name="idle", idle_since=9_999.0),
    )
    lowered = plan(*nodes, limits=replace(LIMITS, most=1))
    assert [name for name, _ in lowered.drain] == ["idle", "new"]
    assert lowered.drain[0][1] == "the pool may have 1 node"


def test_a_sick_node_is_drained_and_replaced():
    sick = plan(node(sick="its GPU is broken"))
    assert sick.drain == (("a", "its GPU is broken"),)
    assert sick.ask == 1
    coming = plan(node(PoolStage.BOOTING, sick="it does not boot"))
    assert coming.end == (("a", "it does not boot"),)


def test_a_drained_node_ends_when_its_jobs_have_and_a_lost_one_at_once():
    assert plan(node(PoolStage.DRAINING)).end == ()
    assert plan(node(PoolStage.DRAINING, idle_since=9_999.0)).end == (("a", ""),)
    assert plan(node(PoolStage.DRAINING, lost="it is silent")).end == (
        ("a", "it is silent"),
    )
    assert plan(node(lost="it is silent")).end == (("a", "it is silent"),)
    assert plan(node(PoolStage.ENDING, lost="it is silent")).end == ()


# --- over time ---


@dataclass
class Life:
    """A pool that does as it plans. Each step is a minute; `history` has the asks (+)
    and the idle ends (-), by time.
    """

    limits: PoolLimits
    now: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        self.nodes: dict[str, PoolNode] = {}
        self.jobs = 0
        self.asked: list[float] = []
        self.ended: list[float] = []

    def step(self, jobs: int, fate: int) -> None:
        """A minute passes; `jobs` want a node each, and something befalls a node."""
        self.now += 60.0
        self.jobs = jobs
        self._befall(fate)
        self._work()
        busy = sum(
            node.idle_since is None and node.stage is PoolStage.JOINED
            for node in self.nodes.values()
        )
        left = max(self.jobs - busy, 0)
        waiting = [replace(ONE_JOB, jobs=left)] if left else []
        self._do(plan_pool(self.limits, list(self.nodes.values()), waiting, self.now))
        assert len(self.nodes) <= self.limits.most

    def _befall(self, fate: int) -> None:
        """Nodes boot and end; with some fates, one is sick or lost."""
        for name, each in list(self.nodes.items()):
            if each.stage is PoolStage.ENDING:
                del self.nodes[name]
            elif each.stage.comes:
                joined = replace(each, stage=PoolStage.JOINED, idle_since=self.now)
                self.nodes[name] = joined
        if self.nodes and fate < 2:
            name = sorted(self.nodes)[0]
            what = {"sick": "it is sick"} if fate else {"lost": "it is lost"}
            self.nodes[name] = replace(self.nodes[name], **what)

    def _work(self) -> None:
        left = self.jobs
        for name, each in sorted(self.nodes.items()):
            runs = each.stage is PoolStage.JOINED and left > 0
            left -= runs
            idle_since = each.idle_since or self.now
            is_up = each.stage in (PoolStage.JOINED, PoolStage.DRAINING)
            since = None if runs or not is_up else idle_since
            self.nodes[name] = replace(each, idle_since=since)

    def _do(self, planned: PoolPlan) -> None:
        for name, why in planned.drain:
            self.nodes[name] = replace(self.nodes[name], stage=PoolStage.DRAINING)
            if why.startswith("nothing ran"):
                self.ended.append(self.now)
        for name, _ in planned.end:
            self.nodes[name] = replace(self.nodes[name], stage=PoolStage.ENDING)
        for _ in range(planned.ask):
            self.count += 1
            name = f"{self.count:06}"
            self.nodes[name] = node(PoolStage.ASKED, name, self.now)
            self.asked.append(self.now)

    @property
    def good(self) -> int:
        return sum(node.counts for node in self.nodes.values())


@given(
    least=st.integers(0, 2),
    more=st.integers(0, 3),
    steps=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), max_size=60),
)
def test_whatever_happens_it_keeps_its_limits_does_not_flap_and_comes_to_rest(
    least, more, steps
):
    limits = PoolLimits(least, max(least + more, 1), idle_s=300.0, boot_s=60.0)
    life = Life(limits)
    for jobs, fate in steps:
        life.step(jobs, fate)
        gone = sum(not node.counts for node in life.nodes.values())
        assert life.good >= min(least, limits.most - gone)
    for ended in life.ended:
        assert not any(ended - limits.idle_s < asked < ended for asked in life.asked)
    # Nothing waits, and nothing befalls it any more.
    for _ in range(30):
        life.step(0, 12)
    assert len(life.nodes) == life.good == least
    asked = len(life.asked)
    for _ in range(20):
        life.step(0, 12)
    assert len(life.asked) == asked


# --- what waits for it ---


def like(gpus: int = 2, cpus: float = 8.0) -> Node:
    made = Node("like", "like", "local", state="online", cpus=cpus, memory_gb=32.0)
    made.joined = True
    for index in range(gpus):
        uuid = f"like-{index}"
        made.devices[uuid] = Device(uuid, "like", index, "NVIDIA L4", 23034, "8.9")
    made.rebuild()
    return made


def waiting(world: World) -> list[WaitingWork]:
    return list(waiting_for(world.view, like(), world.now, world.policy).values())


def test_what_fits_no_node_and_would_fit_one_of_the_pool_waits_for_it():
    world = World()
    world.node("own", gpus=1)
    running = world.submit(gpus=1, portable=True)
    assert world.decide_for(running)
    for _ in range(3):
        world.submit(gpus=1, portable=True)
    world.submit(gpus=1, gpu_class="a100_80gb", portable=True)
    world.submit(gpus=1)  # it needs a folder of the server's machine
    (work,) = waiting(world)
    assert (work.jobs, work.per_node, work.nodes, work.wait_s) == (3, 2, 1, None)


def test_how_long_it_waits_is_known_where_what_runs_has_time_limits():
    world = World()
    world.node("own", gpus=1)
    running = world.submit(gpus=1, portable=True, timeout_s=30.0)
    assert world.decide_for(running)
    world.submit(gpus=1, portable=True, estimated_s=10.0)
    assert waiting(world)[0].wait_s == pytest.approx(30.0)
    world.submit(gpus=1, portable=True, estimated_s=10.0)
    assert waiting(world)[0].wait_s == pytest.approx(40.0)


def test_how_many_shares_an_empty_node_has_room_for():
    world = World()
    shape = world.view.jobs[world.submit(gpus=1, cpus=3, portable=True)].shape
    assert shares_on(like(gpus=4, cpus=8), shape) == 2
    assert shares_on(like(gpus=1, cpus=64), shape) == 1
    assert shares_on(like(gpus=0), shape) == 0
    assert math.isfinite(shares_on(like(), replace(shape, cpus=0.0, gpus=0)))


def wished(world: World, *wishes: Wish, served=frozenset()) -> list[WaitingWork]:
    found = waiting_for(
        world.view, like(), world.now, world.policy, served, list(wishes)
    )
    return list(found.values())


def test_what_no_job_stands_for_is_wished_for_where_no_node_has_room():
    world = World()
    world.node("own", gpus=1)
    model = Shape(cpus=0.0, gpus=1, gpu_memory_gb=16.0, portable=True)
    wish = Wish(model, 1, 3600.0)
    assert wished(world, wish) == []
    assert world.decide_for(world.submit(gpus=1))
    assert wished(world, wish) == [WaitingWork(1, 2, 1, 3600.0, None)]
    assert wished(world, wish, served={model}) == []
    assert wished(world, replace(wish, shape=replace(model, portable=False))) == []
    # Two models of one shape each want a place; one of them has another already.
    both = wished(world, wish, replace(wish, wait_s=5.0))
    assert both == [WaitingWork(2, 2, 1, 3600.0, None)]
    soon = wished(world, replace(wish, wait_s=9.0), replace(wish, wait_s=5.0))
    assert soon == [WaitingWork(2, 2, 1, 3600.0, 9.0)]


def test_a_wish_counts_in_place_of_the_workers_that_wait_for_the_same():
    world = World()
    world.node("own", gpus=1)
    assert world.decide_for(world.submit(gpus=1))
    for _ in range(3):
        world.submit(gpus=1, portable=True)
    worker = Shape(gpus=1, portable=True)
    (work,) = wished(world, Wish(worker, 40, 2.0, 80.0))
    assert (work.jobs, work.run_s, work.wait_s) == (40, 2.0, 80.0)
