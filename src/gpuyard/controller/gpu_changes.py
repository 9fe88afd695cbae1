"""The changes of rows of GPUs that follow from what a node's agent says of them."""

from collections.abc import Sequence
from typing import Any

from gpuyard.domain import wire
from gpuyard.domain.events import Change, Table
from gpuyard.scheduler.view import View


def gpu_changes(
    view: View, node_id: str, gpus: Sequence[wire.GpuStatus]
) -> list[Change]:
    """Changes of all GPUs of the node, and of those that it has lost."""
    changes: list[Change] = []
    for gpu in gpus:
        values: dict[str, Any] = {
            "node_id": node_id,
            "index": gpu.index,
            "name": gpu.name,
            "memory_mb": gpu.memory_mb,
            "compute_capability": gpu.compute_capability,
            "driver": gpu.driver,
            "state": gpu.state,
            "problem": gpu.problem,
        }
        changes.append(Change(Table.GPUS, gpu.uuid, values))
    reported = {gpu.uuid for gpu in gpus}
    known = view.node(node_id).devices
    lost = [uuid for uuid in known if uuid not in reported]
    changes += [Change(Table.GPUS, uuid, {"node_id": None}) for uuid in lost]
    return changes


def is_news(view: View, change: Change) -> bool:
    """Whether a change of a GPU differs from the view, which holds no driver."""
    device = view.devices.get(change.key)
    if device is None or change.values is None:
        return True
    return any(
        getattr(device, name) != value
        for name, value in change.values.items()
        if name != "driver"
    )
