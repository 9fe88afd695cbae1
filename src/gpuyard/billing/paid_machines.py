"""Machines that the ledger has, as the comparison with bills sees them."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from gpuyard.billing.bills import PaidMachine
from gpuyard.domain.bills import CostPart
from gpuyard.domain.price_parts import recorded

_HOUR_S = 3600


def machine_of_attempt(row: Mapping[str, Any], now: float) -> PaidMachine:
    """The machine of an attempt (`CostUseQueries.rented_attempts`). One that has not
    ended costs until `now` (UTC seconds).
    """
    price = Decimal(row["price_per_hour"] or 0)
    cost = Decimal(row["cost"] or 0)
    began: float = row["created_at"]
    ended: float | None = row["ended_at"]
    paid_s = max((now if ended is None else ended) - began, 0.0)
    if ended is None:
        cost = _cost(price, paid_s)
    elif price:
        # The cost counts from the launch, which is a moment after the intent.
        paid_s = float(cost / price * _HOUR_S)
        began = ended - paid_s
    return PaidMachine(
        machine=machine_in(row["provider_ref"]),
        owner=row["id"],
        job_id=row["job_id"],
        began=began,
        paid_s=paid_s,
        currency=row["currency"],
        # Without a price, nothing was counted.
        cost=cost if price else None,
        per_hour=_prices(row["placements"] or ()),
    )


def _prices(placements: Sequence[Mapping[str, Any]]) -> Mapping[CostPart, Decimal]:
    """What an hour of each part costs; empty if only the whole is known."""
    found = recorded(placements, "prices")
    return {CostPart(name): Decimal(price) for name, price in found.items()}


def machine_of_pool_node(row: Mapping[str, Any], now: float) -> PaidMachine:
    """The machine of a node of a pool (`CostUseQueries.rented_pool_nodes`)."""
    began: float = row["began_at"]
    ended: float | None = row["ended_at"]
    paid_s = max((now if ended is None else ended) - began, 0.0)
    price: str | None = row["price_per_hour"]
    return PaidMachine(
        machine=machine_in(row["reference"]),
        owner=row["id"],
        job_id=None,
        began=began,
        paid_s=paid_s,
        currency=row["currency"],
        cost=None if price is None else _cost(Decimal(price), paid_s),
    )


def machine_in(reference: str) -> str:
    """The cloud's id of a machine that we know as `REGION/INSTANCE_ID`."""
    return reference.rpartition("/")[2]


def _cost(per_hour: Decimal, seconds: float) -> Decimal:
    return per_hour * Decimal(str(seconds)) / _HOUR_S
