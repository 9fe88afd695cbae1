"""Requests of people about single GPUs: find, drain, release."""

from gpuyard.controller.core import Core
from gpuyard.domain import wire
from gpuyard.domain.errors import (
    InvalidInputError,
    NotFoundError,
    ProviderError,
    RefusedError,
)
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.states import GpuState
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.nodes import Device


class Gpus:
    """Carries out requests about the GPUs of all nodes."""

    def __init__(self, core: Core, providers: Providers) -> None:
        self._core = core
        self._providers = providers

    def figures(self) -> dict[str, wire.GpuStatus]:
        """The newest reading of each GPU whose agent is connected, by UUID. What a node
        says of the GPUs of another is left out.
        """
        found: dict[str, wire.GpuStatus] = {}
        for provider in self._providers.node_providers.values():
            for node_id, readings in provider.figures().items():
                own = [gpu for gpu in readings if self._is_on(node_id, gpu.uuid)]
                found.update({gpu.uuid: gpu for gpu in own})
        return found

    def _is_on(self, node_id: str, uuid: str) -> bool:
        device = self._core.view.devices.get(uuid)
        return device is not None and device.node_id == node_id

    def separations(self) -> dict[str, str]:
        """How jobs are kept apart on each node whose agent is connected."""
        found: dict[str, str] = {}
        for provider in self._providers.node_providers.values():
            found.update(provider.separations())
        return found

    def find(self, reference: str) -> Device:
        """The GPU with this UUID, beginning of a UUID (4 characters or more), or index.

        Raises NotFoundError for no match, InvalidInputError for several.
        """
        devices = [
            device
            for device in self._core.view.devices.values()
            if device.node_id is not None
        ]
        found = [gpu for gpu in devices if reference in (gpu.uuid, str(gpu.index))]
        if not found and len(reference) > 3:
            found = [gpu for gpu in devices if gpu.uuid.startswith(reference)]
        if not found:
            some = [f"{device.index} ({device.uuid})" for device in devices[:8]]
            names = ", ".join(some) or "none"
            raise NotFoundError(
                f"There is no GPU {reference!r}.", f"There are: {names}."
            )
        if len(found) > 1:
            uuids = ", ".join(device.uuid for device in found)
            raise InvalidInputError.of(
                "gpu", f"{reference!r} could be {uuids}", "give more"
            )
        return found[0]

    async def drain(self, reference: str, *, draining: bool) -> str:
        """Give the GPU no new work, or (`draining` false) new work again.

        Returns its UUID.
        """
        core = self._core
        device = self.find(reference)
        if device.draining != draining:
            info = {"gpu": device.uuid, "draining": draining, "node": device.node_id}
            change = Change(Table.GPUS, device.uuid, {"draining": draining})
            kind = EventKind.NODE_CHANGED
            core.emit([Event(kind, core.clock(), (change,), None, info)])
            core.schedule()
        await core.committed()
        return device.uuid

    async def release(self, reference: str) -> str:
        """Let the GPU work again after a person has repaired it: its node forgets its
        faults.

        Returns its UUID. Raises RefusedError if its node does not keep it from work.
        """
        device = self.find(reference)
        kept_from_work = (GpuState.QUARANTINED, GpuState.COOLING, GpuState.OFFLINE)
        if device.state not in kept_from_work:
            remedy = "Only one that is kept from work is released."
            if device.quarantine:
                remedy = (
                    f"It is {device.quarantine}; `gpuyard trust forget"
                    f" gpu:{device.uuid}` ends that."
                )
            raise RefusedError(f"GPU {device.uuid} is {device.state}.", remedy)
        assert device.node_id is not None
        name = self._core.view.node(device.node_id).provider
        provider = self._providers.node_provider(name)
        if provider is None:
            message = f"GPU {device.uuid} is not gpuyard's own."
            raise ProviderError(message, name, "NOT_OWNED")
        await provider.release_gpus(device.node_id, [device.uuid])
        return device.uuid
