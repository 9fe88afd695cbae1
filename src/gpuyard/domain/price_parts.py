"""What the price per hour of a rented machine is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gpuyard.domain.bills import CostPart

_QUANTUM = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class PricePart:
    """What an hour of one part costs. `source` says who gave its price, and when."""

    part: CostPart
    per_hour: Decimal
    source: str


def amounts(total: Decimal, per_hour: Mapping[str, str]) -> dict[str, Decimal]:
    """What of `total` was paid for which part, by what an hour of each costs. They add
    up to the total; empty without parts.
    """
    prices = {name: Decimal(price) for name, price in per_hour.items()}
    whole = sum(prices.values(), Decimal(0))
    if not whole:
        return {}
    found = {
        name: (total * price / whole).quantize(_QUANTUM)
        for name, price in prices.items()
    }
    rest = total - sum(found.values(), Decimal(0))
    found[CostPart.MACHINE] = found.get(CostPart.MACHINE, Decimal(0)) + rest
    return found


def sources_by_name(parts: Sequence[PricePart]) -> dict[str, str]:
    """The sources of the prices, as the ledger keeps them."""
    return {part.part.value: part.source for part in parts if part.source}


def recorded(placements: Sequence[Mapping[str, Any]], field: str) -> dict[str, str]:
    """What the ledger has of an attempt in this field of its placements (`prices` or
    `price_sources`), by the names of parts; empty if nothing is told apart.
    """
    for placement in placements:
        if found := placement.get(field):
            return dict(found)
    return {}


def by_name(parts: Sequence[PricePart]) -> dict[str, str]:
    """The prices as the ledger keeps them."""
    return {part.part.value: str(part.per_hour) for part in parts}
