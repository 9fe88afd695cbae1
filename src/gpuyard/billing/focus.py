"""The costs of attempts in the columns of FOCUS 1.0, the FinOps Foundation's format of
bills: those columns of it for which gpuyard knows the values.

One row is what one attempt cost in one month.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.billing.meter import SHARE
from gpuyard.billing.parts import amount, micros, part, seconds_within
from gpuyard.billing.periods import month_at
from gpuyard.domain.cost_keys import INSTANCE_OWNER
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
    same = _of_attempt(row)
    until = min(began + ran_s, end)
    at = max(began, begin)
    while True:
        month, next_month = month_at(at, zone)
        bound = min(next_month, end)
        seconds = seconds_within(began, ran_s, at, bound)
        spent = str(amount(part(total, began, ran_s, at, bound)))
        hours = f"{Decimal(str(round(seconds, 6))) / _HOUR_S:.9f}"
        yield same | {
            "BilledCost": spent,
            "EffectiveCost": spent,
            "ListCost": spent,
            "ContractedCost": spent,
            "BillingPeriodStart": _time(month),
            "BillingPeriodEnd": _time(next_month),
            "ChargePeriodStart": _time(at),
            "ChargePeriodEnd": _time(max(min(bound, until), at)),
            "PricingQuantity": hours,
            "ConsumedQuantity": hours,
        }
        at = bound
        if at >= until:
            return


def _of_attempt(row: Mapping[str, Any]) -> dict[str, str]:
    """The columns that are the same in each month."""
    price = str(row["price_per_hour"] or "0")
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
        "SubAccountId": project,
        "SubAccountName": project,
        "ResourceId": row["id"],
        "ResourceName": row["name"],
        "ResourceType": "Attempt",
        "SkuId": row["tier"] or "",
        "SkuPriceId": row["tier"] or "",
        "Tags": json.dumps(tags, ensure_ascii=False),
    }
    return dict.fromkeys(COLUMNS, "") | known


def _time(at: float) -> str:
    """A time as FOCUS writes it: UTC, in whole seconds."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
