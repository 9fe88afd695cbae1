"""Refusals: why a node cannot take a shape, and whether any ever will, in words for people.

A reason says what the node lacks and is read after its name: "box has 2 GPUs, 4 needed".
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuyard.domain.offers import Offer
from gpuyard.domain.shape import Shape
from gpuyard.domain.units import format_gb
from gpuyard.scheduler.engines import allows, lacks
from gpuyard.scheduler.fitting import SLACK, allowed, anywhere, barred, holds, suitable
from gpuyard.scheduler.nodes import Device, Node, Space
from gpuyard.scheduler.view import View

_MOST_OFFERS = 3


@dataclass(frozen=True, slots=True)
class Rejection:
    """A node that cannot take a share now, and why."""

    node_id: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Impossible:
    """No known node will ever have what is asked for. `largest` describes what there is."""

    reason: str
    largest: str


def rejections(view: View, shape: Shape) -> list[Rejection]:
    """The nodes that cannot take a share now, by name."""
    nodes = sorted(view.nodes.values(), key=lambda node: (node.title, node.id))
    return [Rejection(node.id, why_not) for node in nodes if (why_not := reasons(node, shape, node.free))]


def reasons(node: Node, shape: Shape, space: Space) -> tuple[str, ...]:
    """Why `node`, of which `space` is to be had, cannot take a share; empty exactly when it can."""
    found = [] if allowed(node, shape) else [f"belongs to provider {node.provider}, which the job does not allow"]
    if not node.online:
        found.append(f"is {node.why_not}")
    if quarantine := barred(node, shape):
        found.append(f"is {quarantine}")
    return (*found, *_lacks(node, shape, space))


def impossible(view: View, shape: Shape) -> Impossible | None:
    """Why the shape can never start, judged on all that the known nodes have, booked, online or not; None if it can.

    While no node that the job allows is known, nothing can be judged and nothing is impossible.
    """
    nodes = [node for node in view.nodes.values() if allowed(node, shape)]
    able = sum(holds(node, shape) for node in nodes)
    offers = [offer for _, offer in view.engines.offers() if allows(offer, shape)]
    # What has not answered yet may have it.
    unknown = any(engine.problem and not engine.offers for engine in view.engines.known.values()) and not shape.owned
    if unknown or able >= shape.nodes or any(not lacks(offer, shape) for offer in offers) or not (nodes or offers):
        return None
    found: list[str] = []
    if able:
        found.append(f"it asks for {shape.nodes} nodes at once, and only {able} of those known can take a share")
    elif nodes:
        best = _largest(nodes, shape)
        found.append(f"no known node can hold it: {best.title} {', '.join(_lacks(best, shape, best.capacity))}")
    if offers:
        nearest = min(offers, key=lambda offer: (len(lacks(offer, shape)), -offer.gpus, offer.id))
        found.append(f"nothing offered can hold it: {nearest.id} {', '.join(lacks(nearest, shape))}")
    there = [*([largest(view, shape)] if nodes else []), *([offered(offers)] if offers else [])]
    return Impossible("; ".join(found), "; ".join(there))


def offered(offers: Sequence[Offer]) -> str:
    """What there is, in words, the largest first."""
    best = sorted(offers, key=lambda offer: (-offer.gpus, -offer.gpu_gb, -offer.nodes, offer.id))[:_MOST_OFFERS]
    return "on offer are: " + "; ".join(describe_offer(offer) for offer in best)


def describe_offer(offer: Offer) -> str:
    """`slurm/gpu/a100: 4 nodes, each with 2 × a100, 64 cores, 512 GB`."""
    gpus = f"{offer.gpus} × {offer.gpu or 'GPU'}, " if offer.gpus else ""
    return f"{offer.id}: {count(offer.nodes, 'node')} with {gpus}{offer.cpus:g} cores, {format_gb(offer.memory_gb)}"


def largest(view: View, shape: Shape) -> str:
    """The node that comes nearest to holding the shape, in words: by suitable GPUs, all GPUs, cores, memory."""
    nodes = [node for node in view.nodes.values() if allowed(node, shape)]
    if not nodes:
        return "no node is known"
    node = _largest(nodes, shape)
    kinds = Counter((device.name or "GPU", device.memory_gb) for device in node.devices.values())
    gpus = [f"{number} × {name} ({format_gb(memory)})" for (name, memory), number in kinds.items()]
    parts = [*(gpus or ["no GPU"]), f"{node.cpus:g} cores", f"{format_gb(node.memory_gb)} of memory"]
    return f"the largest node is {node.title}: {', '.join(parts)}"


def describe(shape: Shape) -> str:
    """What the shape asks for, in words: `2 nodes, each with 4 GPUs (a100, 80 GB), 8 cores, 64 GB of memory`."""
    wanted = ", ".join(_gpu_needs(shape))
    parts = [f"{count(shape.gpus, 'GPU')}{f' ({wanted})' if wanted else ''}"] if shape.gpus else []
    parts.append(count(shape.cpus, "core"))
    if shape.memory_gb:
        parts.append(f"{format_gb(shape.memory_gb)} of memory")
    return (f"{shape.nodes} nodes, each with " if shape.nodes > 1 else "") + ", ".join(parts)


def count(number: float, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number:g} {noun}" + ("" if number == 1 else "s")


def _largest(nodes: Iterable[Node], shape: Shape) -> Node:
    like = anywhere(shape)
    return max(
        nodes,
        key=lambda node: (
            len(suitable(node.devices.values(), like)), len(node.devices), node.cpus, node.memory_gb, node.id,
        ),
    )  # fmt: skip


def _lacks(node: Node, shape: Shape, space: Space) -> list[str]:
    """What `space` lacks of one share, telling what the node never has from what is in use."""
    found = [_lacks_gpus(node, shape, space)] if shape.gpus else []
    amounts = (
        (shape.cpus, node.cpus, space.cpus, "cores", f"{node.cpus:g}", f"{space.cpus:g}", f"{shape.cpus:g}"),
        (shape.memory_gb, node.memory_gb, space.memory_gb, "of memory",
         format_gb(node.memory_gb), format_gb(space.memory_gb), format_gb(shape.memory_gb)),
    )  # fmt: skip
    for need, total, free, noun, total_text, free_text, need_text in amounts:
        if total + SLACK < need:
            found.append(f"has {total_text} {noun}, {need_text} needed")
        elif free + SLACK < need:
            found.append(f"has {free_text} of {total_text} {noun} free, {need_text} needed")
    return [text for text in found if text]


def _lacks_gpus(node: Node, shape: Shape, space: Space) -> str:
    fitting = suitable(node.devices.values(), anywhere(shape))
    free = suitable(space.devices, shape)
    if len(free) >= shape.gpus:
        return ""
    if len(fitting) >= shape.gpus:
        broken = [f"GPU {device.index} is {why_not}" for device in fitting if (why_not := kept_from(device, shape))]
        in_use = f"has {len(free)} of {count(len(fitting), 'suitable GPU')} free, {shape.gpus} needed"
        return "; ".join([in_use, *broken])
    missing = [uuid for uuid in shape.gpu_uuids if uuid not in node.devices]
    if missing:
        return f"does not have {', '.join(missing)}"
    if len(node.devices) < shape.gpus:
        return f"has {count(len(node.devices), 'GPU') if node.devices else 'no GPU'}, {shape.gpus} needed"
    return f"has {count(len(fitting), 'GPU')} that suit ({', '.join(_gpu_needs(shape))}), {shape.gpus} needed"


def kept_from(device: Device, shape: Shape) -> str:
    """Why the device, though it suits, is not for the job, whether booked or not; empty when it is."""
    return device.why_not or ("" if shape.quarantined else device.quarantine)


def _gpu_needs(shape: Shape) -> list[str]:
    needs = [shape.gpu_class] if shape.gpu_class else []
    if shape.gpu_memory_gb:
        needs.append(f"at least {format_gb(shape.gpu_memory_gb)}")
    if shape.gpu_capability:
        needs.append(f"compute capability {shape.gpu_capability}")
    return [*needs, *shape.gpu_uuids]
