"""Offers: what a provider can supply, in one form for a Slurm partition, a node pool and a cloud's instance type."""

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, classify, compute_capability, resolve_gpu_class


class Strategy(StrEnum):
    """What the best offer is: the `cost` of the whole job is least, it runs shortest (`performance`), it is sure to
    run soon (`availability`), or `balanced`: an hour of waiting counts as much as an hour of the middling offer."""

    COST = "cost"
    PERFORMANCE = "performance"
    AVAILABILITY = "availability"
    BALANCED = "balanced"


@dataclass(frozen=True, slots=True)
class Offer:
    """`nodes` machines alike, each with so many GPUs, cores and gigabytes.

    `id` is `PROVIDER/…` and stays the same from one look to the next. `containers` and `processes`: whether it runs
    jobs with an image, and without one; `workspaces`: those that use one. `price_per_hour` is of one node, None
    where nobody names a price: nobody bills, unless it is `billed`, and then it is not known; `price_source` says who
    named it and when; `rate` is what one unit of its currency is worth in the one we bill in, None when nobody said; of
    a `divisible` node a job pays its part. `wait_s` is how long a job is expected to wait there, None when unknown.
    `problem`: why it cannot be had at the moment.

    Found from these: `classes`, what its GPUs may be (of an engine that only says `a100` both sizes; empty for none or
    unknown ones); `gpu_gb` and `capability`, what each of them surely has (0 and (0, 0) when nobody knows);
    `kind`, what tells its speed: the class of its GPUs, or what they are called; `cpu` for none.
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
    workspaces: bool = False
    price_per_hour: Decimal | None = None
    currency: str = "USD"
    price_source: str = ""
    rate: float | None = 1.0
    billed: bool = False
    divisible: bool = False
    wait_s: float | None = None
    problem: str = ""
    classes: frozenset[GPUClass] = field(init=False, repr=False, compare=False)
    gpu_gb: float = field(init=False, repr=False, compare=False)
    capability: tuple[int, int] = field(init=False, repr=False, compare=False)
    kind: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Found once: a decision may look at thousands of offers.
        classes = _classes(self.gpu, self.gpu_memory_gb) if self.gpus else frozenset[GPUClass]()
        memory_gb = self.gpu_memory_gb or min((GPU_CLASSES[kind].memory_gb for kind in classes), default=0.0)
        text = self.gpu_capability or min((GPU_CLASSES[kind].compute_capability for kind in classes), default="")
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "gpu_gb", memory_gb)
        kind = next(iter(classes)) if len(classes) == 1 else self.gpu.lower()
        object.__setattr__(self, "kind", kind if self.gpus else CPU)
        object.__setattr__(self, "capability", compute_capability(text) if text else (0, 0))

    def part(self, gpus: int, cpus: float) -> float:
        """Which part (0 to 1) of a node one pays for: by the GPUs, or the cores of what has none.

        All of one that has none of what is asked for.
        """
        asked, there = (gpus, self.gpus) if gpus else (cpus, self.cpus)
        return min(asked / there, 1.0) if self.divisible and there else 1.0

    def hourly(self, gpus: int, cpus: float, nodes: int) -> Decimal | None:
        """What so much of each of so many nodes costs an hour, in its own currency; None when nobody says."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour * Decimal(str(self.part(gpus, cpus))) * nodes


CPU = "cpu"


@lru_cache(maxsize=1024)
def _classes(gpu: str, memory_gb: float) -> frozenset[GPUClass]:
    if memory_gb:
        kind = classify(gpu, int(memory_gb * 1024))
        return frozenset({kind}) if kind else frozenset()
    try:
        return resolve_gpu_class(gpu)
    except ValueError:
        return frozenset()
