"""Which rights the account lacks, found by requests that change nothing."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuyard.providers.alibaba.bills import BILLING_ZONE, bill_request
from gpuyard.providers.alibaba.client import BILLING, ECS, AlibabaClient
from gpuyard.providers.alibaba.config import AlibabaConfig
from gpuyard.providers.alibaba.errors import THROTTLED, RefusedCallError
from gpuyard.providers.alibaba.machines import deletion, order_parameters
from gpuyard.providers.instances.api import (
    CREDENTIALS,
    DENIED,
    InstanceOrder,
    MissingRight,
)
from gpuyard.providers.kubernetes.fields import Json

OFFER = "to know what can be rented"
_RENT = "to rent machines"
_SEE = "to see its machines"
_END = "to end machines"
_BILL = "to compare bills"
_SWITCH = "to have machines deleted when gpuyard is gone"
# A well-formed id of no machine: the right to touch it is checked before it is sought.
_NO_MACHINE = "i-00000000000000000000"


@dataclass(frozen=True, slots=True)
class _Trial:
    """A request that changes nothing, and shows whether it is allowed."""

    action: str
    needed_for: str
    parameters: Mapping[str, Any]
    product: tuple[str, str] = ECS


async def rights_missing(
    client: AlibabaClient, settings: AlibabaConfig
) -> list[MissingRight]:
    """The rights that the account lacks in the main region. ProviderError when that
    cannot be known.
    """
    missing: list[MissingRight] = []
    for trial in _trials(settings):
        try:
            await client.call(
                settings.region_id,
                trial.action,
                trial.parameters,
                product=trial.product,
            )
        except RefusedCallError as error:
            if error.error_code == DENIED:
                missing.append(MissingRight(error.action, trial.needed_for))
            elif error.error_code in (CREDENTIALS, THROTTLED):
                raise
            # Whatever else is wrong was found after the right.
    return missing


def _trials(settings: AlibabaConfig) -> list[_Trial]:
    name = settings.type_names[0]
    kind = {"InstanceType": name}
    order = _order(settings, name)
    release = {"InstanceId": _NO_MACHINE}
    found = [
        _Trial("RunInstances", _RENT, {**order, "DryRun": True}),
        _Trial("DescribeInstances", _SEE, {"MaxResults": 10}),
        _Trial("DeleteInstances", _END, {**deletion([_NO_MACHINE]), "DryRun": True}),
        _Trial("DescribeInstanceTypes", OFFER, {"InstanceTypes": [name]}),
        _Trial(
            "DescribeAvailableResource",
            OFFER,
            {"DestinationResource": "InstanceType", **kind},
        ),
        _Trial("DescribePrice", "to know prices", {"ResourceType": "instance", **kind}),
        _Trial(
            "DescribeSpotPriceHistory", "to know prices", {"NetworkType": "vpc", **kind}
        ),
        _Trial(
            "DescribeAccountAttributes",
            "to know quotas",
            {"AttributeName": ["max-postpaid-instance-vcpu-count"]},
        ),
    ]
    if "AutoReleaseTime" in order:
        release["AutoReleaseTime"] = order["AutoReleaseTime"]
        found.append(_Trial("ModifyInstanceAutoReleaseTime", _SWITCH, release))
    if settings.compare_bills:
        yesterday = datetime.now(BILLING_ZONE).date() - timedelta(days=1)
        asked = bill_request(yesterday)
        found.append(_Trial("DescribeInstanceBill", _BILL, asked, BILLING))
    return found


def _order(settings: AlibabaConfig, name: str) -> Json:
    """What starting a machine would ask for."""
    vswitch = settings.vswitch_id or next(iter(settings.vswitches.values()))
    order = InstanceOrder(
        owner="trial",
        installation="trial",
        name="trial",
        type=name,
        region=settings.region_id,
        zone="",
        spot=False,
        user_data="",
        disk_gb=settings.disk_gb,
    )
    found = order_parameters(order, settings, vswitch, time.time())
    # The token of an order that is carried out must not have been used in a trial.
    del found["ClientToken"]
    return found
