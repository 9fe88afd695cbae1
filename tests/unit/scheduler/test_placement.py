import pytest

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.placement import candidates, place
from tests.unit.scheduler.world import A100_80GB, L4, T4, UNKNOWN_24GB, World


@pytest.fixture
def world() -> World:
    return World()


def placed(world: World, **shape) -> list[tuple[str, tuple[str, ...]]] | None:
    found = place(world.view, Shape(**shape))
    return (
        None if found is None else [(share.node_id, share.gpu_uuids) for share in found]
    )


def nodes_of(world: World, **shape) -> set[str] | None:
    found = placed(world, **shape)
    return None if found is None else {node_id for node_id, _ in found}


def test_a_share_books_exactly_what_the_shape_says(world):
    world.node("a", gpus=2)
    (share,) = place(world.view, Shape(cpus=3.0, memory_gb=5.0, gpus=1))
    assert (share.node_id, share.gpu_uuids, share.cpus, share.memory_gb) == (
        "a",
        ("GPU-a-0",),
        3.0,
        5.0,
    )


def test_the_smallest_device_that_will_do(world):
    world.node("a")
    for index, card in enumerate([A100_80GB, L4, T4, UNKNOWN_24GB]):
        world.gpu("a", index, card)
    assert placed(world, gpus=1) == [("a", ("GPU-a-2",))]
    assert placed(world, gpus=1, gpu_memory_gb=20.0) == [("a", ("GPU-a-1",))]
    assert placed(world, gpus=1, gpu_capability="9.0") == [("a", ("GPU-a-3",))]
    assert placed(world, gpus=1, gpu_memory_gb=40.0) == [("a", ("GPU-a-0",))]
    assert placed(world, gpus=2, gpu_memory_gb=40.0) is None


def test_the_smallest_device_counts_across_nodes(world):
    world.node("big", gpus=1, card=A100_80GB)
    world.node("small", gpus=4, card=T4)
    assert nodes_of(world, gpus=1) == {"small"}


def test_gpus_of_the_brain_come_last():
    world = World()
    world.view.brain_ranks = {"0": 2, "GPU-b-1": 1}
    world.node("a", gpus=2)
    world.node("b", gpus=2, card=A100_80GB)
    order = []
    for _ in range(4):
        ((node, (uuid,)),) = placed(world, gpus=1) or []
        order.append(uuid)
        world.set_gpu(uuid, state="offline")
    assert order == ["GPU-a-1", "GPU-b-1", "GPU-a-0", "GPU-b-0"]
    assert node == "b"


def test_a_gpu_with_another_index_has_the_role_of_that_index():
    world = World()
    world.view.brain_ranks = {"0": 2}
    world.node("a", gpus=2)
    world.set_gpu("GPU-a-0", index=1)
    world.set_gpu("GPU-a-1", index=0)
    assert placed(world, gpus=1) == [("a", ("GPU-a-0",))]


def test_the_lowest_index_first(world):
    world.node("a", gpus=3)
    assert placed(world, gpus=2) == [("a", ("GPU-a-0", "GPU-a-1"))]


def test_the_fullest_node_that_fits(world):
    world.node("any", gpus=4)
    world.node("narrow", gpus=2)
    assert nodes_of(world, gpus=1) == {"narrow"}
    assert nodes_of(world, gpus=3) == {"any"}
    world.submit(gpus=3)
    world.decide()
    assert nodes_of(world, gpus=1) == {"any"}


def test_cores_then_memory_then_the_id_decide_ties(world):
    world.node("c", cpus=16, gpus=1)
    world.node("b", cpus=8, gpus=1)
    world.node("a", cpus=8, memory_gb=128, gpus=1)
    assert nodes_of(world, gpus=1) == {"b"}
    world.node("b2", cpus=8, gpus=1)
    assert nodes_of(world, gpus=1) == {"b"}


def test_jobs_without_gpus_keep_off_gpu_nodes(world):
    world.node("gpu", cpus=4, gpus=2)
    world.node("cpu", cpus=64)
    assert nodes_of(world, cpus=2.0) == {"cpu"}
    world.submit(gpus=2)
    world.decide()
    assert nodes_of(world, cpus=2.0) == {"cpu"}, (
        "a GPU node whose GPUs are taken is one all the same"
    )
    world.submit(cpus=64.0)
    world.decide()
    assert nodes_of(world, cpus=2.0) == {"gpu"}


def test_a_nominal_16_gb_card_will_do_for_16_gb(world):
    world.node("a", gpus=1, card=T4)
    assert placed(world, gpus=1, gpu_memory_gb=16.0) is not None
    assert placed(world, gpus=1, gpu_memory_gb=16.5) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [("a100", True), ("a100-80gb", True), ("a100-40gb", False), ("t4", False)],
)
def test_classes(world, name, found):
    world.node("a", gpus=1, card=A100_80GB)
    assert (placed(world, gpus=1, gpu_class=name) is not None) is found


def test_pins_are_honoured(world):
    world.node("a", gpus=2)
    world.node("b", gpus=2)
    assert placed(world, gpus=1, gpu_uuids=("GPU-b-1",)) == [("b", ("GPU-b-1",))]
    assert placed(world, gpus=2, gpu_uuids=("GPU-a-0", "GPU-b-0")) is None
    assert placed(world, gpus=1, gpu_uuids=("GPU-x",)) is None
    assert placed(world, gpus=1, gpu_uuids=("GPU-a-0",), gpu_memory_gb=80.0) is None


def test_providers(world):
    world.node("a", provider="local")
    world.node("b", provider="agents")
    assert nodes_of(world, provider="agents") == {"b"}
    assert nodes_of(world, providers=("agents", "slurm")) == {"b"}
    assert placed(world, provider="slurm") is None


def test_gangs_are_all_or_nothing_on_distinct_nodes(world):
    for name in ("a", "b", "c"):
        world.node(name, gpus=2)
    assert nodes_of(world, gpus=2, nodes=3) == {"a", "b", "c"}
    assert placed(world, gpus=1, nodes=4) is None
    world.submit(gpus=1)
    world.decide()
    assert placed(world, gpus=2, nodes=3) is None
    assert nodes_of(world, gpus=2, nodes=2) == {"b", "c"}


@pytest.mark.parametrize("state", ["silent", "gone", "draining", "unknown"])
def test_only_nodes_online_are_placed_on(world, state):
    world.node("a", gpus=1)
    world.set_node("a", state)
    assert placed(world) is None


@pytest.mark.parametrize("state", ["offline", "quarantined", "draining"])
def test_only_usable_gpus_are_given(world, state):
    world.node("a", gpus=2)
    world.set_gpu("GPU-a-0", state=state)
    assert placed(world, gpus=1) == [("a", ("GPU-a-1",))]
    assert placed(world, gpus=2) is None


def test_cores_and_memory_bound_too(world):
    world.node("a", cpus=4, memory_gb=8, gpus=8)
    assert placed(world, cpus=4.5) is None
    assert placed(world, memory_gb=9.0) is None
    assert placed(world, cpus=4.0, memory_gb=8.0, gpus=8) is not None


def test_ten_tenths_of_a_core_are_a_core(world):
    world.node("a", cpus=1)
    jobs = {world.submit(cpus=0.1) for _ in range(11)}
    assert len(world.decide()) == 10 == len(jobs) - 1


def test_candidates_come_best_first(world):
    world.node("b", gpus=4)
    world.node("a", gpus=2)
    world.node("c")
    assert [
        candidate.node.id for candidate in candidates(world.view, Shape(gpus=1))
    ] == ["a", "b"]
