"""Backfill: who may pass a job that waits, and who may not."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuyard.domain.events import Change, Table
from gpuyard.domain.shape import Placement
from gpuyard.scheduler.actions import Start
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.reservation import Reservations
from tests.unit.scheduler.world import World


@pytest.fixture
def world() -> World:
    """One node of 4 GPUs, on which a job holds 2 until its timeout at 1100."""
    world = World(Policy(ageing_s=math.inf, end_margin_s=0.0))
    world.node("a", cpus=16, gpus=4)
    world.submit(gpus=2, timeout_s=100.0)
    world.decide()
    return world


def reservation(world: World, job_id: str):
    return Reservations(world.view, world.now, world.policy).reserve(
        world.view.jobs[job_id]
    )


def test_the_reservation_is_when_enough_has_surely_ended(world):
    assert reservation(world, world.submit(gpus=2)).at == 1000.0
    assert reservation(world, world.submit(gpus=3)).at == 1100.0


def test_a_job_that_ends_before_may_pass(world):
    world.submit(gpus=4)
    short = world.submit(gpus=2, timeout_s=100.0)
    assert set(world.decide()) == {short}


@pytest.mark.parametrize("timeout_s", [101.0, None])
def test_a_job_that_may_outlast_may_not_pass(world, timeout_s):
    world.submit(gpus=4)
    world.submit(gpus=1, timeout_s=timeout_s)
    assert not world.decide()


def test_a_job_may_take_what_is_to_spare(world):
    world.submit(gpus=3)
    spare = world.submit(gpus=1)
    assert set(world.decide()) == {spare}
    world.submit(priority=2, gpus=1)
    assert not world.decide(), "the other free GPU is promised"


def test_the_margin_counts(world):
    world.policy = Policy(ageing_s=math.inf, end_margin_s=10.0)
    head = world.submit(gpus=4)
    assert reservation(world, head).at == 1110.0
    world.submit(gpus=1, timeout_s=101.0)
    assert not world.decide()
    passing = world.submit(priority=2, gpus=1, timeout_s=99.0)
    assert set(world.decide()) == {passing}


def test_a_gpu_head_leaves_cores_to_others(world):
    world.submit(gpus=4, cpus=4.0)
    small = world.submit(cpus=11.0)
    large = world.submit(cpus=2.0)
    assert set(world.decide()) == {small}, "16 cores less 4 promised and 1 in use"
    assert large in world.view.queue


def test_a_head_on_one_node_leaves_the_others_alone(world):
    world.node("b", gpus=2)
    world.submit(gpus=4)
    elsewhere = world.submit(gpus=1)
    (share,) = world.decide()[elsewhere]
    assert share.node_id == "b"


def test_a_head_whose_node_is_offline_is_in_nobodys_way(world):
    world.node("b", gpus=8)
    world.set_node("b", "silent")
    head = world.submit(gpus=8)
    assert reservation(world, head) is None
    small = world.submit(gpus=2)
    assert set(world.decide()) == {small}


def test_a_pool_has_its_own_head(world):
    """The first head can only wait on `a`; the second waits on `b`, where it must not
    be starved either.
    """
    world.node("b", gpus=2)
    world.submit(gpus=1, gpu_uuids=("GPU-b-0",))
    world.decide()
    world.submit(gpus=4, gpu_uuids=tuple(f"GPU-a-{index}" for index in range(4)))
    world.submit(gpus=2)
    world.submit(gpus=1, priority=2)
    assert not world.decide()


def test_a_promise_stands_on_what_earlier_promises_leave(world):
    first = world.submit(gpus=3)
    second = world.submit(gpus=2)
    reservations = Reservations(world.view, world.now, world.policy)
    assert reservations.reserve(world.view.jobs[first]) is not None
    assert reservations.reserve(world.view.jobs[second]) is None, (
        "4 GPUs less 3 promised"
    )
    third = world.submit(gpus=1)
    assert reservations.reserve(world.view.jobs[third]).placements[0].gpu_uuids == (
        "GPU-a-3",
    )


def test_a_promise_counts_what_the_same_decision_has_started(world):
    first = world.submit(gpus=3)
    second = world.submit(gpus=1)
    passing = world.submit(gpus=1)
    reservations = Reservations(world.view, world.now, world.policy)
    reservations.reserve(world.view.jobs[first])
    start = Start(passing, (Placement("a", ("GPU-a-3",), 1.0, 0.0),))
    world.view.apply_tentatively(world.view.jobs[passing], start)
    reservations.take(world.view.jobs[passing], start.placements)
    assert reservations.reserve(world.view.jobs[second]).at == math.inf


def test_a_head_is_promised_once_in_a_decision():
    world = World(Policy(ageing_s=math.inf, end_margin_s=0.0))
    world.node("a", cpus=16, gpus=7)
    world.submit(gpus=5, timeout_s=100.0)
    world.decide()
    world.submit(gpus=3)
    passing = {world.submit(gpus=1, cpus=1.0), world.submit(gpus=1, cpus=2.0)}
    assert set(world.decide()) == passing


def test_reserved_heads_are_bounded(world):
    world.policy = Policy(ageing_s=math.inf, reserved_heads=1)
    world.node("b", gpus=2)
    world.submit(gpus=1, gpu_uuids=("GPU-b-0",))
    world.decide()
    world.submit(gpus=4)
    world.submit(gpus=2, gpu_uuids=("GPU-b-0", "GPU-b-1"))
    passing = world.submit(gpus=1, priority=2)
    assert set(world.decide()) == {passing}


class TestUnknownEnds:
    @pytest.fixture
    def world(self) -> World:
        """Two nodes of 2 GPUs; on `a` a job without a timeout holds one."""
        world = World(Policy(ageing_s=math.inf, end_margin_s=0.0))
        world.node("a", gpus=2)
        world.node("b", gpus=2)
        world.submit(gpus=1, gpu_uuids=("GPU-a-0",))
        world.decide()
        return world

    def test_the_time_is_unknown_and_the_reservation_stands(self, world):
        gang = world.submit(gpus=2, nodes=2)
        assert reservation(world, gang).at == math.inf
        world.submit(gpus=1)
        assert not world.decide()

    def test_a_job_that_surely_ends_may_pass(self, world):
        world.submit(gpus=2, nodes=2)
        passing = world.submit(gpus=1, timeout_s=1e6)
        assert set(world.decide()) == {passing}

    def test_the_node_that_lacks_least_is_reserved(self, world):
        world.submit(gpus=1, gpu_uuids=("GPU-a-1",))
        world.submit(gpus=1, gpu_uuids=("GPU-b-0",))
        world.decide()
        whole = world.submit(gpus=2)
        (share,) = reservation(world, whole).placements
        assert share.node_id == "b"

    def test_free_devices_are_reserved_before_busy_ones(self, world):
        world.node("c", gpus=4)
        for index in (0, 1):
            world.submit(gpus=1, gpu_uuids=(f"GPU-c-{index}",))
        world.decide()
        world.submit(gpus=3)
        world.submit(gpus=1, gpu_uuids=("GPU-c-2",), priority=2)
        assert not world.decide()

    def test_an_attempt_that_is_being_stopped_surely_ends(self, world):
        gang = world.submit(gpus=2, nodes=2)
        world.record(Change(Table.ATTEMPTS, "attempt_job_00001", {"state": "ending"}))
        assert reservation(world, gang).at == world.now

    def test_one_that_outlives_its_end_may_end_at_any_moment(self, world):
        world.set_job("job_00001", timeout_s=10.0)
        world.now += 50
        late = world.submit(gpus=1, gpu_uuids=("GPU-a-0",))
        assert reservation(world, late).at == world.now
        world.set_job(late, state="cancelled")
        world.submit(gpus=2, nodes=2)
        world.submit(gpus=1, timeout_s=5.0)
        assert not world.decide()

    def test_one_that_does_not_run_yet_counts_from_now(self, world):
        world.submit(gpus=2, timeout_s=100.0, gpu_uuids=("GPU-b-0", "GPU-b-1"))
        world.decide(run=False)
        world.now += 30
        assert reservation(world, world.submit(gpus=2)).at == world.now + 100


def test_a_stream_of_small_jobs_never_delays_a_gang():
    """Without a timeout ignoring_quarantine: as each small job ends, its GPU stays with the
    gang.
    """
    world = World(Policy(ageing_s=math.inf))
    for name in ("a", "b"):
        world.node(name, gpus=4)
    small = [world.submit(gpus=1) for _ in range(8)]
    world.decide()
    gang = world.submit(gpus=4, nodes=2)
    for job_id in small:
        for _ in range(3):
            world.submit(gpus=1)
        assert not world.decide()
        assert gang in world.view.queue
        world.end(job_id)
    assert gang in world.decide()


def test_a_gang_that_needs_half_a_node_is_not_starved_by_churn_on_the_other_half():
    world = World(Policy(ageing_s=math.inf))
    world.node("a", gpus=8)
    running = [world.submit(gpus=1) for _ in range(8)]
    world.decide()
    head = world.submit(gpus=4)
    for _ in range(20):
        world.submit(gpus=1)
    while head not in world.decide():
        world.end(running.pop())
    assert len(running) == 4, "it started as soon as 4 had ended"


@pytest.mark.parametrize("ageing_s", [math.inf, 50.0])
def test_a_stream_with_timeouts_delays_a_gang_by_no_more_than_one_of_them(ageing_s):
    world = World(Policy(ageing_s=ageing_s, end_margin_s=0.0))
    world.node("a", gpus=4)
    for number in range(4):
        world.submit(gpus=1, timeout_s=20.0 + 5 * number)
    world.decide()
    gang = world.submit(gpus=4, timeout_s=10.0)
    submitted = world.now
    while gang not in world.running():
        world.submit(gpus=1, timeout_s=7.0)
        world.decide()
        world.now = min(world.next_timeout() or math.inf, world.now + 3)
        world.end_timed_out()
        world.decide()
        assert world.now <= submitted + 35
    assert world.now == submitted + 35


asks = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 4),
        "cpus": st.integers(1, 8),
        "nodes": st.integers(1, 2),
        "timeout_s": st.integers(1, 40),
    }
).filter(lambda ask: ask["gpus"] <= 2 or ask["nodes"] == 1)
later_asks = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 3), asks), max_size=25
)


def head_start(first: list[dict], later: list[tuple[int, int, dict]]) -> float | None:
    """When the first of `first` that cannot start at once does start, all jobs running
    exactly to their timeouts.

    `later` are jobs of less priority: seconds until they are submitted, priority, what
    they ask for.
    """
    world = World(Policy(ageing_s=math.inf, end_margin_s=0.0))
    world.node("a", cpus=8, gpus=4)
    world.node("b", cpus=8, gpus=2)
    world.node("c", cpus=4)
    head = next(
        (
            job_id
            for ask in first
            if not world.decide_for(job_id := world.submit(priority=5, **ask))
        ),
        None,
    )
    began = world.now
    while head and world.next_timeout() and head not in world.running():
        for delay, priority, ask in later:
            if began + delay == world.now:
                world.submit(priority=priority, **ask)
        world.decide()
        world.now += 1
        world.end_timed_out()
        world.decide()
    return world.now if head in world.running() else None


def cores(cpus: int, timeout_s: int, nodes: int = 1) -> dict[str, int]:
    return {"gpus": 0, "cpus": cpus, "nodes": nodes, "timeout_s": timeout_s}


# A share of the gang fits one node at once.
@example(
    [*[cores(1, 1)] * 3, cores(2, 3, nodes=2), cores(3, 2), cores(4, 1, nodes=2)],
    [(0, 1, cores(1, 2))],
)
@given(st.lists(asks, min_size=4, max_size=12), later_asks)
def test_later_jobs_never_delay_the_first_that_waits(first, later):
    assert head_start(first, later) == head_start(first, [])
