"""What is wrong with a node of a pool: pure functions of what is known of it."""

from collections.abc import Iterable, Mapping

from gpuyard.config.pools import PoolSettings
from gpuyard.controller.joined_nodes import REMOVED
from gpuyard.controller.pool_rows import PoolRow
from gpuyard.domain.drivers import why_too_old
from gpuyard.domain.states import GpuState
from gpuyard.domain.units import format_duration
from gpuyard.providers.pool_hands import PoolMachine
from gpuyard.scheduler.nodes import Device, Node

BEFORE_ITS_END_S = 300.0
"""A node is replaced so long before its provider ends it: its jobs can save their work
and move.
"""
_BROKEN = frozenset({GpuState.OFFLINE, GpuState.QUARANTINED})


def why_not_coming(
    row: PoolRow, machine: PoolMachine | None, settings: PoolSettings, now: float
) -> str:
    """Why a node that has not joined never will; empty if it may."""
    if machine is None or machine.began_at is None:
        return ""
    if machine.leaving:
        return f"{row.provider} takes it back"
    if now - machine.began_at < settings.boot_timeout:
        return ""
    waited = format_duration(settings.boot_timeout)
    return f"it has not joined {waited} after its start"


def why_lost(node: Node, silent_s: float, settings: PoolSettings) -> str:
    """Why nothing runs on a node that has joined; empty if something may."""
    if node.state == REMOVED:
        return "it was removed from the instance"
    if silent_s >= settings.silence:
        return f"it was silent for {format_duration(settings.silence)}"
    return ""


def why_sick(
    node: Node,
    machine: PoolMachine | None,
    drivers: Mapping[str, str],
    cudas: Iterable[str],
    now: float,
) -> str:
    """Why a node that has joined must be replaced; empty if it need not be.

    `drivers`: the driver of each GPU, by UUID. `cudas`: the versions of CUDA in the
    images that wait.
    """
    if machine and machine.leaving:
        return f"its provider takes it back: {machine.why}".removesuffix(": ")
    if machine and machine.ends_at and machine.ends_at - now < BEFORE_ITS_END_S:
        return "its time at the provider is nearly over"
    if node.barred:
        return f"it is in quarantine: {next(iter(node.barred.values()))}"
    for device in node.devices.values():
        if fault := _fault(device):
            return f"its GPU {device.index} is {fault}"
    for cuda in cudas:
        for uuid in node.devices:
            if fault := why_too_old(drivers.get(uuid, ""), cuda):
                return fault
    return ""


def _fault(device: Device) -> str:
    """What is wrong with a GPU, for people; empty if nothing is."""
    if device.quarantine:
        return f"in quarantine: {device.quarantine}"
    return device.why_not if device.state in _BROKEN else ""
