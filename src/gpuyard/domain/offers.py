"""Offers: what a provider can supply, in one form for a Slurm partition, a node pool and a cloud's instance type."""

from dataclasses import dataclass
from decimal import Decimal

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, classify, compute_capability, resolve_gpu_class


@dataclass(frozen=True, slots=True)
class Offer:
    """`nodes` machines alike, each with so many GPUs, cores and gigabytes.

    `id` is `PROVIDER/…` and stays the same from one look to the next. `containers` and `processes`: whether it runs
    jobs with an image, and without one. `price_per_hour` is of one node, None where nobody names a price;
    `price_source` says who named it and when; of a `divisible` node a job pays its part of the GPUs. `wait_s` is how
    long a job is expected to wait there, None when unknown. `problem`: why it cannot be had at the moment.
    """

    id: str
    provider: str
    gpu: str = ""
    gpus: int = 0
    gpu_memory_gb: float = 0.0
    gpu_capability: str = ""
    cpus: float = 1.0
    memory_gb: float = 0.0
    nodes: int = 1
    region: str = ""
    spot: bool = False
    containers: bool = False
    processes: bool = True
    price_per_hour: Decimal | None = None
    currency: str = "USD"
    price_source: str = ""
    divisible: bool = False
    wait_s: float | None = None
    problem: str = ""

    @property
    def classes(self) -> frozenset[GPUClass]:
        """What its GPUs may be: of an engine that only says `a100` both sizes; empty for none, or unknown ones."""
        if not self.gpus:
            return frozenset()
        if self.gpu_memory_gb:
            kind = classify(self.gpu, int(self.gpu_memory_gb * 1024))
            return frozenset({kind}) if kind else frozenset()
        try:
            return resolve_gpu_class(self.gpu)
        except ValueError:
            return frozenset()

    @property
    def gpu_gb(self) -> float:
        """The memory that one GPU surely has; 0 when nobody knows."""
        return self.gpu_memory_gb or min((GPU_CLASSES[kind].memory_gb for kind in self.classes), default=0.0)

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability that its GPUs surely have; (0, 0) when nobody knows."""
        text = self.gpu_capability or min((GPU_CLASSES[kind].compute_capability for kind in self.classes), default="")
        return compute_capability(text) if text else (0, 0)
