"""Workloads of model requests, scripts and batches, and the results of a simulation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuyard.domain.statistics import percentile


@dataclass(frozen=True, slots=True)
class Model:
    """A model: seconds to boot, wake and unload, and GB on the GPU. `wake_s` is None if
    it cannot sleep.
    """

    boot_s: float
    wake_s: float | None
    unload_s: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Script:
    """A script: seconds to start and to stop its worker, and GB on the GPU."""

    boot_s: float
    exit_s: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request for a model or a run of a script, when it arrives and how long it
    takes.
    """

    at: float
    name: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class BatchArrival:
    """Items of one script that arrive together.

    `exclusive`: the batch gets all GPUs. `reload`: models are loaded again afterwards.
    """

    at: float
    script: str
    items: tuple[float, ...]
    exclusive: bool
    reload: bool


@dataclass(frozen=True, slots=True)
class Workload:
    """GPUs (their memory in GB), models, scripts, and what arrives.

    `initial`: the model that is ready on a GPU at the start. `serial_loads`: models
    boot one at a time.
    """

    gpus: Mapping[str, float]
    models: Mapping[str, Model]
    scripts: Mapping[str, Script]
    arrivals: Sequence[Arrival] = ()
    batches: Sequence[BatchArrival] = ()
    initial: Mapping[str, str] = field(default_factory=dict[str, str])
    serial_loads: bool = False


@dataclass(slots=True)
class WorkloadResult:
    """The result of a simulation: seconds from arrival to end of each request, script
    and batch; how many boots there were; and GPU seconds of loading and unloading.
    """

    policy: str
    llm: list[float] = field(default_factory=list[float])
    script: list[float] = field(default_factory=list[float])
    batches: list[float] = field(default_factory=list[float])
    loads: int = 0
    switching_s: float = 0.0
    makespan_s: float = 0.0
    unfinished: int = 0

    def summary(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {
            "policy": self.policy,
            "llm": _summary(self.llm),
            "script": _summary(self.script),
            "batches": [{"makespan_s": makespan} for makespan in self.batches],
            "loads": self.loads,
            "switch_gpu_h": self.switching_s / 3600,
            "makespan_s": self.makespan_s,
            "unfinished": self.unfinished,
        }


def _summary(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    mean = math.fsum(ordered) / len(ordered) if ordered else 0.0
    return {
        "count": len(ordered),
        "p50_s": percentile(ordered, 50),
        "p95_s": percentile(ordered, 95),
        "mean_s": mean,
        "max_s": ordered[-1] if ordered else 0.0,
    }
