"""The GPUs of this host, looked at again and again: what came, what went, what cannot be used, what is being used up.

What is to be done about jobs on a GPU that has failed is told to `failed`: at once when the GPU is quarantined, at
the second look in a row when it is lost or gone, never when the driver as a whole cannot be asked (an update of its
library leaves running programs alone).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import psutil
from msgspec.structs import replace

from gpuyard.devices.discovery import Discovery
from gpuyard.devices.gpu import GpuReading
from gpuyard.devices.health import fault_of, xid_text
from gpuyard.domain import wire
from gpuyard.domain.states import GpuState
from gpuyard.node.health import Health
from gpuyard.node.xids import XidListener

# A GPU that is lost at one look may have been asked at a bad moment.
_LOOKS = 2
# How long memory of processes that are gone may stay taken before the GPU is given on all the same.
_CLEAR_S, _CLEAR_LOOK_S = 30.0, 0.1
_DEAD = frozenset({GpuState.OFFLINE.value, GpuState.QUARANTINED.value})


class GpuWatch:
    """`current` is what the last look found; each look goes out as a report.

    `failed` gets the GPUs on which nothing can go on, with the reason; `blamed` a GPU and what the driver says that a
    program on it did wrong.
    """

    def __init__(
        self, discover: Callable[[], Discovery], every_s: float, health: Health, send: Callable[[Any], None],
        failed: Callable[[Mapping[str, str]], None], blamed: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._discover = discover
        self._every_s = every_s
        self._health = health
        self._send = send
        self._failed = failed
        self._blamed = blamed
        self._xids = XidListener(self._heard)
        self._instances: dict[str, GpuReading] = {}  # MIG's, by UUID
        self._look_now = asyncio.Event()
        self._missing: dict[str, int] = {}
        self._reading: asyncio.Future[Discovery] | None = None
        self._computing: set[int] = set()  # the processes on any GPU that were alive at some look
        self.current: list[wire.Gpu] = []
        self.problem: str | None = None

    async def look(self) -> bool:
        """Discover; True when something that matters for placement has changed."""
        # In a thread: a driver in trouble can take seconds to answer.
        found = await asyncio.to_thread(self._discover)
        before, known = (_identity(self.current), self.problem), self.current
        listed = {process.pid for gpu in found.gpus for process in gpu.processes}
        self._computing = {pid for pid in listed if pid in self._computing or _lives(pid)}
        gpus, unknown = _merge(found, known)
        self.current = [self._health.judge(gpu, time.monotonic()) for gpu in gpus]
        self.problem = found.problem or unknown
        if found.source == "nvml":
            # Those of a card that is lost just now are still known by what they were.
            here = {gpu.uuid for gpu in self.current}
            self._instances = {uuid: gpu for uuid, gpu in self._instances.items() if uuid in here}
            self._instances |= {gpu.uuid: gpu for gpu in found.gpus if gpu.parent}
            whole = [self._instances[g.uuid].parent if g.uuid in self._instances else g.uuid for g in self.current]
            self._xids.listen_to(list(dict.fromkeys(whole)))
        if not found.problem:
            self._tell_failed({gpu.uuid for gpu in known})
        return (_identity(self.current), self.problem) != before

    def _tell_failed(self, known: set[str]) -> None:
        """Tell whose jobs cannot go on."""
        reasons = {gpu.uuid: gpu.problem or gpu.state for gpu in self.current if gpu.state in _DEAD}
        here = {gpu.uuid for gpu in self.current}
        reasons |= dict.fromkeys((known | self._missing.keys()) - here, "it is no longer there")
        self._missing = {uuid: self._missing.get(uuid, 0) + 1 for uuid in reasons}
        quarantined = {gpu.uuid for gpu in self.current if gpu.state == GpuState.QUARANTINED}
        sure = {uuid: why for uuid, why in reasons.items() if uuid in quarantined or self._missing[uuid] >= _LOOKS}
        if sure:
            self._failed(sure)

    async def watch(self) -> None:
        """Look for ever, and at once when the driver reports an error."""
        listening = asyncio.create_task(self._xids.run())
        try:
            while True:
                self._look_now.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._look_now.wait(), self._every_s)
                if await self.look() or self.current:
                    self._send(wire.GpusSeen(self.current, self.problem))
        finally:
            listening.cancel()

    async def until_clear(self, uuids: Collection[str]) -> None:
        """Wait until no process that is gone still holds memory of these GPUs: the driver takes a moment to free it."""
        deadline = time.monotonic() + _CLEAR_S
        while self._computing and time.monotonic() < deadline:
            if self._reading is None or self._reading.done():  # one at a time: a driver in trouble keeps its thread
                self._reading = asyncio.ensure_future(asyncio.to_thread(self._discover))
            done, _ = await asyncio.wait([self._reading], timeout=deadline - time.monotonic())
            if not done or self._reading.exception():
                return
            found = self._reading.result()
            there = {p.pid for gpu in found.gpus if gpu.uuid in uuids for p in gpu.processes}
            if not any(pid in self._computing and not _lives(pid) for pid in there):
                return
            await asyncio.sleep(_CLEAR_LOOK_S)

    def release(self, uuids: list[str]) -> None:
        """Somebody has seen to these GPUs."""
        self._health.release(uuids)
        self._look_now.set()

    def _heard(self, words: Mapping[str, Any]) -> None:
        for uuid in self._concerned(words["uuid"], words.get("instance")):
            if "xid" not in words:
                self._health.unwatched(uuid, words["failed"])
            elif self._health.xid(uuid, words["xid"]):
                self._blamed(uuid, f"the driver reported {xid_text(words['xid'])} on its GPU")
                continue
            self._look_now.set()

    def _concerned(self, uuid: str, instance: int | None) -> list[str]:
        """The GPU itself; of one that is divided, the instance that is named, or all."""
        parts = [part for part in self._instances.values() if part.parent == uuid]
        named = [part.uuid for part in parts if part.instance == instance]
        return named or [part.uuid for part in parts] or [uuid]


def _identity(gpus: list[wire.Gpu]) -> list[tuple[str, int, str, str | None]]:
    return [(gpu.uuid, gpu.memory_mb, gpu.state, gpu.problem) for gpu in gpus]


def _merge(found: Discovery, before: list[wire.Gpu]) -> tuple[list[wire.Gpu], str | None]:
    """What was read, with what is there but cannot be read: known by its UUID, or by the place it had.

    The text is about GPUs that are there and were never read by this agent, so that nobody can say which they are.
    """
    hot = {gpu.uuid for gpu in before if gpu.state == GpuState.COOLING}
    gpus = {reading.uuid: _on_wire(reading, reading.uuid in hot) for reading in found.gpus}
    if found.problem:  # nothing could be asked: they are there as far as anybody knows
        gpus |= {gpu.uuid: _offline(gpu, found.problem) for gpu in before}
    unknown: list[str] = []
    for lost in found.lost:
        known = [g for g in before if g.uuid not in gpus and (g.uuid == lost.uuid or g.index == lost.index)]
        if known:  # several, where MIG divides it
            gpus |= {gpu.uuid: _offline(gpu, lost.reason) for gpu in known}
        elif lost.uuid:
            gpus[lost.uuid] = _offline(wire.Gpu(lost.uuid, lost.index or 0, "", 0), lost.reason)
        else:
            unknown.append(f"GPU {lost.index} cannot be used: {lost.reason}")
    return sorted(gpus.values(), key=lambda gpu: (gpu.index, gpu.uuid)), "; ".join(unknown) or None


def _offline(gpu: wire.Gpu, reason: str) -> wire.Gpu:
    return replace(gpu, state=GpuState.OFFLINE.value, problem=reason)


def _on_wire(reading: GpuReading, was_hot: bool) -> wire.Gpu:
    fault = fault_of(reading, was_hot)
    return wire.Gpu(
        reading.uuid, reading.index, reading.name, reading.memory_total_mb, reading.compute_capability,
        reading.driver_version, reading.memory_free_mb, reading.temperature_c, reading.utilization,
        fault.reason if fault else None, (fault.state if fault else GpuState.IDLE).value,
    )  # fmt: skip


def _lives(pid: int) -> bool:
    """Whether it runs; one that has ended may stand in the table until somebody has asked how."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # another user's, on a host that hides those
        return True
