"""Samples what an attempt uses over time, as points like those of the metrics in its
output.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from gpuyard.domain import wire

_MIB = 1 << 20


class UsedNow(Protocol):
    """What an attempt uses: CPU seconds since its start, and MiB of memory now."""

    @property
    def cpu_s(self) -> float:
        """CPU seconds since its start."""
        ...

    @property
    def rss_mb(self) -> float:
        """MiB of memory now."""
        ...


class UsingProgram(Protocol):
    """Whose use is measured."""

    def usage(self) -> UsedNow:
        """What it uses now."""
        ...


class UsageSampler:
    """Samples one attempt. Series: `system/cpu_cores`, `system/memory_mb`,
    `system/disk_mb` (what it took of the disk at the last look), and for each of its
    GPUs, numbered from 0, `system/gpu0_utilization` (0 to 1) and
    `system/gpu0_memory_mb` (of the whole device, in MB).

    `n` of a point counts sampling periods since the attempt began, so that a restarted
    agent continues the series.
    """

    def __init__(
        self,
        program: UsingProgram,
        gpu_uuids: Sequence[str],
        gpus: Callable[[], list[wire.GpuStatus]],
        began: float,
        every_s: float,
        disk_used: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._program = program
        self._gpu_uuids = gpu_uuids
        self._gpus = gpus
        self._began = began
        self._every_s = every_s
        self._disk_used = disk_used
        self._last: tuple[float, float] | None = None
        self._busy_sum = 0.0
        self._busy_count = 0
        self._gpu_memory_mb: float | None = None

    def sample(self, at: float) -> list[wire.SeriesPoint]:
        """The points at the time `at` (UTC seconds). CPU use needs two samples, so the
        first has none.
        """
        is_first = self._last is None
        usage = self._program.usage()
        values = {"memory_mb": usage.rss_mb}
        disk_used = self._disk_used()
        if disk_used is not None:
            values["disk_mb"] = disk_used / _MIB
        if self._last:
            last_at, last_cpu_s = self._last
            if at > last_at:
                used_cpu_s = max(usage.cpu_s - last_cpu_s, 0)
                values["cpu_cores"] = used_cpu_s / (at - last_at)
        self._last = at, usage.cpu_s
        values |= self._gpu_values(is_first=is_first)
        n = round((at - self._began) / self._every_s)
        return [
            wire.SeriesPoint(f"system/{name}", n, None, round(value, 3), at)
            for name, value in values.items()
        ]

    def _gpu_values(self, *, is_first: bool) -> dict[str, float]:
        """What its GPUs do now. The first sample does not count for their use: at its
        start an attempt has not used them yet.
        """
        values: dict[str, float] = {}
        devices = {gpu.uuid: gpu for gpu in self._gpus()}
        for index, uuid in enumerate(self._gpu_uuids):
            gpu = devices.get(uuid)
            if gpu is None or gpu.problem:
                continue
            used_mb = float(gpu.memory_mb - gpu.free_mb)
            values[f"gpu{index}_memory_mb"] = used_mb
            self._gpu_memory_mb = max(self._gpu_memory_mb or 0.0, used_mb)
            if gpu.utilization is not None:
                values[f"gpu{index}_utilization"] = gpu.utilization
                if not is_first:
                    self._busy_sum += gpu.utilization
                    self._busy_count += 1
        return values

    def gpu_usage(self) -> dict[str, float]:
        """What it used of its GPUs until now, as far as that is known: how busy they
        were on average, and the most memory in MB that was in use on one of them.
        """
        usage: dict[str, float] = {}
        if self._busy_count:
            usage[wire.GPU_UTILIZATION] = self._busy_sum / self._busy_count
        if self._gpu_memory_mb is not None:
            usage[wire.GPU_MEMORY_MB] = self._gpu_memory_mb
        return usage
