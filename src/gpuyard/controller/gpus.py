"""What people do to single GPUs: let one out of quarantine, drain one, take it into use again."""

from collections.abc import Mapping

from gpuyard.controller.core import Core
from gpuyard.domain import wire
from gpuyard.domain.errors import InvalidInputError, NotFoundError, ProviderError, RefusedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.states import GpuState
from gpuyard.providers.base import GpuProviderInterface, OwnsNodes
from gpuyard.scheduler.nodes import Device


class Gpus:
    """The GPUs of all nodes, as their owners handle them."""

    def __init__(self, core: Core, providers: Mapping[str, GpuProviderInterface]) -> None:
        self._core = core
        self._providers = providers

    def figures(self) -> dict[str, wire.Gpu]:
        """The newest reading of each GPU whose agent is connected, by UUID."""
        found: dict[str, wire.Gpu] = {}
        for provider in self._providers.values():
            if isinstance(provider, OwnsNodes):
                found.update(provider.figures())
        return found

    def find(self, reference: str) -> Device:
        """The GPU a person means by its UUID, the beginning of it, or its index where one node has it."""
        devices = [device for device in self._core.view.devices.values() if device.node_id is not None]
        found = [d for d in devices if d.uuid == reference or str(d.index) == reference]
        found = found or [d for d in devices if len(reference) > 3 and d.uuid.startswith(reference)]
        if not found:
            there = ", ".join(f"{d.index} ({d.uuid})" for d in devices[:8]) or "none"
            raise NotFoundError(f"There is no GPU {reference!r}.", f"There are: {there}.")
        if len(found) > 1:
            raise InvalidInputError.of("gpu", f"{reference!r} could be {', '.join(d.uuid for d in found)}", "give more")
        return found[0]

    async def drain(self, reference: str, *, draining: bool) -> str:
        """The GPU gets nothing new, or (`draining` false) does again; its UUID."""
        core, device = self._core, self.find(reference)
        if device.draining != draining:
            info = {"gpu": device.uuid, "draining": draining, "node": device.node_id}
            change = Change(Table.GPUS, device.uuid, {"draining": draining})
            core.emit([Event(EventKind.NODE_CHANGED, core.clock(), (change,), None, info)])
            core.schedule()
        await core.committed()
        return device.uuid

    async def release(self, reference: str) -> str:
        """Somebody has seen to the GPU: its node forgets what it holds against it; its UUID."""
        device = self.find(reference)
        if device.state not in (GpuState.QUARANTINED, GpuState.COOLING, GpuState.OFFLINE):
            remedy = "Only one that is kept from work is released."
            if device.quarantine:
                remedy = f"It is {device.quarantine}; `gpuyard trust forget gpu:{device.uuid}` ends that."
            raise RefusedError(f"GPU {device.uuid} is {device.state}.", remedy)
        assert device.node_id is not None
        provider = self._providers[self._core.view.node(device.node_id).provider]
        if not isinstance(provider, OwnsNodes):
            raise ProviderError(f"GPU {device.uuid} is not gpuyard's own.", provider.PROVIDER_NAME, "NOT_OWNED")
        await provider.release_gpus(device.node_id, [device.uuid])
        return device.uuid
