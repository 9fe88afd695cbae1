"""Orders and machines in Alibaba's form; pure functions."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import ROUND_DOWN, Decimal
from typing import Any

from gpuyard.providers.alibaba.config import AlibabaConfig
from gpuyard.providers.instances.api import (
    TAG_INSTALLATION,
    TAG_OWNER,
    Instance,
    InstanceOrder,
    InstanceState,
)
from gpuyard.providers.kubernetes.fields import Json, objects_at, text_at

_MAX_TOKEN = 64
_MAX_NAME = 128
# Alibaba takes three decimals.
_LIMIT_UNIT = Decimal("0.001")
# Alibaba's words. A machine that stops may still report how its job has ended. One that
# has stopped costs as before.
_STATES = {
    "Pending": InstanceState.PENDING,
    "Starting": InstanceState.PENDING,
    "Running": InstanceState.RUNNING,
    "Stopping": InstanceState.RUNNING,
    "Stopped": InstanceState.ENDING,
}
STOPPED = "Stopped"
_TAKEN_BACK = "Recycling"


def order_parameters(
    order: InstanceOrder, settings: AlibabaConfig, vswitch: str, now: float
) -> Json:
    """The parameters of RunInstances; `now` is in UTC seconds."""
    tags = {**order.tags, TAG_INSTALLATION: order.installation, TAG_OWNER: order.owner}
    image = order.image or settings.image
    found: Json = {
        "Amount": 1,
        "ClientToken": client_token(order.owner),
        "InstanceName": order.name[:_MAX_NAME],
        "InstanceType": order.type,
        "InstanceChargeType": "PostPaid",
        "SecurityGroupId": settings.security_group(order.region),
        "VSwitchId": vswitch,
        "SystemDisk": {"Category": settings.disk_category, "Size": order.disk_gb},
        "InternetChargeType": "PayByTraffic",
        "InternetMaxBandwidthOut": settings.internet_mbps,
        "UserData": base64.b64encode(order.user_data.encode()).decode(),
        "DeletionProtection": False,
        "Tag": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    found["ImageId" if image else "ImageFamily"] = image or settings.image_family
    found.update(_spot(order))
    if settings.release_after_s:
        found["AutoReleaseTime"] = time_text(now + settings.release_after_s)
    return found


def _spot(order: InstanceOrder) -> Json:
    if not order.spot:
        return {"SpotStrategy": "NoSpot"}
    found: Json = {"SpotStrategy": "SpotAsPriceGo", "SpotDuration": 0}
    if order.max_price is not None:
        found["SpotStrategy"] = "SpotWithPriceLimit"
        limit = order.max_price.quantize(_LIMIT_UNIT, ROUND_DOWN)
        found["SpotPriceLimit"] = f"{limit.normalize():f}"
    return found


def client_token(owner: str) -> str:
    """The owner itself, or its hash if it is too long for a token."""
    if len(owner) <= _MAX_TOKEN and owner.isascii():
        return owner
    return hashlib.sha256(owner.encode()).hexdigest()


def deletion(ids: Sequence[str]) -> Json:
    """The parameters of DeleteInstances."""
    return {"InstanceId": list(ids), "Force": True, "TerminateSubscription": False}


def tag_filter(tags: Mapping[str, str]) -> Json:
    """The parameters that select machines by tags."""
    return {"Tag": [{"Key": key, "Value": value} for key, value in tags.items()]}


def instance_of(row: Mapping[str, Any]) -> Instance:
    """A row of DescribeInstances."""
    row = dict(row)
    rows = objects_at(row, "Tags", "Tag")
    tags = {text_at(tag, "TagKey"): text_at(tag, "TagValue") for tag in rows}
    locks = [
        text_at(lock, "LockReason")
        for lock in objects_at(row, "OperationLocks", "LockReason")
    ]
    status = text_at(row, "Status")
    return Instance(
        text_at(row, "InstanceId"),
        text_at(row, "RegionId"),
        text_at(row, "ZoneId"),
        text_at(row, "InstanceType"),
        text_at(row, "SpotStrategy") not in ("", "NoSpot"),
        _STATES.get(status, InstanceState.PENDING),
        tags.get(TAG_OWNER, ""),
        launched_at=seconds(text_at(row, "CreationTime")),
        why=", ".join([status, *locks]) if locks or status == STOPPED else "",
        interrupted=_TAKEN_BACK in locks,
    )


def time_text(at: float) -> str:
    """A time (UTC seconds) as Alibaba writes it, to the minute."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:00Z")


def seconds(text: str) -> float | None:
    """The reverse; None for what is no time. Alibaba may leave out the seconds."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
