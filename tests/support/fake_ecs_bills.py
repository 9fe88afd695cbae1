"""Alibaba's billing (BSS) for tests: DescribeInstanceBill, as its reference describes it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tests.support.fake_ecs_machines import Json, RefusalError

if TYPE_CHECKING:
    from tests.support.fake_ecs import FakeEcs

PARAMETERS = frozenset(
    {
        "BillingCycle",
        "BillingDate",
        "Granularity",
        "IsBillingItem",
        "MaxResults",
        "NextToken",
        "ProductCode",
        "RegionId",
        "SubscriptionType",
    }
)
_MOST = 300


def describe_bill(ecs: "FakeEcs", given: Mapping[str, str]) -> Json:
    """A page of the items of a day; two a page, to have pages."""
    if ecs.bill_refusal:
        # Billing answers with status 200 all the same.
        return {"Code": ecs.bill_refusal, "Message": "Denied.", "Success": False}
    day = given.get("BillingDate", "")
    if given.get("Granularity") != "DAILY" or not day.startswith(given["BillingCycle"]):
        raise RefusalError("ParameterError", "BillingDate is not in BillingCycle.")
    if int(given.get("MaxResults", 20)) > _MOST:
        raise RefusalError("ParameterError", "MaxResults is too large.")
    items = [row for row in ecs.bill if row["BillingDate"] == day]
    first = int(given.get("NextToken", 0))
    last = first + 2
    data: Json = {
        "BillingCycle": given["BillingCycle"],
        "AccountID": "185000000000",
        "TotalCount": len(items),
        "MaxResults": int(given.get("MaxResults", 20)),
        "Items": items[first:last],
    }
    if last < len(items):
        data["NextToken"] = str(last)
    return {"Code": "Success", "Message": "Successful!", "Success": True, "Data": data}


def billed_item(
    day: str, machine: str, tags: Mapping[str, str], code: str, amount: float
) -> Json:
    """An item of a bill."""
    return {
        "BillingDate": day,
        "BillingItem": code,
        "BillingItemCode": code,
        "Currency": "CNY",
        "InstanceID": machine,
        "PretaxAmount": amount,
        "PretaxGrossAmount": amount * 2,
        "ProductCode": "ecs",
        "ServicePeriod": "5400",
        "ServicePeriodUnit": "Second",
        "SubscriptionType": "PayAsYouGo",
        "Tag": "; ".join(f"key:{key} value:{value}" for key, value in tags.items()),
    }
