"""The GPUs of this host, looked at again and again: what came, what went, what cannot be used."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from gpuyard.devices.discovery import Discovery, discover
from gpuyard.devices.gpu import GpuReading
from gpuyard.domain import wire


class GpuWatch:
    """`current` is what the last look found; a change goes out as a report."""

    def __init__(self, every_s: float, send: Callable[[Any], None]) -> None:
        self._every_s = every_s
        self._send = send
        self.current: list[wire.Gpu] = []
        self.problem: str | None = None

    async def look(self) -> bool:
        """Discover; True when something that matters for placement has changed."""
        # In a thread: a driver in trouble can take seconds to answer.
        found = await asyncio.to_thread(discover)
        before = (_identity(self.current), self.problem)
        self.current, unknown = _merge(found, self.current)
        self.problem = found.problem or unknown
        return (_identity(self.current), self.problem) != before

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(self._every_s)
            if await self.look():
                self._send(wire.GpusSeen(self.current, self.problem))


def _identity(gpus: list[wire.Gpu]) -> list[tuple[str, int, str | None]]:
    return [(gpu.uuid, gpu.memory_mb, gpu.problem) for gpu in gpus]


def _merge(found: Discovery, before: list[wire.Gpu]) -> tuple[list[wire.Gpu], str | None]:
    """What was read, with what is there but cannot be read: known by its UUID, or by the place it had.

    The text is about GPUs that are there and were never read by this agent, so that nobody can say which they are.
    """
    gpus = {reading.uuid: _on_wire(reading) for reading in found.gpus}
    unknown: list[str] = []
    for lost in found.lost:
        known = [g for g in before if g.uuid not in gpus and (g.uuid == lost.uuid or g.index == lost.index)]
        if known:
            gpus[known[0].uuid] = replace(known[0], problem=lost.reason)
        elif lost.uuid:
            gpus[lost.uuid] = wire.Gpu(lost.uuid, lost.index or 0, "", 0, problem=lost.reason)
        else:
            unknown.append(f"GPU {lost.index} cannot be used: {lost.reason}")
    return sorted(gpus.values(), key=lambda gpu: (gpu.index, gpu.uuid)), "; ".join(unknown) or None


def _on_wire(reading: GpuReading) -> wire.Gpu:
    return wire.Gpu(
        reading.uuid, reading.index, reading.name, reading.memory_total_mb, reading.compute_capability,
        reading.driver_version, reading.memory_free_mb, reading.temperature_c, reading.utilization,
    )  # fmt: skip
