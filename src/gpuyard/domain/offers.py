"""Offers: what a provider can supply. A Slurm partition, a node pool and a cloud's
instance type all have this form.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache

from gpuyard.domain.gpus import (
    GPU_CLASSES,
    GPUClass,
    classify,
    compute_capability,
    resolve_gpu_class,
)
from gpuyard.domain.price_parts import PricePart


class Strategy(StrEnum):
    """How offers are ranked: by the `cost` of the whole job, by its run time
    (`performance`), by how surely it runs soon (`availability`), or `balanced`: an hour
    of waiting counts as much as the median offer's hourly price.
    """

    COST = "cost"
    PERFORMANCE = "performance"
    AVAILABILITY = "availability"
    BALANCED = "balanced"


@dataclass(frozen=True, slots=True)
class Offer:
    """`nodes` equal machines, each with the given GPUs, cores and gigabytes.

    `id` is `PROVIDER/…` and stays the same from one reading to the next. `containers`,
    `processes`, `workspaces`, `artifacts` and `datasets`: whether it runs jobs with an
    image, without one, with a workspace, those whose files are kept, and those that
    read datasets.

    `zone`: the part of the region, if machines of several can be had.

    `price_per_hour` is that of one node. None means no price is given: it is free, or
    unknown if the offer is `billed`. `price_source` says who gave the price and when,
    `parts` what it is made of, if there is more than the machine.
    `rate` is the value of one unit of its currency in the currency of billing; None if
    unknown. On a `divisible` node a job pays only for its part.

    `model`: it answers prompts for this model, and takes no other jobs.

    `wait_s` is how long a job is expected to wait there, None when unknown. `problem`:
    why it is not available now. `for_gpu_jobs`: jobs without GPUs go there only if no
    other offer suits them.

    Computed from these: `classes`, what its GPUs may be (both sizes where the external
    queue only says `a100`; empty for none or unknown ones); `gpu_gb` and `capability`,
    what each of them surely has (0 and (0, 0) if unknown); `kind`, on which its speed
    depends: the class of its GPUs or their name, and `cpu` for none.
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
    zone: str = ""
    spot: bool = False
    containers: bool = False
    processes: bool = True
    workspaces: bool = False
    artifacts: bool = False
    datasets: bool = False
    model: str = ""
    price_per_hour: Decimal | None = None
    currency: str = "USD"
    price_source: str = ""
    parts: tuple[PricePart, ...] = ()
    rate: float | None = 1.0
    billed: bool = False
    divisible: bool = False
    wait_s: float | None = None
    problem: str = ""
    for_gpu_jobs: bool = False
    classes: frozenset[GPUClass] = field(init=False, repr=False, compare=False)
    gpu_gb: float = field(init=False, repr=False, compare=False)
    capability: tuple[int, int] = field(init=False, repr=False, compare=False)
    kind: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Computed once: a decision may use thousands of offers.
        classes = frozenset[GPUClass]()
        kind = CPU
        if self.gpus:
            classes = _classes(self.gpu, self.gpu_memory_gb)
            kind = next(iter(classes)) if len(classes) == 1 else self.gpu.lower()
        specs = [GPU_CLASSES[name] for name in classes]
        memory_gb = self.gpu_memory_gb
        if not memory_gb:
            memory_gb = min((spec.memory_gb for spec in specs), default=0.0)
        text = self.gpu_capability
        if not text:
            text = min((spec.compute_capability for spec in specs), default="")
        capability = compute_capability(text) if text else (0, 0)
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "gpu_gb", memory_gb)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "capability", capability)

    def part(self, gpus: int, cpus: float) -> float:
        """The part (0 to 1) of a node that a job pays for: by its GPUs, or by its cores
        if it has none. A node that has none of what is asked for is paid in full.
        """
        asked = gpus or cpus
        available = self.gpus if gpus else self.cpus
        if not self.divisible or not available:
            return 1.0
        return min(asked / available, 1.0)

    def hourly(self, gpus: int, cpus: float, nodes: int) -> Decimal | None:
        """The price per hour of this much on each of so many nodes, in the offer's
        currency; None when it has no price.
        """
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
