"""On which GPUs the workers of a batch may run."""

from gpuyard.controller.core import Core
from gpuyard.domain.scripts import ScriptSpec
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import AttemptState
from gpuyard.domain.units import format_gb
from gpuyard.resource_manager.batch import Batch
from gpuyard.resource_manager.residents import Residents
from gpuyard.scheduler.fitting import suitable_devices
from gpuyard.scheduler.nodes import Device, Node
from gpuyard.scheduler.pool_demand import pools_for


class BatchGpus:
    """Reads from the view and the residents which GPUs batches may use."""

    def __init__(self, core: Core, residents: Residents) -> None:
        self._core = core
        self._residents = residents

    def suitable_for(self, script: ScriptSpec) -> list[Device]:
        """The usable GPUs that have enough memory for the script."""
        devices = self._core.view.usable_devices(joined=script.joined)
        return suitable_devices(devices, _gpu_for(script))

    def exclusive(self, batch: Batch) -> list[Device]:
        """The GPUs that an exclusive batch gets: all suitable ones but those whose
        models never make room, which are brain GPUs and those of pinned models.
        """
        manager = self._core.settings.resource_manager
        kept = {
            device.uuid
            for device in self._core.view.devices.values()
            if manager.is_brain(device.index, device.uuid)
        }
        for resident in self._residents.servers.live.values():
            is_pinned = resident.model in self._residents.pinned
            if is_pinned or not kept.isdisjoint(resident.gpus):
                # A model on several GPUs stays on all of them.
                kept.update(resident.gpus)
        suitable_gpus = self.suitable_for(batch.script)
        return [device for device in suitable_gpus if device.uuid not in kept]

    def of(self, batch: Batch) -> list[Device]:
        """The GPUs on which the workers of the batch may run."""
        if batch.exclusive:
            return self.exclusive(batch)
        return self.suitable_for(batch.script)

    def max_workers(self, batch: Batch) -> int:
        """How many workers of the batch could work at once."""
        if batch.script.gpus:
            return len(self.suitable_for(batch.script))
        nodes = self._core.view.nodes.values()
        joined = batch.script.joined
        cpus = sum(
            node.cpus for node in nodes if node.online and (joined or not node.joined)
        )
        return max(int(cpus), 1)

    def why_not(self, batch: Batch) -> str | None:
        """Why nothing of the batch can run now, for people; None if something may."""
        view = self._core.view
        if batch.all_items_ended or not batch.script.gpus:
            return None
        if not self.suitable_for(batch.script):
            memory_gb = batch.script.memory_gb
            need = f" with {format_gb(memory_gb)}" if memory_gb else ""
            for name, pool in pools_for(view, _gpu_for(batch.script)).items():
                return f"no GPU{need} is there for it yet; the pool {name}: {pool.why}"
            return f"no GPU{need} is there for it; see `gpuyard gpus`"
        if batch.exclusive and not self.exclusive(batch):
            return (
                "every GPU is a brain's, or has a pinned model; unpin one, or submit it"
                " with --shared"
            )
        missing = self.missing_node(batch) if batch.exclusive else None
        if missing and not batch.row["began_at"]:
            return f"it waits for {missing.title}, which has models: {missing.why_not}"
        return None

    def missing_node(self, batch: Batch) -> Node | None:
        """A node with models on it that the batch may use and that is not connected,
        because this server or its agent has just started; None if there is none.
        """
        view = self._core.view
        for resident in self._residents.servers.live.values():
            for gpu in resident.gpus:
                device = view.devices.get(gpu)
                if device is None or device.node_id is None:
                    continue
                node = view.node(device.node_id)
                may_use = batch.script.joined or not node.joined
                # One that a person has cordoned comes back when that person says so.
                if may_use and not node.cordoned and not node.online:
                    return node
        return None

    def may_stay(self, batch: Batch, attempt_id: str) -> bool:
        """Whether a worker may take another item.

        Not if it is being ended, if its GPU is out of use or in quarantine, if its
        node is about to leave, or if a model is needed more there. For a model it
        leaves only after it has done an item, so that each worker gets the batch ahead.
        """
        view = self._core.view
        attempt = view.attempts.get(attempt_id)
        if attempt is None or attempt.state is AttemptState.ENDING:
            return False
        node = view.node(attempt.node_id)
        if node.provider in node.barred or (node.joined and node.cordoned):
            return False
        gpus = attempt.placements[0].gpu_uuids if attempt.placements else ()
        if not gpus:
            return True
        device = view.devices.get(gpus[0])
        if device is None or not device.usable or device.quarantine:
            return False
        if batch.exclusive:
            return True
        if self._residents.closed_for_batch:
            return False
        worker = batch.workers.get(attempt.job_id)
        if worker and not worker.completed:
            return True
        return not self._residents.would_load_on(gpus[0])


def _gpu_for(script: ScriptSpec) -> Shape:
    """The GPU that a worker needs."""
    memory_gb = script.memory_gb or 0.0
    return Shape(gpus=1, gpu_memory_gb=memory_gb, owned=True, portable=script.joined)
