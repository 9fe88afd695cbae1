"""The residency policy `static`: each GPU is for one model, or for scripts."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from gpuyard.residency.fleet import Fleet, FleetGpu, Phase
from gpuyard.residency.policies import (
    Action,
    LoadModel,
    RunScript,
    UnloadModel,
    finish_leaving,
)


@dataclass(slots=True)
class StaticPolicy:
    """Half of the GPUs, rounded up, are for models, in turn; the others for scripts.

    No model is ever moved.
    """

    wake_at: float = math.inf

    def act(self, fleet: Fleet, now: float) -> Action | None:
        """Load requested models on their GPUs, and run scripts on the others."""
        if step := finish_leaving(fleet):
            return step
        gpus = sorted(fleet.gpus.values(), key=lambda gpu: -gpu.brain_rank)
        half = math.ceil(len(gpus) / 2) if fleet.demand else 0
        for model, own_gpus in _dealt(fleet, gpus[:half]):
            is_free = not any(gpu.residents for gpu in own_gpus) and all(
                fleet.has_room(gpu, model) for gpu in own_gpus
            )
            is_wanted = fleet.demand[model].waiting and not fleet.closed_for_batch
            if is_wanted and is_free:
                return LoadModel.on(model, own_gpus)
        return _run_script_on(fleet, gpus[half:]) if fleet.scripts else None


def _run_script_on(fleet: Fleet, gpus: Iterable[FleetGpu]) -> Action | None:
    """Run a script on one of these GPUs. Models that were loaded there before are
    unloaded.
    """
    names = [task.name for task in fleet.script_kinds()]
    for gpu in gpus:
        if any(fleet.has_room(gpu, name) for name in names):
            return RunScript(gpu.id)
        for resident in gpu.residents.values():
            if resident.phase is Phase.READY and gpu.id not in fleet.pinned_gpus:
                return UnloadModel(resident.model, gpu.id)
    return None


def _dealt(
    fleet: Fleet, gpus: Iterable[FleetGpu]
) -> Iterator[tuple[str, tuple[FleetGpu, ...]]]:
    """Deal the GPUs to the models in turn, the brain's first, to each as many as it
    needs. GPUs on different nodes are no gang and stay unused.
    """
    left = iter(gpus)
    models = sorted(
        fleet.demand, key=lambda name: (name not in fleet.brain_models, name)
    )
    for model in cycle(models):
        need = fleet.gang_sizes.get(model, 1)
        own_gpus = tuple(islice(left, need))
        if len(own_gpus) < need:
            return
        if len({gpu.node for gpu in own_gpus}) == 1:
            yield model, own_gpus
