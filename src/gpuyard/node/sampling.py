"""What an attempt uses, over time: points of the same kind as the metrics its output tells."""

from collections.abc import Callable, Sequence

from gpuyard.domain import wire
from gpuyard.node.launcher import Process


class UsageSampler:
    """Samples one attempt. Series: `system/cpu_cores`, `system/memory_mb`, and per GPU, by its place among the
    attempt's own, `system/gpu0_utilization` (0 to 1) and `system/gpu0_memory_mb` (of the whole device, in MB).

    `n` of a point counts periods since the attempt began, so that a restarted agent goes on with the series.
    """

    def __init__(
        self,
        process: Process,
        gpu_uuids: Sequence[str],
        gpus: Callable[[], list[wire.Gpu]],
        began: float,
        every_s: float,
    ) -> None:
        self._process = process
        self._gpu_uuids = gpu_uuids
        self._gpus = gpus
        self._began = began
        self._every_s = every_s
        self._last: tuple[float, float] | None = None

    def sample(self, at: float) -> list[wire.Point]:
        """The points of this moment (UTC seconds); processor use is known from the second sample on."""
        usage = self._process.usage()
        values = {"memory_mb": usage.rss_mb}
        if self._last and at > self._last[0]:
            values["cpu_cores"] = max(usage.cpu_s - self._last[1], 0) / (at - self._last[0])
        self._last = at, usage.cpu_s
        devices = {gpu.uuid: gpu for gpu in self._gpus()}
        for place, uuid in enumerate(self._gpu_uuids):
            gpu = devices.get(uuid)
            if gpu and not gpu.problem:
                values[f"gpu{place}_memory_mb"] = float(gpu.memory_mb - gpu.free_mb)
                if gpu.utilization is not None:
                    values[f"gpu{place}_utilization"] = gpu.utilization
        n = round((at - self._began) / self._every_s)
        return [wire.Point(f"system/{name}", n, None, round(value, 3), at) for name, value in values.items()]
