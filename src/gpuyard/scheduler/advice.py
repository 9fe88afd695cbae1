"""Advice: single changes to a request that would make it fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuyard.domain.gpus import compute_capability
from gpuyard.domain.shape import Shape
from gpuyard.domain.units import format_gb
from gpuyard.scheduler.fitting import ignoring_quarantine, suitable_devices
from gpuyard.scheduler.nodes import Device, Space
from gpuyard.scheduler.placement import SpaceOf, would_fit
from gpuyard.scheduler.view import View


@dataclass(frozen=True, slots=True)
class Advice:
    """One change that would help.

    `constraint` is the need that cannot be met, as one word for machines.
    """

    constraint: str
    text: str


def smaller_requests(view: View, shape: Shape, space_of: SpaceOf) -> list[Advice]:
    """For each need, the least change with which the shape would fit into the spaces
    that `space_of` returns.
    """
    spaces = [space_of(node) for node in view.nodes.values() if node.online]
    advice: dict[str, Advice] = {}
    for change, changed in _changes(shape, spaces):
        if change.constraint not in advice and would_fit(view, changed, space_of):
            advice[change.constraint] = change
    return list(advice.values())


def _changes(shape: Shape, spaces: list[Space]) -> Iterator[tuple[Advice, Shape]]:
    """Every smaller request that could fit into `spaces`; for each need, the least
    change first.
    """
    if not shape.quarantined:
        text = "let it run where verification has failed (allowed.quarantined)"
        yield Advice("quarantined", text), ignoring_quarantine(shape)
    if shape.gpu_uuids:
        yield (
            Advice("pinned", "let the scheduler choose the GPU instead of pinning it"),
            replace(shape, gpu_uuids=()),
        )
    if shape.gpu_class:
        yield (
            Advice("gpu_class", f"allow other GPUs than {shape.gpu_class}"),
            replace(shape, gpu_class=""),
        )
    if shape.gpus:
        devices = [device for space in spaces for device in space.devices]
        yield from _smaller_gpus(shape, devices)
        yield from _fewer_gpus(shape, spaces)
    for nodes in range(min(shape.nodes - 1, len(spaces)), 0, -1):
        yield Advice("nodes", f"lower --nodes to {nodes}"), replace(shape, nodes=nodes)
    for cpus in _below(shape.cpus, [space.cpus for space in spaces]):
        if cpus:
            yield Advice("cpus", f"lower --cpus to {cpus:g}"), replace(shape, cpus=cpus)
    for memory in _below(shape.memory_gb, [space.memory_gb for space in spaces]):
        yield (
            Advice("memory", f"ask for at most {format_gb(memory)} of memory"),
            replace(shape, memory_gb=memory),
        )


def _fewer_gpus(shape: Shape, spaces: list[Space]) -> Iterator[tuple[Advice, Shape]]:
    if shape.gpu_uuids:
        return
    counts = [len(suitable_devices(space.devices, shape)) for space in spaces]
    for gpus in _below(shape.gpus, counts):
        if gpus:
            text = f"lower --gpus to {gpus:g}"
            yield Advice("gpus", text), replace(shape, gpus=int(gpus))


def _smaller_gpus(
    shape: Shape, devices: list[Device]
) -> Iterator[tuple[Advice, Shape]]:
    for memory in _below(shape.gpu_memory_gb, [device.memory_gb for device in devices]):
        text = f"ask for GPUs with at most {format_gb(memory)}"
        yield Advice("gpu_memory", text), replace(shape, gpu_memory_gb=memory)
    if shape.gpu_capability:
        least = compute_capability(shape.gpu_capability)
        lesser = {
            device.capability
            for device in devices
            if (0, 0) < device.capability < least
        }
        for major, minor in sorted(lesser, reverse=True):
            capability = f"{major}.{minor}"
            text = f"ask for compute capability {capability} at most"
            changed = replace(shape, gpu_capability=capability)
            yield Advice("gpu_capability", text), changed


def _below(need: float, amounts: Sequence[float]) -> list[float]:
    """The distinct amounts less than `need`, the greatest first."""
    return sorted({amount for amount in amounts if amount < need}, reverse=True)
