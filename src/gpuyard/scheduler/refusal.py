"""Refusals: why a node cannot take a shape, and whether any node ever can, for people.

A reason is read after the name of the node: "box has 2 GPUs, 4 needed".
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gpuyard.domain.offers import Offer
from gpuyard.domain.shape import Shape
from gpuyard.domain.units import format_gb
from gpuyard.scheduler.external_queues import allows, unmet_needs
from gpuyard.scheduler.fitting import (
    SLACK,
    allowed,
    could_hold,
    ignoring_quarantine,
    quarantine_of,
    suitable_devices,
)
from gpuyard.scheduler.nodes import Device, Node, Space
from gpuyard.scheduler.pool_demand import pools_for
from gpuyard.scheduler.view import View

_MOST_OFFERS = 3
NOT_PORTABLE = (
    "is another machine, and the job runs only where its folder is: submit it without"
    " --live, --workspace and --image from a folder whose code can be stored"
)


@dataclass(frozen=True, slots=True)
class Impossible:
    """The shape can never start. `largest` describes the largest that could."""

    reason: str
    largest: str


def reasons(node: Node, shape: Shape, space: Space) -> tuple[str, ...]:
    """Why `node` cannot take a share if `space` is what may be used of it; empty if it
    can.
    """
    found: list[str] = []
    if node.joined and not shape.portable:
        found.append(NOT_PORTABLE)
    elif not allowed(node, shape):
        found.append(
            f"belongs to provider {node.provider}, which the job does not allow"
        )
    if not node.online:
        found.append(f"is {node.why_not}")
    if quarantine := quarantine_of(node, shape):
        found.append(f"is {quarantine}")
    return (*found, *_lacks(node, shape, space))


def impossible(view: View, shape: Shape) -> Impossible | None:
    """Why the shape can never start; None if it can. All that the known nodes have
    counts, booked or free, online or not.

    If no node and no offer that the job allows is known, nothing is impossible.
    """
    nodes = [node for node in view.nodes.values() if allowed(node, shape)]
    offers = [
        offer for _, offer in view.external_queues.offers() if allows(offer, shape)
    ]
    if not nodes and not offers:
        return None
    if not shape.owned and _has_unknown_offers(view):
        return None
    if pools_for(view, shape):
        return None
    able = sum(could_hold(node, shape) for node in nodes)
    if able >= shape.nodes or not all(unmet_needs(offer, shape) for offer in offers):
        return None
    found: list[str] = []
    there: list[str] = []
    if able:
        found.append(
            f"it asks for {shape.nodes} nodes at once, and only {able} of those known"
            " can take a share"
        )
    elif nodes:
        best = _largest(nodes, shape)
        lacks = ", ".join(_lacks(best, shape, best.capacity))
        found.append(f"no known node can hold it: {best.title} {lacks}")
    if elsewhere := _on_other_machines(view, shape):
        found.append(f"{elsewhere[0].title} {NOT_PORTABLE}")
    if nodes:
        there.append(largest(view, shape))
    if offers:
        found.append(f"nothing offered can hold it: {_nearest_offer(offers, shape)}")
        there.append(_describe_offers(offers))
    return Impossible("; ".join(found), "; ".join(there))


def _on_other_machines(view: View, shape: Shape) -> list[Node]:
    """The machines that have joined and could hold the job if it brought its code."""
    if shape.portable:
        return []
    portable = replace(shape, portable=True)
    return [
        node
        for node in view.nodes.values()
        if node.joined and allowed(node, portable) and could_hold(node, portable)
    ]


def _has_unknown_offers(view: View) -> bool:
    """True if an external queue has not answered yet; it may be able to hold
    anything.
    """
    return any(
        queue.problem and not queue.offers
        for queue in view.external_queues.by_name.values()
    )


def _nearest_offer(offers: Sequence[Offer], shape: Shape) -> str:
    """The offer with the fewest unmet needs, and these needs."""
    nearest = min(
        offers,
        key=lambda offer: (len(unmet_needs(offer, shape)), -offer.gpus, offer.id),
    )
    return f"{nearest.id} {', '.join(unmet_needs(nearest, shape))}"


def _describe_offers(offers: Sequence[Offer]) -> str:
    best = sorted(
        offers, key=lambda offer: (-offer.gpus, -offer.gpu_gb, -offer.nodes, offer.id)
    )[:_MOST_OFFERS]
    return "on offer are: " + "; ".join(_describe_offer(offer) for offer in best)


def _describe_offer(offer: Offer) -> str:
    """`slurm/gpu/a100: 4 nodes, each with 2 × a100, 64 cores, 512 GB`."""
    gpus = f"{offer.gpus} × {offer.gpu or 'GPU'}, " if offer.gpus else ""
    return (
        f"{offer.id}: {count(offer.nodes, 'node')} with {gpus}{offer.cpus:g} cores,"
        f" {format_gb(offer.memory_gb)}"
    )


def largest(view: View, shape: Shape) -> str:
    """The node that comes nearest to holding the shape, for people: the one with most
    suitable GPUs, then GPUs, cores and memory.
    """
    nodes = [node for node in view.nodes.values() if allowed(node, shape)]
    if not nodes:
        return "no node is known"
    node = _largest(nodes, shape)
    kinds = Counter(
        (device.name or "GPU", device.memory_gb) for device in node.devices.values()
    )
    gpus = [
        f"{number} × {name} ({format_gb(memory)})"
        for (name, memory), number in kinds.items()
    ]
    parts = gpus or ["no GPU"]
    parts.append(f"{node.cpus:g} cores")
    parts.append(f"{format_gb(node.memory_gb)} of memory")
    return f"the largest node is {node.title}: {', '.join(parts)}"


def describe(shape: Shape) -> str:
    """What the shape asks for, for people: `2 nodes, each with 4 GPUs (a100, 80 GB), 8
    cores, 64 GB of memory`.
    """
    parts: list[str] = []
    if shape.gpus:
        needs = ", ".join(_gpu_needs(shape))
        parts.append(count(shape.gpus, "GPU") + (f" ({needs})" if needs else ""))
    parts.append(count(shape.cpus, "core"))
    if shape.memory_gb:
        parts.append(f"{format_gb(shape.memory_gb)} of memory")
    each = ", ".join(parts)
    return f"{shape.nodes} nodes, each with {each}" if shape.nodes > 1 else each


def count(number: float, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number:g} {noun}" + ("" if number == 1 else "s")


def _largest(nodes: Iterable[Node], shape: Shape) -> Node:
    like = ignoring_quarantine(shape)
    return max(
        nodes,
        key=lambda node: (
            len(suitable_devices(node.devices.values(), like)),
            len(node.devices),
            node.cpus,
            node.memory_gb,
            node.id,
        ),
    )


def _lacks(node: Node, shape: Shape, space: Space) -> list[str]:
    """What `space` lacks for a share: what the node never has, or what is in use."""
    lacks: list[str] = []
    if shape.gpus:
        lacks.append(_lacks_gpus(node, shape, space))
    lacks.append(
        _lacks_amount(shape.cpus, node.cpus, space.cpus, "{:g}".format, "cores")
    )
    lacks.append(
        _lacks_amount(
            shape.memory_gb, node.memory_gb, space.memory_gb, format_gb, "of memory"
        )
    )
    return [text for text in lacks if text]


def _lacks_amount(
    need: float, total: float, free: float, text: Callable[[float], str], noun: str
) -> str:
    if total + SLACK < need:
        return f"has {text(total)} {noun}, {text(need)} needed"
    if free + SLACK < need:
        return f"has {text(free)} of {text(total)} {noun} free, {text(need)} needed"
    return ""


def _lacks_gpus(node: Node, shape: Shape, space: Space) -> str:
    """Why `space` has too few suitable GPUs; empty if it has enough."""
    fitting = suitable_devices(node.devices.values(), ignoring_quarantine(shape))
    free = suitable_devices(space.devices, shape)
    if len(free) >= shape.gpus:
        return ""
    if len(fitting) >= shape.gpus:
        in_use = (
            f"has {len(free)} of {count(len(fitting), 'suitable GPU')} free,"
            f" {shape.gpus} needed"
        )
        broken = [
            f"GPU {device.index} is {reason}"
            for device in fitting
            if (reason := why_unavailable(device, shape))
        ]
        return "; ".join([in_use, *broken])
    missing = [uuid for uuid in shape.gpu_uuids if uuid not in node.devices]
    if missing:
        return f"does not have {', '.join(missing)}"
    if len(node.devices) < shape.gpus:
        there = count(len(node.devices), "GPU") if node.devices else "no GPU"
        return f"has {there}, {shape.gpus} needed"
    return (
        f"has {count(len(fitting), 'GPU')} that suit ({', '.join(_gpu_needs(shape))}),"
        f" {shape.gpus} needed"
    )


def why_unavailable(device: Device, shape: Shape) -> str:
    """Why a suitable device may not be used by the job, booked or not; empty if it
    may.
    """
    if device.why_not:
        return device.why_not
    return "" if shape.quarantined else device.quarantine


def _gpu_needs(shape: Shape) -> list[str]:
    needs = [shape.gpu_class] if shape.gpu_class else []
    if shape.gpu_memory_gb:
        needs.append(f"at least {format_gb(shape.gpu_memory_gb)}")
    if shape.gpu_capability:
        needs.append(f"compute capability {shape.gpu_capability}")
    return [*needs, *shape.gpu_uuids]
