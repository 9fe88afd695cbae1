"""What AWS bills for machines, from Cost Explorer.

It knows machines only by their tags, and these only where the account has made them
cost allocation tags.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, date
from decimal import Decimal
from typing import Any

from gpuyard.domain.bills import Charge, CloudBill, CostPart
from gpuyard.providers.aws.calls import AwsCalls
from gpuyard.providers.instances.api import TAG_INSTALLATION, TAG_OWNER
from gpuyard.providers.instances.bills import DAY, bounds_of, part_with

_COST = "UnblendedCost"
_USAGE = "UsageQuantity"
_IF_MISSING = (
    "the bill lacks it: are gpuyard-owner and gpuyard-installation active as cost"
    " allocation tags in the account that pays? AWS counts only from then on"
)
# Of usage types, such as USE2-BoxUsage:g5.xlarge.
_PARTS = (
    ("boxusage", CostPart.MACHINE),
    ("spotusage", CostPart.MACHINE),
    ("dedicatedusage", CostPart.MACHINE),
    ("ebs:volume", CostPart.DISK),
    ("publicipv4", CostPart.ADDRESS),
    ("elasticip", CostPart.ADDRESS),
    ("datatransfer", CostPart.TRAFFIC),
    ("aws-out-bytes", CostPart.TRAFFIC),
)


def bill_region(region: str) -> str:
    """The region that answers questions about the prices and bills of a region."""
    return "cn-northwest-1" if region.startswith("cn-") else "us-east-1"


def bill_request(day: date, installation: str) -> dict[str, Any]:
    """The parameters of GetCostAndUsage: a day in UTC, by machine and by what it is
    for.
    """
    return {
        "TimePeriod": {"Start": day.isoformat(), "End": (day + DAY).isoformat()},
        "Granularity": "DAILY",
        "Metrics": [_COST, _USAGE],
        "Filter": {"Tags": {"Key": TAG_INSTALLATION, "Values": [installation]}},
        "GroupBy": [
            {"Type": "TAG", "Key": TAG_OWNER},
            {"Type": "DIMENSION", "Key": "USAGE_TYPE"},
        ],
    }


async def read_bill(
    calls: AwsCalls, region: str, day: date, installation: str
) -> CloudBill:
    """What AWS bills for the machines of an installation. ProviderError."""
    request = bill_request(day, installation)
    charges: list[Charge] = []
    estimated = False
    while True:
        answer = await calls.call(
            "ce", bill_region(region), "GetCostAndUsage", **request
        )
        for result in answer.get("ResultsByTime") or ():
            estimated = estimated or bool(result.get("Estimated"))
            charges += charges_in(result)
        token = answer.get("NextPageToken")
        if not token:
            break
        request["NextPageToken"] = token
    (begin, end) = bounds_of(day, UTC)
    return CloudBill(day, "UTC", begin, end, charges, estimated, _IF_MISSING)


def charges_in(result: Mapping[str, Any]) -> Iterator[Charge]:
    """The charges of one of `ResultsByTime`; those of nothing are left out."""
    for group in result.get("Groups") or ():
        (tag, usage_type) = group["Keys"]
        cost = group["Metrics"][_COST]
        amount = Decimal(cost["Amount"])
        part = part_with(_PARTS, usage_type)
        hours = None
        if part is CostPart.MACHINE:
            hours = Decimal(group["Metrics"][_USAGE]["Amount"])
        if amount or hours:
            # `gpuyard-owner$att_1`; nothing follows where a thing lacks the tag.
            owner = tag.partition("$")[2]
            yield Charge("", owner, part, amount, cost["Unit"], hours)
