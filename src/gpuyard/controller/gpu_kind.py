"""Of which kind the GPUs of an attempt are, for reports of costs."""

from collections.abc import Sequence

from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.nodes import Device
from gpuyard.scheduler.view import View


def gpu_kind(view: View, shape: Shape, placements: Sequence[Placement]) -> str | None:
    """The class of the GPUs, or their name if they have none; several are joined by
    commas. Empty without GPUs, None while it is not known which it gets.
    """
    if not shape.gpus:
        return ""
    kinds: set[str] = set()
    for share in placements:
        offer = view.external_queues.offer(share.offer) if share.offer else None
        if offer:
            kinds.add(offer.kind)
            continue
        # A prefetched attempt gets one of the GPUs of its node.
        uuids = share.gpu_uuids or tuple(view.node(share.node_id).devices)
        kinds |= {
            _kind_of(view.devices[uuid]) for uuid in uuids if uuid in view.devices
        }
    return ", ".join(sorted(kinds)) or None


def _kind_of(device: Device) -> str:
    return device.gpu_class or device.name
