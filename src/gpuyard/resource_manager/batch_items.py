"""Which worker of a batch does which item."""

from gpuyard.controller.core import Core
from gpuyard.residency.item_assignment import FAR_FROM_OVER, BatchGpu, next_item
from gpuyard.resource_manager.batch import Batch, Item
from gpuyard.resource_manager.batch_gpus import BatchGpus
from gpuyard.resource_manager.batch_workers import BatchWorkers
from gpuyard.resource_manager.residents import Residents


class BatchItems:
    """Chooses the next item for a worker."""

    def __init__(
        self, core: Core, residents: Residents, gpus: BatchGpus, workers: BatchWorkers
    ) -> None:
        self._core = core
        self._residents = residents
        self._gpus = gpus
        self._workers = workers

    def choose(self, batch: Batch, gpu: str | None) -> Item | None:
        """The item that a worker on this GPU does next; None if the worker must end."""
        in_order = self._core.settings.residency.policy == "round_robin"
        if not batch.exclusive or gpu is None:
            return batch.first_queued() if in_order else batch.longest_queued()
        if in_order:
            return self._in_turn(batch, gpu)
        places = self.places(batch, gpu)
        is_known = any(place.gpu == gpu for place in places)
        is_far_from_over = len(batch.queued) > FAR_FROM_OVER * len(places)
        if not is_known or is_far_from_over:
            return batch.longest_queued()
        queued = list(batch.queued.values())
        durations = [batch.expected_s(item) for item in queued]
        position = next_item(durations, places, gpu)
        return None if position is None else queued[position]

    def _in_turn(self, batch: Batch, gpu: str) -> Item | None:
        """The next item of this GPU's share: the first of three GPUs has the items 1,
        4, 7 and so on.
        """
        devices = self._gpus.exclusive(batch)
        devices.sort(key=lambda device: (device.index, device.uuid))
        gpus = [device.uuid for device in devices]
        if gpu not in gpus:
            return None
        share = [
            item
            for item in batch.queued.values()
            if (item.number - 1) % len(gpus) == gpus.index(gpu)
        ]
        return min(share, key=lambda item: item.number, default=None)

    def places(self, batch: Batch, asking: str | None = None) -> list[BatchGpu]:
        """The GPUs of the batch, and when each is free for an item.

        The GPU of the worker that is `asking` is free now.
        """
        now = self._core.clock()
        running_on = {item.gpu: item for item in batch.running.values()}
        waiting_for = {worker.gpu for worker in self._workers.waiting(batch)}
        has_worker = {worker.gpu for worker in batch.workers.values()}
        places: list[BatchGpu] = []
        for device in self._gpus.of(batch):
            gpu = device.uuid
            # A worker that waits for its GPU may start late, or never.
            is_out = gpu in batch.released or gpu in waiting_for
            if is_out and gpu != asking:
                continue
            item = running_on.get(gpu)
            if item:
                free_in_s = batch.remaining_s(item, now)
            elif gpu in has_worker or gpu == asking:
                free_in_s = 0.0
            else:
                free_in_s = batch.script.boot_s
            models = batch.reload.get(gpu, ())
            load_s = sum(self._residents.reload_s(model) for model in models)
            places.append(BatchGpu(gpu, free_in_s, load_s))
        return places
