"""The meter: seconds × price per attempt.

On one's own hardware the price is a tier's list price, basis `list`. A prompt costs
nothing itself, because the job of its model's server pays for the GPUs; its price says
what part of that it takes, basis `share`.
"""

from dataclasses import dataclass
from decimal import Decimal

from gpuyard.domain.shape import Shape
from gpuyard.domain.tiers import Tiers

# Enough digits for one second of the cheapest tier; rounded for people only where it is
# shown.
_QUANTUM = Decimal("0.000001")
SHARE = "share"
"""The basis of a price that is a part of what another job costs."""


@dataclass(frozen=True, slots=True)
class Price:
    """What one hour of an attempt costs, and why."""

    per_hour: Decimal
    currency: str
    basis: str
    tier: str


def list_price(
    shape: Shape, tier: str | None, tiers: Tiers, fixed: Decimal | None, currency: str
) -> Price:
    """The list price of `shape` on one's own hardware.

    The tier is the one the job names, else (or when the settings no longer have it) the
    cheapest that covers a node's share, as many units as its GPUs take; every node
    counts. `fixed` per hour and node (from the settings, may be 0) replaces it.
    """
    named = next((row for row in tiers if row.id == tier), None)
    row = named or tiers.covering(
        shape.cpus, shape.memory_gb, shape.gpus, shape.gpu_memory_gb
    )
    if fixed is not None:
        return Price(fixed * shape.nodes, currency, "list", row.id)
    return Price(
        row.cost_per_hour * row.units(shape.gpus) * shape.nodes,
        row.currency,
        "list",
        row.id,
    )


def cost(per_hour: Decimal, ran_s: float) -> Decimal:
    """The cost of an attempt that ran for `ran_s` seconds, in the price's currency."""
    seconds = Decimal(str(round(ran_s, 6)))
    return (per_hour * seconds / 3600).quantize(_QUANTUM)
