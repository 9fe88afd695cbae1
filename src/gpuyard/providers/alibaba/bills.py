"""What Alibaba bills for machines, from its billing API (BSS)."""

import re
from collections.abc import Iterator, Mapping
from datetime import date, timedelta, timezone
from decimal import Decimal

from gpuyard.domain.bills import Charge, CloudBill, CostPart
from gpuyard.providers.alibaba.client import BILLING, AlibabaClient
from gpuyard.providers.instances.api import TAG_INSTALLATION, TAG_OWNER
from gpuyard.providers.instances.bills import bounds_of, part_with
from gpuyard.providers.kubernetes.fields import Json, object_at, objects_at, text_at

BILLING_ZONE = timezone(timedelta(hours=8))
"""The days of all of Alibaba's bills are those of Beijing."""
_ACTION = "DescribeInstanceBill"
_PAGE = 300
_IF_MISSING = (
    "the bill lacks it: Alibaba's bill of a day is complete a day or two later; a"
    " machine that another account pays for is never in it"
)
# Of the code and the name of an item.
_PARTS = (
    ("disk", CostPart.DISK),
    ("系统盘", CostPart.DISK),
    ("磁盘", CostPart.DISK),
    ("network", CostPart.TRAFFIC),
    ("traffic", CostPart.TRAFFIC),
    ("bandwidth", CostPart.TRAFFIC),
    ("流量", CostPart.TRAFFIC),
    ("带宽", CostPart.TRAFFIC),
    ("eip", CostPart.ADDRESS),
    ("instance", CostPart.MACHINE),
    ("configuration", CostPart.MACHINE),
    ("实例", CostPart.MACHINE),
    ("配置", CostPart.MACHINE),
)
_SECONDS: Mapping[str, int] = {
    "second": 1,
    "秒": 1,
    "minute": 60,
    "分钟": 60,
    "hour": 3600,
    "小时": 3600,
}
_TAG = re.compile(r"key:(.*?) value:(.*)")


def bill_request(day: date) -> Json:
    """The parameters of DescribeInstanceBill: each item of each machine on a day in
    Beijing.
    """
    return {
        "BillingCycle": f"{day:%Y-%m}",
        "BillingDate": day.isoformat(),
        "Granularity": "DAILY",
        "IsBillingItem": True,
        "ProductCode": "ecs",
        "SubscriptionType": "PayAsYouGo",
        "MaxResults": _PAGE,
    }


async def read_bill(
    client: AlibabaClient, region: str, day: date, installation: str
) -> CloudBill:
    """What Alibaba bills for the machines of an installation. ProviderError."""
    request = bill_request(day)
    charges: list[Charge] = []
    while True:
        answer = await client.call(region, _ACTION, request, product=BILLING)
        data = object_at(answer, "Data")
        for row in objects_at(data, "Items"):
            charges += charge_in(row, installation)
        token = text_at(data, "NextToken")
        if not token:
            break
        request["NextToken"] = token
    (begin, end) = bounds_of(day, BILLING_ZONE)
    return CloudBill(
        day, "UTC+8", begin, end, charges, estimated=False, if_missing=_IF_MISSING
    )


def charge_in(row: Json, installation: str) -> Iterator[Charge]:
    """The charge of an item, if it is of one of our machines and not zero."""
    tags = tags_in(text_at(row, "Tag"))
    amount = Decimal(str(row.get("PretaxAmount") or 0))
    if tags.get(TAG_INSTALLATION) != installation or not amount:
        return
    item = f"{text_at(row, 'BillingItemCode')} {text_at(row, 'BillingItem')}"
    part = part_with(_PARTS, item)
    yield Charge(
        text_at(row, "InstanceID"),
        tags.get(TAG_OWNER, ""),
        part,
        amount,
        text_at(row, "Currency") or "CNY",
        _hours(row) if part is CostPart.MACHINE else None,
    )


def tags_in(text: str) -> Mapping[str, str]:
    """The tags of an item: `key:a value:b; key:c value:d`."""
    found = (_TAG.fullmatch(pair.strip()) for pair in text.split(";"))
    return {pair[1]: pair[2] for pair in found if pair}


def _hours(row: Json) -> Decimal | None:
    """How long a machine is billed; None if that is not told in a known unit."""
    unit = text_at(row, "ServicePeriodUnit").lower()
    period = text_at(row, "ServicePeriod")
    if unit not in _SECONDS or not re.fullmatch(r"\d+(\.\d+)?", period):
        return None
    return Decimal(period) * _SECONDS[unit] / 3600
