"""Preemptible scripts make room for models that urgent requests wait for."""

from collections.abc import Iterator

from gpuyard.residency.fleet import Fleet, FleetGpu
from gpuyard.residency.policies import next_step_for
from gpuyard.scheduler.preemption import URGENT
from gpuyard.scheduler.view import View


def gpu_of_preemptible_script(view: View, fleet: Fleet, model: str) -> FleetGpu | None:
    """The GPU where the model is to be loaded in place of a preemptible script; None if
    there is none.

    No script makes room while an idle model can, or while one is about to. A model on
    several GPUs gets them in its own way. Where shares count, an urgent job displaces
    only those of its own user, and a model has none.
    """
    if model in fleet.gang_sizes or view.usage.by_share or fleet.count_leaving():
        return None
    step, _ = next_step_for(fleet, model)
    if step is not None:
        return None
    candidates = [
        fleet.gpus[uuid]
        for uuid in _gpus_of_preemptible_scripts(view)
        if uuid in fleet.gpus and _would_fit(fleet, fleet.gpus[uuid], model)
    ]
    # Of equally good ones, the first: its script loses the least.
    return min(
        candidates,
        key=lambda gpu: (fleet.role_order(gpu, model), fleet.load_s(model, gpu)),
        default=None,
    )


def _gpus_of_preemptible_scripts(view: View) -> Iterator[str]:
    """The UUIDs, on each node those whose script loses the least first."""
    for node_id in view.victims.nodes():
        for victim in view.victims.on(node_id):
            if victim.job.priority < URGENT:
                for place in victim.attempt.placements:
                    yield from place.gpu_uuids


def _would_fit(fleet: Fleet, gpu: FleetGpu, model: str) -> bool:
    """Whether the model fits on the GPU once its script is gone."""
    is_kept = gpu.reserved or bool(fleet.holders(gpu))
    is_large_enough = fleet.memory_gb[model] <= gpu.memory_gb
    return fleet.may_use(gpu, model) and is_large_enough and not is_kept
