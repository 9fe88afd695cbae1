"""How much of a GPU models may take that share it."""

import pytest

from gpuyard.residency.fleet import Demand, Fleet, FleetGpu, FleetResident, Phase
from gpuyard.residency.policies import makes_room
from gpuyard.residency.switching import SwitchTimes


def shared(gpu_gb: float, *models_gb: float) -> Fleet:
    """A GPU of which models may share 80 %. All models but the last are on it."""
    names = [f"model {number}" for number in range(len(models_gb))]
    gpu = FleetGpu("gpu", gpu_gb)
    for name in names[:-1]:
        gpu.residents[name] = FleetResident(name, gpu, Phase.READY, 0.0)
    return Fleet(
        {gpu.id: gpu},
        dict(zip(names, models_gb, strict=True)),
        SwitchTimes({}),
        demand={name: Demand() for name in names},
        exclusive_scripts=True,
        shared_part=80 / 100,
    )


def has_room(fleet: Fleet) -> bool:
    """Whether the last of its models has room."""
    return fleet.has_room(fleet.gpus["gpu"], list(fleet.memory_gb)[-1])


@pytest.mark.parametrize(
    ("gpu_gb", "model_gb", "count"), [(16, 3.2, 4), (40, 6.4, 5), (80, 12.8, 5)]
)
def test_they_may_take_exactly_that_part_and_no_more(
    gpu_gb: float, model_gb: float, count: int
) -> None:
    assert has_room(shared(gpu_gb, *[model_gb] * count))
    assert not has_room(shared(gpu_gb, *[model_gb] * (count - 1), model_gb + 0.1))


def test_one_that_is_alone_may_take_all() -> None:
    assert has_room(shared(24, 24))
    assert not has_room(shared(24, 1, 23))


def test_one_leaves_if_another_can_be_alone_then() -> None:
    fleet = shared(24, 10, 24)
    (resident,) = fleet.holders(fleet.gpus["gpu"])
    assert makes_room(fleet, resident, "model 1")
