"""The bill, against what the specification of FOCUS 1.1 demands of each column."""

import csv
import json
import re
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuyard.billing import focus

# The columns of the feature level "Mandatory", and whether they may be null. Of
# charges for usage, the specification lets none of the second list be null either.
NEVER_NULL = [
    "BilledCost",
    "BillingAccountId",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
    "ChargeFrequency",
    "ServiceSubcategory",
]
NOT_NULL_FOR_USAGE = [
    "PricingQuantity",
    "PricingUnit",
    "PricingCategory",
    "SkuId",
    "SkuPriceId",
    "ListUnitPrice",
    "ContractedUnitPrice",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ChargeDescription",
    "BillingAccountName",
    "ResourceId",
    "ResourceType",
]
NULL_HERE = ["ChargeClass"]
ALLOWED = {
    "ChargeCategory": {"Usage"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other"},
    "ServiceCategory": {"Compute", "Storage", "Networking"},
    "ServiceSubcategory": {"Other (Compute)", "Block Storage", "Other (Networking)"},
    "PricingUnit": {"Hours"},
    "ConsumedUnit": {"Hours"},
}
TIMES = [name for name in focus.COLUMNS if name.endswith(("Start", "End"))]
NUMBERS = [
    name for name in focus.COLUMNS if name.endswith(("Cost", "Quantity", "UnitPrice"))
]
NOVEMBER = 1_793_491_200.0  # 2026-11-01 in UTC


def attempt(**fields: Any) -> dict[str, Any]:
    return {
        "id": "att_1",
        "job_id": "job_1",
        "number": 1,
        "provider": "local",
        "started_at": NOVEMBER - 1800.5,
        "ended_at": NOVEMBER + 5400,
        "ran_s": 7200.0,
        "reason": None,
        "price_per_hour": "0.526",
        "currency": "USD",
        "basis": "list",
        "tier": "GPU_SMALL",
        "cost": "1.052000",
        "owner": None,
        "name": "train",
        "labels": {"team": "a,b"},
        "project": "vision",
        "placements": None,
        **fields,
    }


# A machine that was paid for longer than its attempt ran.
RENTED = {
    "provider": "aws",
    "basis": "offer",
    "tier": "",
    "price_per_hour": "1.022",
    "cost": "2.555001",
    "placements": [
        {
            "node_id": "",
            "prices": {"machine": "1.006", "disk": "0.011", "address": "0.005"},
            "price_sources": {"machine": "AWS price list, 2026-11-29", "disk": "x, y"},
        }
    ],
}


def charges(*rows: dict[str, Any]) -> list[dict[str, str]]:
    text = focus.header() + focus.lines(rows, 0.0, 2e9, ZoneInfo("UTC"))
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"basis": "offer", "tier": "", "provider": "slurm", "price_per_hour": "3E+1"},
        {"basis": "share", "cost": "0"},
        RENTED,
        {"ran_s": 0.2, "cost": "0.000029"},
        {"started_at": None, "ran_s": None, "cost": "0"},
        {"provider": "aws", "basis": "offer", "tier": "", "placements": [{}]},
        {"project": None, "labels": None, "price_per_hour": None, "cost": "0"},
    ],
)
def test_each_row_has_what_focus_demands(fields):
    found = charges(attempt(**fields))
    assert found
    for charge in found:
        for name in (*NEVER_NULL, *NOT_NULL_FOR_USAGE):
            assert charge[name], name
        for name in NULL_HERE:
            assert not charge[name], name
        for name, allowed in ALLOWED.items():
            assert charge[name] in allowed, name
        for name in TIMES:
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", charge[name]), name
        for name in NUMBERS:
            # No more than digits and a point.
            assert re.fullmatch(r"\d+(\.\d+)?", charge[name]), (name, charge[name])
        assert re.fullmatch("[A-Z]{3}", charge["BillingCurrency"])
        assert isinstance(json.loads(charge["Tags"]), dict)
        assert (
            charge["BillingPeriodStart"]
            <= charge["ChargePeriodStart"]
            < charge["ChargePeriodEnd"]
            <= charge["BillingPeriodEnd"]
        )


def test_unit_prices_times_quantities_are_the_costs():
    rented = attempt(**RENTED)
    for charge in charges(attempt(), attempt(basis="share", cost="0"), rented):
        for cost, price in (
            ("ListCost", "ListUnitPrice"),
            ("ContractedCost", "ContractedUnitPrice"),
        ):
            product = Decimal(charge[price]) * Decimal(charge["PricingQuantity"])
            assert product == pytest.approx(Decimal(charge[cost]), abs=Decimal("2e-6"))


def test_a_price_id_has_one_price_and_one_sku():
    found = charges(attempt(), attempt(price_per_hour="0.6"), attempt(currency="EUR"))
    ids = {(c["SkuPriceId"], c["ListUnitPrice"], c["BillingCurrency"]) for c in found}
    assert len({each[0] for each in ids}) == len(ids) == 3
    assert {charge["SkuId"] for charge in found} == {"GPU_SMALL"}


def test_the_parts_of_a_rented_machine_have_rows_of_their_own():
    found = charges(attempt(**RENTED))
    by_sku: dict[str, Decimal] = {}
    for charge in found:
        spent = by_sku.get(charge["SkuId"], Decimal(0))
        by_sku[charge["SkuId"]] = spent + Decimal(charge["BilledCost"])
    assert list(by_sku) == ["aws", "aws/disk", "aws/address"]
    assert sum(by_sku.values()) == Decimal("2.555001")
    assert by_sku["aws/disk"] == pytest.approx(Decimal("0.0275"), abs=Decimal("2e-6"))
    machine, disk, address, *next_month = found
    assert disk["ChargeDescription"] == "disk of attempt 1 of job train"
    assert (disk["ListUnitPrice"], disk["ServiceCategory"]) == ("0.011", "Storage")
    sources = [
        json.loads(each["Tags"]).get("gpuyard/price_source")
        for each in (machine, disk, address)
    ]
    assert sources == ["AWS price list, 2026-11-29", "x, y", None]
    assert len(next_month) == 3


def test_an_attempt_over_the_end_of_a_month_is_in_both():
    first, second = charges(attempt())
    assert first["ChargePeriodEnd"] == first["BillingPeriodEnd"]
    assert second["ChargePeriodStart"] == first["ChargePeriodEnd"]
    costs = Decimal(first["BilledCost"]) + Decimal(second["BilledCost"])
    assert costs == Decimal("1.052")
