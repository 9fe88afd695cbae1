"""AWS's Cost Explorer for tests: `GetCostAndUsage` as its reference describes it. moto has
only what a test has put into its queue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any


@dataclass(frozen=True)
class BilledUsage:
    """What one machine used of one usage type on a day; without `installation`, it has no
    tags that AWS knows.
    """

    day: str
    owner: str
    usage_type: str
    amount: str
    quantity: str = "1"
    installation: str = ""


def cost_and_usage(
    bill: Sequence[BilledUsage], asked: Mapping[str, Any], page: int
) -> dict[str, Any]:
    """The answer; `page` groups at most, all of them if it is 0."""
    begin = date.fromisoformat(asked["TimePeriod"]["Start"])
    end = date.fromisoformat(asked["TimePeriod"]["End"])
    assert end == begin + timedelta(days=1), "the end of a period is not part of it"
    assert asked["Granularity"] == "DAILY"
    assert asked["Metrics"] == ["UnblendedCost", "UsageQuantity"]
    (tag, dimension) = asked["GroupBy"]
    assert tag == {"Type": "TAG", "Key": "gpuyard-owner"}
    assert dimension == {"Type": "DIMENSION", "Key": "USAGE_TYPE"}
    wanted = asked["Filter"]["Tags"]
    assert wanted["Key"] == "gpuyard-installation"
    groups = [
        _group(row)
        for row in bill
        if row.day == begin.isoformat() and row.installation in wanted["Values"]
    ]
    first = int(asked.get("NextPageToken") or 0)
    last = first + page if page else len(groups)
    answer: dict[str, Any] = {
        "GroupDefinitions": asked["GroupBy"],
        "ResultsByTime": [
            {
                "TimePeriod": asked["TimePeriod"],
                "Total": {},
                "Groups": groups[first:last],
                "Estimated": True,
            }
        ],
        "DimensionValueAttributes": [],
    }
    if last < len(groups):
        answer["NextPageToken"] = str(last)
    return answer


def _group(row: BilledUsage) -> dict[str, Any]:
    return {
        "Keys": [f"gpuyard-owner${row.owner}", row.usage_type],
        "Metrics": {
            "UnblendedCost": {"Amount": row.amount, "Unit": "USD"},
            "UsageQuantity": {"Amount": row.quantity, "Unit": "N/A"},
        },
    }
