"""Who is sent ahead, where, and how many."""

from gpuyard.domain.events import Change, Table
from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.decide import decide
from gpuyard.scheduler.prefetch import plan_prefetches
from tests.unit.scheduler.world import World

LOCAL = frozenset({"local"})


def ran(world: World, job_id: str, seconds: float) -> None:
    """The job's attempt on node_a, from its start to an end after `seconds`; another
    job keeps the place.
    """
    world.record(Change(Table.ATTEMPTS, f"a_{job_id}", attempt(job_id)))
    world.record(Change(Table.JOBS, job_id, {"state": "assigned"}))
    world.record(
        Change(
            Table.ATTEMPTS,
            f"a_{job_id}",
            {
                "state": "ended",
                "started_at": world.now,
                "ended_at": world.now + seconds,
            },
        ),
        Change(Table.JOBS, job_id, {"state": "completed"}),
    )


def attempt(job_id: str, **place) -> dict:
    shares = [Placement("node_a", **place).to_row()]
    return {
        "job_id": job_id,
        "state": "running",
        "token": 1,
        "placements": shares,
        "created_at": 1000.0,
    }


def instance(seconds: float, seen: int = 3, gpus: int = 0) -> World:
    """Two cores, both taken, after `seen` jobs that took `seconds` each."""
    world = World()
    world.node("node_a", cpus=2, gpus=2 * gpus)
    for job_id in [world.submit(gpus=gpus) for _ in range(seen)]:
        ran(world, job_id, seconds)
    for number, job_id in enumerate([world.submit(gpus=gpus) for _ in range(2)]):
        uuids = (f"GPU-node_a-{number}",) if gpus else ()
        place = attempt(job_id, cpus=1.0, gpu_uuids=uuids)
        world.record(Change(Table.ATTEMPTS, f"a_{job_id}", place))
        world.record(Change(Table.JOBS, job_id, {"state": "running"}))
    return world


def sent(world: World) -> list[str]:
    """Decide, and carry the claims out, as the controller does."""
    found: list[str] = []
    assert not decide(world.view, world.now, world.policy).actions
    for job, node_id in plan_prefetches(world.view, world.now, world.policy, LOCAL):
        assert node_id == "node_a"
        found.append(job.id)
        world.record(
            Change(Table.ATTEMPTS, f"a_{job.id}", attempt(job.id, prefetched=True)),
            Change(Table.JOBS, job.id, {"state": "assigned"}),
        )
    return found


def test_as_many_short_jobs_as_may_end_while_a_decision_travels():
    world = instance(seconds=0.025)
    jobs = [world.submit() for _ in range(20)]
    first = sent(world)
    assert first == jobs[: len(first)]
    # Two slots, 2 × 0.05 s of travel, 0.025 s each; floats round.
    assert len(first) in (8, 9)
    assert sent(world) == []
    assert world.view.nodes["node_a"].free.cpus == 0


def test_further_ones_are_sent_when_a_quarter_has_started():
    world = instance(seconds=0.001)
    jobs = [world.submit() for _ in range(100)]
    first = sent(world)
    assert first == jobs[:64]
    for job_id in first[:15]:
        over(world, job_id)
    assert sent(world) == []
    over(world, first[15])
    assert sent(world) == jobs[64:80]


def over(world: World, job_id: str) -> None:
    """The job has ended in the place of another one."""
    world.record(
        Change(Table.ATTEMPTS, f"a_{job_id}", {"state": "ended"}),
        Change(Table.JOBS, job_id, {"state": "completed"}),
    )


def test_no_job_is_sent_ahead_to_a_gpu_that_must_cool_first():
    world = instance(seconds=0.025, gpus=1)
    world.submit(gpus=1)
    world.view.cooling_s = 5.0
    assert sent(world) == []
    world.view.cooling_s = 0.0
    assert len(sent(world)) == 1


def test_prompts_that_wait_for_a_model_stop_nobody():
    world = instance(seconds=0.025)
    world.submit(cpus=0.0, model="toy", priority=5)
    job = world.submit()
    assert sent(world) == [job]


def test_long_jobs_and_those_of_which_little_is_known_are_not_sent_ahead():
    for world in (instance(seconds=10.0), instance(seconds=0.001, seen=2)):
        world.submit()
        assert sent(world) == []


def test_nobody_is_sent_ahead_of_one_that_stands_before_him():
    world = instance(seconds=0.001)
    world.submit(priority=5, gpus=1)
    world.submit()
    assert sent(world) == []


def test_nothing_is_sent_to_a_node_that_is_silent_or_cannot_let_it_wait():
    world = instance(seconds=0.001)
    world.submit()
    assert (
        list(plan_prefetches(world.view, world.now, world.policy, frozenset({"other"})))
        == []
    )
    world.set_node("node_a", "silent")
    assert sent(world) == []


def test_a_place_taken_over_makes_room_for_the_next():
    world = instance(seconds=0.1)
    one, two, three = [world.submit() for _ in range(3)]
    assert sent(world) == [one, two]
    world.record(
        Change(
            Table.ATTEMPTS,
            f"a_{one}",
            {"placements": [Placement("node_a", cpus=1.0).to_row()]},
        )
    )
    assert world.view.prefetch_sites.by_node(Shape().interned())["node_a"].waiting == {
        f"a_{two}": None
    }
    assert sent(world)[:1] == [three]


def test_what_is_over_leaves_nothing_behind():
    world = instance(seconds=0.001)
    for job_id in [*sent(world), *world.view.jobs]:
        world.record(
            Change(Table.ATTEMPTS, f"a_{job_id}", {"state": "ended"}),
            Change(Table.JOBS, job_id, {"state": "completed"}),
        )
    assert world.view.prefetch_sites.waiting == {}
    assert world.view.prefetch_sites.by_node(Shape().interned()) == {}
