"""What fits where room has become free is what fits there, looked up at once."""

import itertools

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.fitting import fit, may_use
from gpuyard.scheduler.freed_rooms import FreedRooms
from tests.unit.scheduler.world import A100_80GB, T4, World

NEEDS = {
    "cpus": (1.0, 9.0, 17.0),
    "memory_gb": (0.0, 32.0, 65.0),
    "gpus": (0, 1, 3),
    "gpu_memory_gb": (0.0, 40.0),
    "gpu_class": ("", "T4"),
    "provider": ("", "elsewhere"),
    "quarantined": (False, True),
}


def test_the_same_shapes_fit_as_one_by_one() -> None:
    world = World()
    world.node("small", cpus=16, memory_gb=64, gpus=2, card=T4)
    world.node("large", cpus=8, memory_gb=128, gpus=3, card=A100_80GB)
    world.node("far", gpus=3, provider="elsewhere")
    world.trust("gpu:GPU-large-0", until=world.now + 60.0)
    world.node("away", cpus=64, memory_gb=512, gpus=8)
    world.set_node("away", "offline")
    world.decide()
    nodes = list(world.view.nodes.values())
    shapes = [
        Shape(**dict(zip(NEEDS, values, strict=True)))
        for values in itertools.product(*NEEDS.values())
    ]
    one_by_one = [
        shape
        for shape in shapes
        if any(
            node.online and may_use(node, shape) and fit(node.free, shape) is not None
            for node in nodes
        )
    ]
    assert 0 < len(one_by_one) < len(shapes)
    assert FreedRooms(nodes).fitting(shapes) == one_by_one
    assert FreedRooms([]).fitting(shapes) == []
