import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.placement import candidates
from gpuyard.scheduler.refusal import describe, impossible, largest, reasons
from tests.unit.scheduler.world import A100_80GB, L4, T4, World


@pytest.fixture
def world() -> World:
    world = World()
    world.node("box", cpus=8, memory_gb=32, gpus=2)
    return world


def rejected(world: World, **shape) -> tuple[str, ...]:
    node = world.view.nodes["box"]
    return reasons(node, Shape(**shape), node.free)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ({"gpus": 3}, "has 2 GPUs, 3 needed"),
        (
            {"gpus": 1, "gpu_memory_gb": 80.0},
            "has 0 GPUs that suit (at least 80 GB), 1 needed",
        ),
        ({"gpus": 1, "gpu_class": "a100"}, "has 0 GPUs that suit (a100), 1 needed"),
        (
            {"gpus": 1, "gpu_capability": "9.0"},
            "has 0 GPUs that suit (compute capability 9.0), 1 needed",
        ),
        ({"gpus": 1, "gpu_uuids": ("GPU-x",)}, "does not have GPU-x"),
        ({"cpus": 9.0}, "has 8 cores, 9 needed"),
        ({"memory_gb": 64.0}, "has 32 GB of memory, 64 GB needed"),
        (
            {"provider": "slurm"},
            "belongs to provider local, which the job does not allow",
        ),
    ],
)
def test_what_a_node_never_has(world, shape, reason):
    assert rejected(world, **shape) == (reason,)


def test_what_is_in_use(world):
    world.submit(gpus=1, cpus=6.0, memory_gb=30.0)
    world.decide()
    assert rejected(world, gpus=2, cpus=4.0, memory_gb=4.0) == (
        "has 1 of 2 suitable GPUs free, 2 needed",
        "has 2 of 8 cores free, 4 needed",
        "has 2 GB of 32 GB of memory free, 4 GB needed",
    )


def test_what_is_broken(world):
    world.set_gpu("GPU-box-1", state="quarantined", problem="ECC errors")
    assert rejected(world, gpus=2) == (
        "has 1 of 2 suitable GPUs free, 2 needed; GPU 1 is quarantined: ECC errors",
    )
    world.set_node("box", "silent", "no report for 30 s")
    assert rejected(world, gpus=1) == ("is silent: no report for 30 s",)


def test_a_node_without_gpus(world):
    world.node("alone")
    alone = world.view.nodes["alone"]
    assert reasons(alone, Shape(gpus=1), alone.free) == ("has no GPU, 1 needed",)


def test_impossible_is_judged_on_all_there_is(world):
    world.submit(gpus=2)
    world.decide()
    assert impossible(world.view, Shape(gpus=2)) is None
    world.set_node("box", "silent")
    world.set_gpu("GPU-box-0", state="quarantined")
    assert impossible(world.view, Shape(gpus=2)) is None
    refusal = impossible(world.view, Shape(gpus=3))
    assert refusal is not None
    assert refusal.reason == "no known node can hold it: box has 2 GPUs, 3 needed"
    assert (
        refusal.largest
        == "the largest node is box: 2 × NVIDIA L4 (24 GB), 8 cores, 32 GB of memory"
    )


def test_a_machine_that_the_job_cannot_reach_without_its_code_is_named(world):
    world.node("lab2", gpus=4)
    world.view.nodes["lab2"].joined = True
    refusal = impossible(world.view, Shape(gpus=3))
    assert refusal is not None
    assert refusal.reason == (
        "no known node can hold it: box has 2 GPUs, 3 needed;"
        " lab2 is another machine, and the job runs only where its folder is: submit"
        " it without --live, --workspace and --image from a folder whose code can be"
        " stored"
    )
    assert impossible(world.view, Shape(gpus=3, portable=True)) is None


def test_impossible_gangs(world):
    world.node("b", gpus=1)
    refusal = impossible(world.view, Shape(gpus=2, nodes=2))
    assert refusal is not None
    assert (
        refusal.reason
        == "it asks for 2 nodes at once, and only 1 of those known can take a share"
    )
    assert impossible(world.view, Shape(gpus=1, nodes=2)) is None


def test_nothing_is_impossible_while_no_node_is_known():
    assert impossible(World().view, Shape(gpus=8)) is None
    assert largest(World().view, Shape()) == "no node is known"


def test_a_provider_with_no_known_node_is_not_judged(world):
    assert impossible(world.view, Shape(gpus=8, provider="slurm")) is None


def test_the_largest_is_the_one_that_comes_nearest(world):
    world.node("small", gpus=8, card=T4)
    world.node("big", gpus=1, card=A100_80GB)
    assert "small" in largest(world.view, Shape(gpus=16))
    assert "big" in largest(world.view, Shape(gpus=2, gpu_memory_gb=80.0))
    assert "1 × NVIDIA A100-SXM4-80GB (80 GB)" in largest(
        world.view, Shape(gpus=2, gpu_class="a100")
    )


def test_a_shape_in_words():
    assert describe(Shape()) == "1 core"
    shape = Shape(
        gpus=4, gpu_class="a100", gpu_memory_gb=80.0, cpus=8.0, memory_gb=64.0, nodes=2
    )
    assert (
        describe(shape)
        == "2 nodes, each with 4 GPUs (a100, at least 80 GB), 8 cores, 64 GB of memory"
    )


shapes = st.builds(
    Shape,
    cpus=st.sampled_from([0.5, 1.0, 4.0, 9.0]),
    memory_gb=st.sampled_from([0.0, 8.0, 40.0]),
    gpus=st.integers(0, 3),
    gpu_memory_gb=st.sampled_from([0.0, 16.0, 24.0, 80.0]),
    gpu_capability=st.sampled_from(["", "7.5", "8.9"]),
    gpu_class=st.sampled_from(["", "t4", "l4", "a100"]),
    provider=st.sampled_from(["", "local", "slurm"]),
)


@given(
    st.lists(st.sampled_from([L4, T4, A100_80GB]), max_size=4),
    shapes,
    st.sampled_from(["online", "silent"]),
    st.integers(0, 2),
)
def test_a_node_is_rejected_exactly_when_it_is_no_candidate(cards, shape, state, busy):
    world = World()
    world.node("box", cpus=8, memory_gb=32)
    for index, card in enumerate(cards):
        world.gpu("box", index, card)
    for _ in range(busy):
        world.submit(gpus=1, cpus=2.0)
    world.decide()
    world.set_node("box", state)
    node = world.view.nodes["box"]
    assert bool(reasons(node, shape, node.free)) is not bool(
        candidates(world.view, shape)
    )
