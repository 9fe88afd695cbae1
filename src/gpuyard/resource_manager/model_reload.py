"""Loads the models again that made room for an exclusive batch."""

import time
from collections.abc import Callable, Iterator

from gpuyard.controller.core import Core
from gpuyard.domain.batches import BatchState
from gpuyard.residency.fleet import Phase
from gpuyard.resource_manager.batch import Batch
from gpuyard.resource_manager.batch_gpus import BatchGpus
from gpuyard.resource_manager.residents import Residents


class ModelReload:
    """Notes which models make room for a batch, and loads them again.

    `wake_at(time)` plans a decision at a monotonic time.
    """

    def __init__(
        self,
        core: Core,
        residents: Residents,
        gpus: BatchGpus,
        wake_at: Callable[[float], None],
    ) -> None:
        self._core = core
        self._residents = residents
        self._gpus = gpus
        self._wake_at = wake_at

    def note_models(self, batch: Batch) -> None:
        """Record the models to load again, before the first one makes room."""
        manager = self._core.settings.resource_manager
        gpus = {device.uuid for device in self._gpus.exclusive(batch)}
        reload: dict[str, list[str]] = {}
        if manager.batch_settings.reload_llms_after_batch:
            for resident in self._residents.servers.live.values():
                is_draining = resident.replica and resident.replica.draining
                if is_draining or resident.phase is Phase.UNLOADING:
                    continue
                if resident.is_awake and gpus.issuperset(resident.gpus):
                    for gpu in resident.gpus:
                        reload.setdefault(gpu, []).append(resident.model)
        now = self._core.clock()
        self._core.emit([batch.changed(now, began_at=now, reload=reload)])

    def load_next(self, batch: Batch) -> None:
        """Load the next model on GPUs that the batch needs no more, one at a time.
        Those that have not left yet stay.
        """
        servers = self._residents.servers
        for resident in servers.live.values():
            if resident.may_stay and self._has_done(batch, resident.gpus):
                servers.stay(resident)
        if any(resident.phase is Phase.BOOTING for resident in servers.live.values()):
            return
        for model, gpus in self._models(batch):
            if not self._has_done(batch, gpus):
                continue
            failure = servers.failures.get(model)
            if failure and time.monotonic() < failure.until:
                self._wake_at(failure.until)
                continue
            is_back = self._is_back(batch, gpus, model)
            # Its server may be going to sleep there, or ending.
            is_there = any(
                resident.model == model
                and resident.is_awake
                and not set(gpus).isdisjoint(resident.gpus)
                for resident in servers.live.values()
            )
            if not is_back and not is_there and not servers.booked_by_others(gpus):
                servers.load(model, gpus)
                return

    def _has_done(self, batch: Batch, gpus: tuple[str, ...]) -> bool:
        """Whether the batch needs these GPUs no more."""
        return batch.all_items_ended or batch.released.issuperset(gpus)

    def is_complete(self, batch: Batch) -> bool:
        """Whether all models are back; if not, the batch enters the state RELOADING."""
        if all(
            self._is_back(batch, gpus, model) for model, gpus in self._models(batch)
        ):
            return True
        if batch.state is BatchState.RUNNING:
            state = BatchState.RELOADING.value
            self._core.emit([batch.changed(self._core.clock(), state=state)])
        return False

    def _models(self, batch: Batch) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The models to load again, each with its GPUs."""
        incomplete: dict[str, list[str]] = {}
        for gpu, models in batch.reload.items():
            for model in models:
                spec = self._residents.specs.get(model)
                gpus = incomplete.setdefault(model, [])
                gpus.append(gpu)
                if len(gpus) == (spec.gpus if spec else 1):
                    yield model, tuple(incomplete.pop(model))

    def _is_back(self, batch: Batch, gpus: tuple[str, ...], model: str) -> bool:
        """Whether the model is loaded again, or need not be waited for."""
        view = self._core.view
        servers = self._residents.servers
        for gpu in gpus:
            if gpu not in view.devices or not view.devices[gpu].node_id:
                return True  # the GPU is gone
        for gpu in gpus:
            if view.node(view.devices[gpu].node_id or "").state != "online":
                return False  # its state is known when its node connects
        exclusive = {device.uuid for device in self._gpus.exclusive(batch)}
        if not exclusive.issuperset(gpus):
            return True  # the GPU is out of use, or its model is pinned by now
        failure = servers.failures.get(model)
        if failure is None:
            return True  # the model is no longer in the settings
        if failure.refuses_requests and time.monotonic() < failure.until:
            return True  # the model cannot be loaded
        batch_has_ended = batch.all_items_ended and not batch.workers
        if batch_has_ended and servers.booked_by_others(gpus):
            return True  # another job has the GPU: the next request loads the model
        if any(
            resident.model == model
            and resident.gpus == gpus
            and resident.phase in (Phase.READY, Phase.BUSY)
            for resident in servers.live.values()
        ):
            batch.back.add((model, gpus))
        # If it has left since, something else needs its place: once is enough.
        return (model, gpus) in batch.back
