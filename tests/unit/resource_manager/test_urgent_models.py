"""Which preemptible script makes room for a model that an urgent request waits for."""

from collections.abc import Callable

import pytest

from gpuyard.residency.fleet import Demand, Fleet, FleetGpu, FleetResident, Phase
from gpuyard.residency.switching import Switch, SwitchTimes
from gpuyard.resource_manager.urgent_models import gpu_of_preemptible_script
from gpuyard.scheduler.usage import Usage
from tests.unit.scheduler.world import World

GPUS = tuple(f"GPU-here-{index}" for index in range(3))


def world(usage: Usage | None = None) -> World:
    """Scripts on all GPUs. The owner of the first has not marked it preemptible."""
    made = World(usage=usage)
    made.node("here", gpus=len(GPUS))
    for is_preemptible in (False, True, True):
        script = made.submit(gpus=1)
        made.set_job(script, preemptible=is_preemptible)
        made.decide()
    made.decide()  # appraises those that run now
    return made


def fleet() -> Fleet:
    gpus = {uuid: FleetGpu(uuid, 22.0, worker="script") for uuid in GPUS}
    times = {(name, move): 10.0 for name in ("model", "other") for move in Switch}
    return Fleet(
        gpus,
        {"script": 0.0, "model": 16.0, "other": 16.0},
        SwitchTimes(times),
        demand={"model": Demand(), "other": Demand()},
        exclusive_scripts=True,
    )


def place_of(of: World, made: Fleet) -> str | None:
    gpu = gpu_of_preemptible_script(of.view, made, "model")
    return gpu.id if gpu else None


def test_a_script_whose_owner_allows_it_makes_room_last_on_the_brains_gpus() -> None:
    made = fleet()
    made.gpus[GPUS[1]].brain_rank = 1
    assert place_of(world(), made) == GPUS[2]
    made.gpus[GPUS[2]].reserved = True
    assert place_of(world(), made) == GPUS[1]


def _too_large(made: Fleet) -> None:
    made.memory_gb = {**made.memory_gb, "model": 23.0}


def _other_model(phase: Phase) -> Callable[[Fleet], None]:
    def put(made: Fleet) -> None:
        gpu = FleetGpu("fourth", 22.0)
        gpu.residents["other"] = FleetResident("other", gpu, phase, 0.0)
        made.gpus["fourth"] = gpu

    return put


def _on_two_gpus(made: Fleet) -> None:
    made.gang_sizes = {"model": 2}


@pytest.mark.parametrize(
    "change",
    [
        _too_large,
        _other_model(Phase.READY),
        _other_model(Phase.UNLOADING),
        _on_two_gpus,
    ],
    ids=["too large", "an idle model", "a model that leaves", "several GPUs"],
)
def test_no_script_makes_room_in_vain(change: Callable[[Fleet], None]) -> None:
    made = fleet()
    change(made)
    assert place_of(world(), made) is None


def test_where_shares_count_no_script_of_another_makes_room() -> None:
    assert place_of(world(Usage(by_share=True)), fleet()) is None


def test_a_busy_model_elsewhere_is_no_reason_to_wait() -> None:
    made = fleet()
    _other_model(Phase.BUSY)(made)
    assert place_of(world(), made) in GPUS[1:]
