import math

import pytest

from gpuyard.scheduler.decide import decide
from gpuyard.scheduler.explanation import NodeVerdict
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.why import why
from tests.unit.scheduler.world import A100_80GB, World, snapshot


@pytest.fixture
def world() -> World:
    world = World(Policy(ageing_s=math.inf, end_margin_s=0.0))
    world.node("box", cpus=8, memory_gb=32, gpus=2)
    return world


@pytest.fixture
def full(world) -> World:
    """Both GPUs are in use: one until 1100, one for who knows how long."""
    world.submit(gpus=1, timeout_s=100.0)
    world.submit(gpus=1)
    world.decide()
    return world


def test_only_pending_jobs_have_a_why(full):
    assert why(full.view, "job_00001", full.now, full.policy) is None
    assert why(full.view, "job_99999", full.now, full.policy) is None


def test_what_is_in_use_bounds_and_help(full):
    job_id = full.submit(gpus=1)
    answer = full.why(job_id)
    assert answer.summary == "What it needs is in use: 1 GPU, 1 core."
    assert answer.constraint == "capacity"
    assert (answer.position, answer.ahead) == (1, 0)
    assert answer.estimate_s == 100.0
    assert "reached their timeouts" in answer.estimate_basis
    assert answer.would_help == (
        "wait for job_00001 (bounded by its timeout in 1m40s)",
    )
    assert answer.candidates == (
        NodeVerdict(
            "box", "box", False, True, ("has 0 of 2 suitable GPUs free, 1 needed",)
        ),
    )


def test_behind_whom_it_waits(full):
    """Programs ask that, and do not read sentences."""
    on_gpus = ("job_00001", "job_00002")
    answer = full.why(full.submit(gpus=1))
    assert (answer.behind, answer.behind_total) == (on_gpus, 2)
    pinned = full.why(full.submit(gpus=1, gpu_uuids=("GPU-box-1",)))
    assert pinned.behind == ("job_00002",)
    never = full.why(full.submit(gpus=1, gpu_class="t4"))
    assert (never.behind, never.behind_total) == ((), 0), "no node has that"
    full.set_node("box", "offline")
    gone = full.why(full.submit(gpus=1))
    assert (gone.behind, gone.behind_total) == ((), 0), "the node is at fault"


def test_an_end_that_no_timeout_bounds(full):
    answer = full.why(full.submit(gpus=2))
    assert answer.estimate_s is None
    assert answer.estimate_basis == "no timeout bounds job_00002"
    assert "wait for job_00002 (no timeout)" in answer.would_help


def test_the_second_of_its_kind(full):
    full.submit(gpus=1)
    answer = full.why(full.submit(gpus=1))
    assert (answer.position, answer.ahead, answer.estimate_s) == (2, 1, None)
    assert "jobs with the same needs" in answer.estimate_basis


def test_one_gpu_less_would_fit(world):
    world.submit(gpus=1)
    world.decide()
    assert "lower --gpus to 1" in world.why(world.submit(gpus=2)).would_help


def test_a_pin_that_stands_in_the_way(world):
    world.submit(gpus=1, gpu_uuids=("GPU-box-0",))
    world.decide()
    answer = world.why(world.submit(gpus=1, gpu_uuids=("GPU-box-0",)))
    assert answer.constraint == "pinned"
    assert "let the scheduler choose the GPU instead of pinning it" in answer.would_help
    assert "wait for job_00001 (no timeout)" in answer.would_help


def test_waiting_for_cores_names_who_holds_them(world):
    world.submit(cpus=8.0, timeout_s=60.0)
    world.decide()
    answer = world.why(world.submit(gpus=1, cpus=2.0))
    assert answer.estimate_s == 60.0
    assert answer.would_help == (
        "wait for job_00001 (bounded by its timeout in 1m00s)",
    )
    assert answer.behind == ("job_00001",)


def test_held_back_for_one_that_comes_first(world):
    world.submit(gpus=1, timeout_s=100.0)
    world.decide()
    world.submit(gpus=2)
    world.decide()
    answer = world.why(world.submit(gpus=1))
    assert answer.constraint == "reservation"
    assert "job_00002 (2 GPUs, 1 core)" in answer.summary
    assert answer.behind == ("job_00002",)
    assert answer.would_help == (
        "give it a timeout of at most 1m40s",
        "raise its priority",
    )
    short = world.submit(gpus=1, timeout_s=100.0, priority=2)
    assert world.why(short).constraint == "starting"


def test_held_back_for_one_whose_time_is_unknown(world):
    world.submit(gpus=1)
    world.decide()
    world.submit(gpus=2)
    assert world.why(world.submit(gpus=1)).would_help[0] == "give it a timeout"


def test_held_back_by_the_right_one(world):
    world.node("other", gpus=2, card=A100_80GB)
    world.submit(gpus=1, gpu_class="a100")
    world.submit(gpus=1, gpu_class="l4")
    world.decide()
    world.submit(gpus=2, gpu_class="a100")
    world.submit(gpus=2, gpu_class="l4")
    assert "job_00004" in world.why(world.submit(gpus=1, gpu_class="l4")).summary


def test_not_its_turn(world):
    world.submit(gpus=1)
    answer = world.why(world.submit(gpus=1))
    assert answer.constraint == "priority"
    assert "1 job before it in line" in answer.summary


def test_starting(world):
    job_id = world.submit(gpus=1)
    assert (world.why(job_id).constraint, world.why(job_id).estimate_s) == (
        "starting",
        0.0,
    )
    world.wake_at()
    other = world.submit(gpus=1)
    decide(world.view, world.now, world.policy)
    assert world.why(other).summary == "It is being started on box."


def test_no_node_at_all():
    world = World()
    answer = world.why(world.submit())
    assert (answer.constraint, answer.summary) == ("no_nodes", "No node is known yet.")


@pytest.mark.parametrize(
    ("state", "cure"),
    [("silent", "start the agent of node box"), ("draining", "stop draining node box")],
)
def test_no_node_online(world, state, cure):
    world.set_node("box", state, "told so")
    answer = world.why(world.submit(gpus=1))
    assert answer.constraint == "no_nodes"
    assert answer.would_help == (f"{cure} (it is {state}: told so)",)
    assert not answer.candidates[0].fits_now
    assert answer.candidates[0].would_fit_empty


def test_the_node_that_could_is_offline(world):
    world.node("cpu")
    world.set_node("box", "silent")
    answer = world.why(world.submit(gpus=1))
    assert answer.constraint == "offline"
    assert answer.would_help[0] == "start the agent of node box (it is silent)"


def test_a_gpu_that_is_out_of_use(full):
    full.end("job_00001")
    full.set_gpu("GPU-box-0", state="quarantined", problem="ECC errors")
    answer = full.why(full.submit(gpus=1))
    assert (
        "bring back GPU 0 of box (it is quarantined: ECC errors)" in answer.would_help
    )


@pytest.mark.parametrize(
    ("shape", "constraint", "advice"),
    [
        ({"gpus": 4}, "gpus", "lower --gpus to 2"),
        ({"gpus": 1, "gpu_class": "a100"}, "gpu_class", "allow other GPUs than a100"),
        (
            {"gpus": 1, "gpu_memory_gb": 80.0},
            "gpu_memory",
            "ask for GPUs with at most 24 GB",
        ),
        (
            {"gpus": 1, "gpu_capability": "9.0"},
            "gpu_capability",
            "ask for compute capability 8.9 at most",
        ),
        (
            {"gpus": 1, "gpu_uuids": ("GPU-x",)},
            "pinned",
            "let the scheduler choose the GPU instead of pinning it",
        ),
        ({"cpus": 64.0}, "cpus", "lower --cpus to 8"),
        ({"memory_gb": 64.0}, "memory", "ask for at most 32 GB of memory"),
        ({"nodes": 3}, "nodes", "lower --nodes to 1"),
    ],
)
def test_what_no_node_has(world, shape, constraint, advice):
    answer = world.why(world.submit(**shape))
    assert answer.constraint == constraint
    assert advice in answer.would_help
    assert any(text.startswith("the largest node is box") for text in answer.would_help)


def test_what_no_single_change_would_cure(world):
    answer = world.why(world.submit(gpus=4, gpu_memory_gb=80.0))
    assert answer.constraint == "impossible"
    assert len(answer.would_help) == 1


def test_dependencies(world):
    parents = [world.submit() for _ in range(5)]
    world.set_job(parents[0], state="running")
    child = world.submit(depends_on=[*parents, "job_99999"])
    answer = world.why(child)
    assert answer.constraint == "dependency"
    assert (
        answer.summary
        == "It depends on job_00001 (running), job_00002 (queued), job_00003 (queued)"
        " and 3 more."
    )
    world.end(parents[0], "failed")
    assert (
        world.why(child).summary
        == "It can never start. It depends on job_00001, which ended failed."
    )


def test_backoff(world):
    job_id = world.submit(not_before=world.now + 20)
    assert world.why(job_id).constraint == "backoff"
    assert "in 20s" in world.why(job_id).summary
    world.now += 20
    assert world.why(job_id).constraint == "starting"


def test_asking_changes_nothing(full):
    waiting = [
        full.submit(gpus=1),
        full.submit(gpus=2),
        full.submit(gpus=5),
        full.submit(depends_on=["job_x"]),
    ]
    before = snapshot(full.view)
    for job_id in waiting:
        full.why(job_id)
    assert snapshot(full.view) == before
