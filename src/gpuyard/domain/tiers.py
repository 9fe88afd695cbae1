"""Tiers: the named sizes that people choose from. Dated catalogue data; `[[tiers]]` in
`gpuyard.toml` overrides it.

Each row says where its price comes from. The seed document's own $2.012 for GPU_LARGE
is above AWS's list price for a g5.2xlarge ($1.212). It stays until someone overrides
it, because people budget with the document.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from difflib import get_close_matches

from pydantic import Field

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.strict_model import StrictModel

TIERS_DATE = "2026-11-21"


class Tier(StrictModel):
    """A size: `cpu` cores, `memory_gb`, `gpu_count` GPUs of `gpu_memory_gb` each; the
    longest run time; the price per hour.
    """

    id: str
    name: str
    description: str
    cpu: float = Field(gt=0)
    memory_gb: float = Field(gt=0)
    gpu_count: int = Field(default=0, ge=0)
    gpu_memory_gb: float = Field(default=0, ge=0)
    instance: str | None = None
    max_runtime_s: float = Field(gt=0)
    cost_per_hour: Decimal = Field(ge=0)
    currency: str = "USD"
    source: str = ""
    date: str = TIERS_DATE

    def units(self, gpu_count: int) -> int:
        """How many units of this tier a node's share with `gpu_count` GPUs needs."""
        if not self.gpu_count:
            return 1
        return max(1, math.ceil(gpu_count / self.gpu_count))


_AWS = "AWS on-demand list price, us-east-1, Linux"
_BUILT_IN = (
    Tier(
        id="CPU_SMALL",
        name="CPU small",
        description="Quick checks and small scripts",
        cpu=0.5,
        memory_gb=0.5,
        max_runtime_s=30,
        cost_per_hour=Decimal("0.02"),
        source="design document S4",
    ),
    Tier(
        id="CPU_LARGE",
        name="CPU large",
        description="Data preparation and small models",
        cpu=2,
        memory_gb=4,
        instance="t3.medium",
        max_runtime_s=600,
        cost_per_hour=Decimal("0.0416"),
        source=_AWS,
    ),
    Tier(
        id="GPU_SMALL",
        name="GPU small",
        description="Fine-tuning and small models on one 16 GB GPU",
        cpu=4,
        memory_gb=16,
        gpu_count=1,
        gpu_memory_gb=16,
        instance="g4dn.xlarge",
        max_runtime_s=7200,
        cost_per_hour=Decimal("0.526"),
        source=_AWS,
    ),
    Tier(
        id="GPU_MEDIUM",
        name="GPU medium",
        description="Longer training on one 16 GB GPU",
        cpu=8,
        memory_gb=32,
        gpu_count=1,
        gpu_memory_gb=16,
        instance="g4dn.2xlarge",
        max_runtime_s=28800,
        cost_per_hour=Decimal("0.752"),
        source=_AWS,
    ),
    Tier(
        id="GPU_LARGE",
        name="GPU large",
        description="Larger models on one 24 GB GPU",
        cpu=8,
        memory_gb=32,
        gpu_count=1,
        gpu_memory_gb=24,
        instance="g5.2xlarge",
        max_runtime_s=86400,
        cost_per_hour=Decimal("2.012"),
        source="design document S4",
    ),
)


class Tiers:
    """The tiers: the built-in rows and the overrides, which replace rows of the same
    id.
    """

    def __init__(self, overrides: Iterable[Tier] = ()) -> None:
        self.by_id: Mapping[str, Tier] = {
            _normalized(tier.id): tier for tier in (*_BUILT_IN, *overrides)
        }

    def __iter__(self) -> Iterator[Tier]:
        return iter(self.by_id.values())

    def get(self, tier_id: str) -> Tier:
        """The tier of this id (case does not matter); InvalidInputError names the
        nearest.
        """
        key = _normalized(tier_id)
        if key in self.by_id:
            return self.by_id[key]
        near = get_close_matches(key, self.by_id, n=2, cutoff=0.3) or list(self.by_id)
        raise InvalidInputError.of(
            "tier", f"there is no tier {tier_id!r}", f"nearest: {', '.join(near)}"
        )

    def covering(
        self, cpus: float, memory_gb: float, gpu_count: int, gpu_memory_gb: float
    ) -> Tier:
        """The cheapest tier that covers a node's share, with as many units as its GPUs
        need; the dearest tier when none does.
        """
        kind = [
            tier
            for tier in self.by_id.values()
            if bool(tier.gpu_count) == bool(gpu_count)
        ]

        def covers(tier: Tier) -> bool:
            units = tier.units(gpu_count)
            return (
                tier.cpu * units >= cpus
                and tier.memory_gb * units >= memory_gb
                and tier.gpu_memory_gb >= gpu_memory_gb
            )

        def price(tier: Tier) -> Decimal:
            return tier.cost_per_hour * tier.units(gpu_count)

        covering = [tier for tier in kind if covers(tier)]
        if covering:
            return min(covering, key=price)
        return max(kind, key=lambda tier: tier.cost_per_hour)


def _normalized(tier_id: str) -> str:
    return tier_id.strip().upper().replace("-", "_")
