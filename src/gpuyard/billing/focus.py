"""The costs of attempts in the columns of FOCUS 1.1, the FinOps Foundation's format of
bills: all that it demands, and others for which gpuyard knows the values. The same file
is one of FOCUS 1.0, which has fewer columns.

One row is what one attempt cost in one month. On rented machines there is one for each
part: the machine, its disk, its address and its traffic.

Columns that say nothing here, such as those of discounts, are there and empty, because
readers look for them.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from math import ceil
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.billing.meter import SHARE
from gpuyard.billing.parts import amount, micros, part, seconds_within
from gpuyard.billing.periods import month_at
from gpuyard.domain.bills import CostPart
from gpuyard.domain.cost_keys import INSTANCE_OWNER
from gpuyard.domain.price_parts import amounts, recorded
from gpuyard.domain.run_time import run_time_s

COLUMNS = (
    "BilledCost",
    "EffectiveCost",
    "ListCost",
    "ContractedCost",
    "BillingCurrency",
    "BillingAccountId",
    "BillingAccountName",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ListUnitPrice",
    "ContractedUnitPrice",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ProviderName",
    "PublisherName",
    "InvoiceIssuerName",
    "ServiceName",
    "ServiceCategory",
    "ServiceSubcategory",
    "RegionId",
    "RegionName",
    "SubAccountId",
    "SubAccountName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "SkuId",
    "SkuPriceId",
    "Tags",
)
_SERVICES = {"list": "gpuyard on own hardware", SHARE: "gpuyard model"}
_CATEGORIES: Mapping[str, tuple[str, str]] = {
    CostPart.MACHINE: ("Compute", "Other (Compute)"),
    CostPart.DISK: ("Storage", "Block Storage"),
    CostPart.ADDRESS: ("Networking", "Other (Networking)"),
    CostPart.TRAFFIC: ("Networking", "Other (Networking)"),
}
_HOUR_S = 3600


def header() -> str:
    """The first line of the file."""
    return _csv([COLUMNS])


def lines(
    rows: Iterable[Mapping[str, Any]], begin: float, end: float, zone: ZoneInfo
) -> str:
    """The lines of these attempts, which have ended: for what ran from `begin` until
    before `end`. Months are those of `zone`.
    """
    charges = (charge for row in rows for charge in _charges(row, begin, end, zone))
    return _csv([charge[name] for name in COLUMNS] for charge in charges)


def _csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()


def _charges(
    row: Mapping[str, Any], begin: float, end: float, zone: ZoneInfo
) -> Iterator[dict[str, str]]:
    """What an attempt cost in each month of the period."""
    began = row["started_at"] or row["ended_at"]
    ran_s = run_time_s(row["started_at"], row["ended_at"], row["ran_s"])
    total = micros(Decimal(row["cost"]))
    prices = recorded(row["placements"] or (), "prices")
    same = {name: _of_part(row, name, price) for name, price in prices.items()}
    until = min(began + ran_s, end)
    at = max(began, begin)
    while True:
        month, next_month = month_at(at, zone)
        bound = min(next_month, end)
        seconds = seconds_within(began, ran_s, at, bound)
        spent = amount(part(total, began, ran_s, at, bound))
        times = {
            "BillingPeriodStart": _time(month),
            "BillingPeriodEnd": _time(next_month),
            "ChargePeriodStart": _time(at),
            "ChargePeriodEnd": _time(_after(at, min(bound, until))),
        }
        if not same:
            hours = Decimal(str(round(seconds, 6))) / _HOUR_S
            yield _of_attempt(row) | times | _costs(spent, hours)
        for name, paid in amounts(spent, prices).items():
            # A rented machine is paid for longer than its attempt runs.
            price = Decimal(prices[name])
            hours = paid / price if price else Decimal(0)
            yield same[name] | times | _costs(paid, hours)
        at = bound
        if at >= until:
            return


def _costs(spent: Decimal, hours: Decimal) -> dict[str, str]:
    paid = f"{spent:f}"
    quantity = f"{hours:.9f}"
    return {
        "BilledCost": paid,
        "EffectiveCost": paid,
        "ListCost": paid,
        "ContractedCost": paid,
        "PricingQuantity": quantity,
        "ConsumedQuantity": quantity,
    }


def _of_part(row: Mapping[str, Any], name: str, price: str) -> dict[str, str]:
    """The columns that are the same in each month, of a part of a rented machine."""
    whole = _of_attempt(row)
    category, subcategory = _CATEGORIES.get(name, _CATEGORIES[CostPart.MACHINE])
    sku = whole["SkuId"] if name == CostPart.MACHINE else f"{row['provider']}/{name}"
    tags: dict[str, str] = json.loads(whole["Tags"])
    tags["gpuyard/part"] = name
    source = recorded(row["placements"], "price_sources").get(name)
    if source:
        tags["gpuyard/price_source"] = source
    per_hour = f"{Decimal(price):f}"
    return whole | {
        "ChargeDescription": f"{name} of {whole['ChargeDescription']}",
        "ListUnitPrice": per_hour,
        "ContractedUnitPrice": per_hour,
        "ServiceCategory": category,
        "ServiceSubcategory": subcategory,
        "SkuId": sku,
        "SkuPriceId": f"{sku} at {per_hour} {row['currency']}",
        "Tags": json.dumps(tags, ensure_ascii=False),
    }


def _of_attempt(row: Mapping[str, Any]) -> dict[str, str]:
    """The columns that are the same in each month."""
    price = _price(row)
    sku: str = row["tier"] or row["provider"]
    project = row["project"] or ""
    labels: Mapping[str, str] = row["labels"] or {}
    ended: str = row["reason"] or "completed"
    provider: str = row["provider"]
    service = _SERVICES.get(row["basis"] or "", provider)
    tags: dict[str, str] = {
        **labels,
        "gpuyard/job": row["job_id"],
        "gpuyard/user": row["owner"] or INSTANCE_OWNER,
        "gpuyard/basis": row["basis"] or "",
        "gpuyard/end": ended,
    }
    known: dict[str, str] = {
        "BillingCurrency": row["currency"],
        "BillingAccountId": "gpuyard",
        "BillingAccountName": "gpuyard",
        "ChargeCategory": "Usage",
        "ChargeDescription": f"attempt {row['number']} of job {row['name']}",
        "ChargeFrequency": "Usage-Based",
        "PricingCategory": "Standard",
        "PricingUnit": "Hours",
        "ListUnitPrice": price,
        "ContractedUnitPrice": price,
        "ConsumedUnit": "Hours",
        "ProviderName": provider,
        "PublisherName": provider,
        "InvoiceIssuerName": provider,
        "ServiceName": service,
        "ServiceCategory": "Compute",
        "ServiceSubcategory": "Other (Compute)",
        "SubAccountId": project,
        "SubAccountName": project,
        "ResourceId": row["id"],
        "ResourceName": row["name"],
        "ResourceType": "Attempt",
        "SkuId": sku,
        # One price only: that of a tier may change.
        "SkuPriceId": f"{sku} at {price} {row['currency']}",
        "Tags": json.dumps(tags, ensure_ascii=False),
    }
    return dict.fromkeys(COLUMNS, "") | known


def _price(row: Mapping[str, Any]) -> str:
    """What an hour of it is charged. A share of what another job costs is not."""
    if row["basis"] == SHARE:
        return "0"
    return f"{Decimal(row['price_per_hour'] or '0'):f}"


def _after(begin: float, end: float) -> float:
    """The end of a charge that begins at `begin`, in whole seconds: what began has at
    least one.
    """
    return max(ceil(end), int(begin) + 1)


def _time(at: float) -> str:
    """A time as FOCUS writes it: UTC, in whole seconds."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
