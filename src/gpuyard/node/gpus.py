"""The GPUs of this host, read again and again: which are there, which cannot be used,
and how much of them is in use.

`failed` is called with the GPUs whose jobs cannot continue: at once for a GPU in
quarantine, at the second reading in a row for one that is lost or gone. It is never
called when the driver as a whole does not answer (an update of its library does not
harm running programs).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import psutil
from msgspec.structs import replace

from gpuyard.config.settings import NodeSettings
from gpuyard.devices.access import DeviceNumber, numbers_of
from gpuyard.devices.discovery import Discovery, discover
from gpuyard.devices.gpu import GpuReading
from gpuyard.devices.health import fault_of, xid_text
from gpuyard.devices.simulated import SimulatedGpus
from gpuyard.domain import wire
from gpuyard.domain.states import GpuState
from gpuyard.node.health import GpuHealth
from gpuyard.node.xids import XidListener

# A single failed reading may have come at a bad moment.
_READINGS_TO_FAIL = 2
# A GPU is used again after this time even if processes that have ended still hold some
# of its memory.
_CLEAR_S = 30.0
_CLEAR_CHECK_S = 0.1
_DEAD = frozenset({GpuState.OFFLINE.value, GpuState.QUARANTINED.value})


def discovery_of(settings: NodeSettings, machine: str = "") -> Callable[[], Discovery]:
    """What finds the GPUs: the drivers, or the settings where they simulate GPUs, which
    have the name of `machine` in their UUIDs.
    """
    if settings.simulate_gpus:
        return SimulatedGpus.parse(settings.simulate_gpus, machine).discover
    return discover


class GpuWatch:
    """Watches the GPUs; `current` is what the last reading found, and each reading is
    reported. `devices` are the device files of each GPU that was ever read, by UUID;
    None where the driver does not tell them.

    `failed` gets the GPUs whose jobs cannot continue, with the reason. `blamed` gets a
    GPU and what the driver reported about a program on it.
    """

    def __init__(
        self,
        discover: Callable[[], Discovery],
        every_s: float,
        health: GpuHealth,
        send: Callable[[Any], None],
        failed: Callable[[Mapping[str, str]], None],
        blamed: Callable[[str, str], None],
    ) -> None:
        self._discover = discover
        self._every_s = every_s
        self._health = health
        self._send = send
        self._failed = failed
        self._blamed = blamed
        self._xids = XidListener(self._handle_event)
        self._mig_instances: dict[str, GpuReading] = {}  # by UUID
        self._wake = asyncio.Event()
        self._missing: dict[str, int] = {}
        self._reading: asyncio.Future[Discovery] | None = None
        # The processes that were alive on some GPU at some reading.
        self._computing: set[int] = set()
        self.devices: dict[str, frozenset[DeviceNumber] | None] = {}
        self.current: list[wire.GpuStatus] = []
        self.problem: str | None = None

    async def refresh(self) -> bool:
        """Read the GPUs; True when something that matters for placement has changed."""
        # In a thread: a driver in trouble can take seconds to answer.
        found = await asyncio.to_thread(self._discover)
        before = (_identity(self.current), self.problem)
        known = self.current
        self._note_processes(found)
        self.devices |= {gpu.uuid: numbers_of(gpu) for gpu in found.gpus}
        gpus, unknown = _merge(found, known)
        self.current = [self._health.judge(gpu, time.monotonic()) for gpu in gpus]
        self.problem = found.problem or unknown
        if found.source == "nvml":
            self._note_mig_instances(found)
            self._listen_for_xids()
        if not found.problem:
            self._report_failed({gpu.uuid for gpu in known})
        return (_identity(self.current), self.problem) != before

    def _note_processes(self, found: Discovery) -> None:
        listed = {process.pid for gpu in found.gpus for process in gpu.processes}
        self._computing = {
            pid for pid in listed if pid in self._computing or _is_running(pid)
        }

    def _note_mig_instances(self, found: Discovery) -> None:
        # The instances of a GPU that cannot be read now are kept.
        here = {gpu.uuid for gpu in self.current}
        for uuid in self._mig_instances.keys() - here:
            del self._mig_instances[uuid]
        for gpu in found.gpus:
            if gpu.parent:
                self._mig_instances[gpu.uuid] = gpu

    def _listen_for_xids(self) -> None:
        """The driver reports Xid errors for whole GPUs, not for MIG instances."""
        whole: list[str] = []
        for gpu in self.current:
            instance = self._mig_instances.get(gpu.uuid)
            uuid = instance.parent if instance else gpu.uuid
            if uuid not in whole:
                whole.append(uuid)
        self._xids.listen_to(whole)

    def _report_failed(self, known: set[str]) -> None:
        """Call `failed` with the GPUs whose jobs cannot continue. `known` are the GPUs
        of the previous reading.
        """
        reasons: dict[str, str] = {}
        quarantined: set[str] = set()
        for gpu in self.current:
            if gpu.state in _DEAD:
                reasons[gpu.uuid] = gpu.problem or gpu.state
            if gpu.state == GpuState.QUARANTINED:
                quarantined.add(gpu.uuid)
        here = {gpu.uuid for gpu in self.current}
        for uuid in (known | self._missing.keys()) - here:
            reasons[uuid] = "it is no longer there"
        self._missing = {uuid: self._missing.get(uuid, 0) + 1 for uuid in reasons}
        failed = {
            uuid: reason
            for uuid, reason in reasons.items()
            if uuid in quarantined or self._missing[uuid] >= _READINGS_TO_FAIL
        }
        if failed:
            self._failed(failed)

    async def watch(self) -> None:
        """Read the GPUs at the interval `every_s` for ever, and at once when the driver
        reports an error.
        """
        listening = asyncio.create_task(self._xids.run())
        try:
            while True:
                self._wake.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._every_s)
                if await self.refresh() or self.current:
                    self._send(wire.GpusSeen(self.current, self.problem))
        finally:
            listening.cancel()

    async def until_clear(self, uuids: Collection[str]) -> None:
        """Wait until no process that has ended holds memory of these GPUs: the driver
        takes a moment to free it.
        """
        deadline = time.monotonic() + _CLEAR_S
        while self._computing and time.monotonic() < deadline:
            # One at a time: while the driver does not answer, a reading keeps its
            # thread.
            if self._reading is None or self._reading.done():
                self._reading = asyncio.ensure_future(asyncio.to_thread(self._discover))
            done, _ = await asyncio.wait(
                [self._reading], timeout=deadline - time.monotonic()
            )
            if not done or self._reading.exception():
                return
            found = self._reading.result()
            gpus = [gpu for gpu in found.gpus if gpu.uuid in uuids]
            pids = {process.pid for gpu in gpus for process in gpu.processes}
            ended = [pid for pid in pids & self._computing if not _is_running(pid)]
            if not ended:
                return
            await asyncio.sleep(_CLEAR_CHECK_S)

    def release(self, uuids: list[str]) -> None:
        """Somebody has repaired or checked these GPUs: end their quarantine."""
        self._health.release(uuids)
        self._wake.set()

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        for uuid in self._affected(event["uuid"], event.get("instance")):
            if "xid" not in event:
                self._health.unwatched(uuid, event["failed"])
                self._wake.set()
            elif self._health.xid(uuid, event["xid"]):
                xid = xid_text(event["xid"])
                self._blamed(uuid, f"the driver reported {xid} on its GPU")
            else:
                self._wake.set()

    def _affected(self, uuid: str, instance: int | None) -> list[str]:
        """The UUID of the GPU itself. If MIG divides it: of the instance that the event
        names, or of all its instances.
        """
        parts = [part for part in self._mig_instances.values() if part.parent == uuid]
        named = [part.uuid for part in parts if part.instance == instance]
        return named or [part.uuid for part in parts] or [uuid]


def _identity(gpus: list[wire.GpuStatus]) -> list[tuple[str, int, str, str | None]]:
    return [(gpu.uuid, gpu.memory_mb, gpu.state, gpu.problem) for gpu in gpus]


def _merge(
    found: Discovery, before: list[wire.GpuStatus]
) -> tuple[list[wire.GpuStatus], str | None]:
    """What was read, and the GPUs that are there but cannot be read: these are known by
    their UUID or by their index.

    The text is about GPUs that were never read by this agent, so that their UUID is not
    known.
    """
    hot = {gpu.uuid for gpu in before if gpu.state == GpuState.COOLING}
    gpus = {
        reading.uuid: _on_wire(reading, reading.uuid in hot) for reading in found.gpus
    }
    if found.problem:  # nothing could be read: as far as we know they are still there
        for gpu in before:
            gpus[gpu.uuid] = _offline(gpu, found.problem)
    unknown: list[str] = []
    for lost in found.lost:
        # With MIG there can be several.
        unread = [gpu for gpu in before if gpu.uuid not in gpus]
        known = [
            gpu for gpu in unread if gpu.uuid == lost.uuid or gpu.index == lost.index
        ]
        for gpu in known:
            gpus[gpu.uuid] = _offline(gpu, lost.reason)
        if known:
            continue
        if lost.uuid:
            status = wire.GpuStatus(lost.uuid, lost.index or 0, "", 0)
            gpus[lost.uuid] = _offline(status, lost.reason)
        else:
            unknown.append(f"GPU {lost.index} cannot be used: {lost.reason}")
    ordered = sorted(gpus.values(), key=lambda gpu: (gpu.index, gpu.uuid))
    return ordered, "; ".join(unknown) or None


def _offline(gpu: wire.GpuStatus, reason: str) -> wire.GpuStatus:
    return replace(gpu, state=GpuState.OFFLINE.value, problem=reason)


def _on_wire(reading: GpuReading, was_hot: bool) -> wire.GpuStatus:
    fault = fault_of(reading, was_hot)
    return wire.GpuStatus(
        reading.uuid,
        reading.index,
        reading.name,
        reading.memory_total_mb,
        reading.compute_capability,
        reading.driver_version,
        reading.memory_free_mb,
        reading.temperature_c,
        reading.utilization,
        fault.reason if fault else None,
        (fault.state if fault else GpuState.IDLE).value,
        reading.power_limited,
        reading.hardware_slowed,
    )


def _is_running(pid: int) -> bool:
    """True while the process runs; one that has ended may stay in the table as a
    zombie.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # another user's, on a host that hides those
        return True
