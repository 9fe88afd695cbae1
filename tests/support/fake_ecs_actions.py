"""The actions of tests/support/fake_ecs.py: what each takes and returns."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.support.fake_ecs_bills import PARAMETERS as OF_BILLS
from tests.support.fake_ecs_bills import describe_bill
from tests.support.fake_ecs_machines import (
    DISK_PRICE,
    TYPES,
    ZONES,
    Json,
    Machine,
    RefusalError,
    ids_in,
    is_true,
    listed,
    new_id,
    plain,
    tags_in,
)

if TYPE_CHECKING:
    from tests.support.fake_ecs import FakeEcs

_LEAST_RELEASE_S = 1740.0  # half an hour, rounded down to a minute
_MOST_USER_DATA = 32 * 1024


@dataclass(frozen=True)
class Action:
    """`work` is what it does; `parameters` are the first parts of their names."""

    product: str
    work: Callable[["FakeEcs", Mapping[str, str]], Json]
    parameters: frozenset[str]


def _run_instances(ecs: "FakeEcs", given: Mapping[str, str]) -> Json:
    with ecs.lock:
        token = given.get("ClientToken", "")
        known = ecs.tokens.get(token) if token else None
        if known is not None:
            (first, ids) = known
            if dict(given) != first:
                raise RefusalError("IdempotentParameterMismatch")
            return {"InstanceIdSets": {"InstanceIdSet": ids}}
        zone = _check_order(ecs, given)
        if is_true(given, "DryRun"):
            raise RefusalError(
                "DryRunOperation",
                "Request validation has been passed with DryRun flag set.",
            )
        machine = _new_machine(ecs, given, zone)
        ecs.machines[machine.id] = machine
        if token:
            ecs.tokens[token] = dict(given), [machine.id]
        key = (zone, machine.type, machine.spot)
        if key in ecs.stock:
            ecs.stock[key] -= 1
    if ecs.on_launch is not None:
        ecs.on_launch(machine, machine.user_data)
    return {"InstanceIdSets": {"InstanceIdSet": [machine.id]}}


def _check_order(ecs: "FakeEcs", given: Mapping[str, str]) -> str:
    """The zone of an order that can be carried out; RefusalError."""
    region = given["RegionId"]
    if region not in ZONES:
        raise RefusalError("InvalidRegionId.NotFound", status=404)
    if given.get("SecurityGroupId") != ecs.security_groups[region]:
        raise RefusalError(
            "InvalidSecurityGroupId.NotFound",
            "The specified SecurityGroupId does not exist.",
            404,
        )
    zone = ecs.vswitches.get(given.get("VSwitchId", ""), "")
    if zone not in ZONES[region]:
        raise RefusalError("InvalidVSwitchId.NotFound", status=404)
    has_id = "ImageId" in given
    if has_id == ("ImageFamily" in given) or given.get("ImageId") == "m-gone":
        raise RefusalError("InvalidImageId.NotFound", status=404)
    name = given.get("InstanceType", "")
    if name not in TYPES:
        raise RefusalError("InvalidInstanceType.ValueNotSupported")
    if len(given.get("UserData", "")) > _MOST_USER_DATA:
        raise RefusalError("InvalidUserData.SizeExceeded", status=403)
    if len(given.get("ClientToken", "")) > 64:
        raise RefusalError("InvalidParameter.ClientToken")
    _check_market(ecs, given, zone, name)
    _release_time(given)
    return zone


def _check_market(
    ecs: "FakeEcs", given: Mapping[str, str], zone: str, name: str
) -> None:
    spot = given.get("SpotStrategy", "NoSpot") != "NoSpot"
    if ecs.stock.get((zone, name, spot), 1) < 1:
        raise RefusalError(
            "OperationDenied.NoStock",
            "Sales of this resource are temporarily suspended in the specified zone.",
            403,
        )
    used = sum(TYPES[one.type][3] for one in ecs.machines.values() if one.spot == spot)
    if used + TYPES[name][3] > ecs.quota:
        raise RefusalError(
            "QuotaExceed.ElasticQuota",
            "The number of the specified ECS instances has exceeded the quota.",
            403,
        )
    limit = float(given.get("SpotPriceLimit", "inf"))
    if limit < ecs.spot_prices.get((zone, name), 0.0):
        raise RefusalError(
            "InvalidSpotPriceLimit.LowerThanPublicPrice",
            'The specified parameter "SpotPriceLimit" can\'t be lower than current'
            " public price.",
        )


def _release_time(given: Mapping[str, str]) -> float | None:
    """When Alibaba deletes the machine; RefusalError for a time that is too early."""
    text = given.get("AutoReleaseTime")
    if text is None:
        return None
    try:
        at = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise RefusalError("InvalidAutoReleaseTime.Malformed") from None
    if at.timestamp() - time.time() < _LEAST_RELEASE_S:
        raise RefusalError("InvalidAutoReleaseTime.TooEarly")
    return at.timestamp()


def _new_machine(ecs: "FakeEcs", given: Mapping[str, str], zone: str) -> Machine:
    return Machine(
        new_id(),
        given["RegionId"],
        zone,
        given["InstanceType"],
        given.get("SpotStrategy", "NoSpot") != "NoSpot",
        tags_in(given),
        dict(given),
        plain(given.get("UserData", "")),
        time.time(),
        released_at=_release_time(given),
    )


def _describe_instances(ecs: "FakeEcs", given: Mapping[str, str]) -> Json:
    wanted = tags_in(given).items()
    ids = ids_in(given)
    with ecs.lock:
        found = [
            machine
            for machine in ecs.machines.values()
            if machine.region == given["RegionId"]
            and wanted <= machine.tags.items()
            and (not ids or machine.id in ids)
        ]
        first = int(given.get("NextToken") or 0)
        count = min(max(int(given.get("MaxResults") or 10), 10), 100)
        rows = [_row(machine) for machine in found[first : first + count]]
    end = first + count
    token = str(end) if end < len(found) else ""
    return {
        "TotalCount": len(found),
        "NextToken": token,
        "Instances": {"Instance": rows},
    }


def _row(machine: Machine) -> Json:
    status = machine.status
    if machine.next_statuses:
        machine.status = machine.next_statuses.pop(0)
    locks = [{"LockReason": machine.locked_for}] if machine.locked_for else []
    tags = [{"TagKey": key, "TagValue": value} for key, value in machine.tags.items()]
    released_at = machine.released_at
    return {
        "InstanceId": machine.id,
        "RegionId": machine.region,
        "ZoneId": machine.zone,
        "InstanceType": machine.type,
        "Status": status,
        "SpotStrategy": machine.order.get("SpotStrategy", "NoSpot"),
        "CreationTime": _minute(machine.created_at),
        "AutoReleaseTime": _minute(released_at) if released_at else "",
        "OperationLocks": {"LockReason": locks},
        "Tags": {"Tag": tags},
    }


def _minute(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _delete_instances(ecs: "FakeEcs", given: Mapping[str, str]) -> Json:
    ids = listed(given, "InstanceId")
    if not 1 <= len(ids) <= 100:
        raise RefusalError("InvalidParameter.InstanceId")
    with ecs.lock:
        machines = [_machine(ecs, one) for one in ids]
        if any(machine.status == "Pending" for machine in machines):
            raise RefusalError(
                "IncorrectInstanceStatus.Initializing",
                "The specified instance status does not support this operation.",
                403,
            )
        if not is_true(given, "Force"):
            raise RefusalError("IncorrectInstanceStatus", status=403)
        if is_true(given, "DryRun"):
            raise RefusalError("DryRunOperation")
        for machine in machines:
            ecs.end(machine)
    return {}


def _machine(ecs: "FakeEcs", instance_id: str) -> Machine:
    found = ecs.machines.get(instance_id)
    if found is None:
        raise RefusalError(
            "InvalidInstanceId.NotFound",
            "The specified InstanceId does not exist.",
            404,
        )
    return found


def _modify_release_time(ecs: "FakeEcs", given: Mapping[str, str]) -> Json:
    with ecs.lock:
        machine = _machine(ecs, given.get("InstanceId", ""))
        machine.released_at = _release_time(given)
    return {}


def _describe_types(_ecs: "FakeEcs", given: Mapping[str, str]) -> Json:
    names = listed(given, "InstanceTypes")
    if len(names) > 10:
        raise RefusalError("InvalidParameter.InstanceTypes")
    rows: list[Json] = []
    for name in names:
        if name in TYPES:
            (spec, gpus, gpu_memory, cpus, memory) = TYPES[name]
            row = {
                "InstanceTypeId": name,
                "GPUSpec": spec,
                "GPUAmount": gpus,
                "GPUMemorySize": gpu_memory,
                "CpuCoreCount": cpus,
                "MemorySize": memory,
            }
            rows.append(row)
    return {"InstanceTypes": {"InstanceType": rows}, "NextToken": ""}


def _describe_available(ecs: "FakeEcs", given: Mapping[str, str]) -> Json:
    spot = given.get("SpotStrategy", "NoSpot") != "NoSpot"
    zones: list[Json] = []
    for zone in ZONES[given["RegionId"]]:
        rows: list[Json] = []
        for name in TYPES:
            is_left = ecs.stock.get((zone, name, spot), 1) > 0
            row = {
                "Value": name,
                "Status": "Available" if is_left else "SoldOut",
                "StatusCategory": "WithStock" if is_left else "WithoutStock",
            }
            if (zone, name) not in ecs.not_sold:
                rows.append(row)
        resource = {
            "Type": "InstanceType",
            "SupportedResources": {"SupportedResource": rows},
        }
        zones.append(
            {
                "ZoneId": zone,
                "RegionId": given["RegionId"],
                "Status": "Available",
                "AvailableResources": {"AvailableResource": [resource]},
            }
        )
    return {"AvailableZones": {"AvailableZone": zones}}


def _describe_price(ecs: "FakeEcs", given: Mapping[str, str]) -> Json:
    price = ecs.prices.get(given.get("InstanceType", ""))
    if price is None:
        raise RefusalError("PriceNotFound")
    details = [
        {"Resource": "instanceType", "TradePrice": price},
        {"Resource": "systemDisk", "TradePrice": DISK_PRICE},
    ]
    found = {
        "Currency": "CNY",
        "OriginalPrice": price * 2,
        "TradePrice": round(price + DISK_PRICE, 4),
        "DetailInfos": {"DetailInfo": details},
    }
    return {"PriceInfo": {"Price": found}}


def _describe_spot_prices(ecs: "FakeEcs", given: Mapping[str, str]) -> Json:
    rows: list[Json] = []
    for (zone, name), price in ecs.spot_prices.items():
        if name != given.get("InstanceType") or zone not in ZONES[given["RegionId"]]:
            continue
        row = {"ZoneId": zone, "InstanceType": name, "NetworkType": "vpc"}
        rows.append({**row, "SpotPrice": price, "Timestamp": "2026-11-29T10:00:00Z"})
        # An older one, which is of no more use.
        rows.append({**row, "SpotPrice": 99.0, "Timestamp": "2026-11-29T09:00:00Z"})
    return {"Currency": "CNY", "SpotPrices": {"SpotPriceType": rows}}


def _describe_quotas(ecs: "FakeEcs", given: Mapping[str, str]) -> Json:
    rows: list[Json] = []
    for name in listed(given, "AttributeName"):
        value = ecs.quota
        if name.startswith("used-"):
            spot = "spot" in name
            value = sum(
                TYPES[one.type][3] for one in ecs.machines.values() if one.spot == spot
            )
        values = {"ValueItem": [{"Value": str(value)}]}
        rows.append({"AttributeName": name, "AttributeValues": values})
    return {"AccountAttributeItems": {"AccountAttributeItem": rows}}


def _describe_vswitches(ecs: "FakeEcs", given: Mapping[str, str]) -> Json:
    wanted = given.get("VSwitchId", "")
    rows: list[Json] = []
    zone = ecs.vswitches.get(wanted, "")
    if zone.startswith(given["RegionId"]):
        rows.append({"VSwitchId": wanted, "ZoneId": zone, "Status": "Available"})
    return {"TotalCount": len(rows), "VSwitches": {"VSwitch": rows}}


def _ecs(
    work: Callable[["FakeEcs", Mapping[str, str]], Json], *parameters: str
) -> Action:
    return Action("ecs", work, frozenset({"RegionId", *parameters}))


_ECS = "2014-05-26"
SERVED: Mapping[tuple[str, str], Action] = {
    ("RunInstances", _ECS): _ecs(
        _run_instances,
        "Amount",
        "AutoReleaseTime",
        "ClientToken",
        "DeletionProtection",
        "DryRun",
        "ImageFamily",
        "ImageId",
        "InstanceChargeType",
        "InstanceName",
        "InstanceType",
        "InternetChargeType",
        "InternetMaxBandwidthOut",
        "SecurityGroupId",
        "SpotDuration",
        "SpotPriceLimit",
        "SpotStrategy",
        "SystemDisk",
        "Tag",
        "UserData",
        "VSwitchId",
    ),
    ("DescribeInstances", _ECS): _ecs(
        _describe_instances, "InstanceIds", "MaxResults", "NextToken", "Tag"
    ),
    ("DeleteInstances", _ECS): _ecs(
        _delete_instances, "DryRun", "Force", "InstanceId", "TerminateSubscription"
    ),
    ("ModifyInstanceAutoReleaseTime", _ECS): _ecs(
        _modify_release_time, "AutoReleaseTime", "InstanceId"
    ),
    ("DescribeInstanceTypes", _ECS): _ecs(_describe_types, "InstanceTypes"),
    ("DescribeAvailableResource", _ECS): _ecs(
        _describe_available,
        "DestinationResource",
        "InstanceChargeType",
        "InstanceType",
        "IoOptimized",
        "SpotStrategy",
    ),
    ("DescribePrice", _ECS): _ecs(
        _describe_price,
        "InstanceNetworkType",
        "InstanceType",
        "PriceUnit",
        "ResourceType",
        "SystemDisk",
    ),
    ("DescribeSpotPriceHistory", _ECS): _ecs(
        _describe_spot_prices, "InstanceType", "IoOptimized", "NetworkType"
    ),
    ("DescribeAccountAttributes", _ECS): _ecs(_describe_quotas, "AttributeName"),
    ("DescribeInstanceBill", "2017-12-14"): Action("bssapi", describe_bill, OF_BILLS),
    ("DescribeVSwitches", "2016-04-28"): Action(
        "vpc", _describe_vswitches, frozenset({"RegionId", "VSwitchId"})
    ),
}
