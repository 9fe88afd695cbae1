"""Which permissions the account lacks, found without renting anything.

Calls that only read are made. Those that change something are made as a dry run, for
which EC2 says whether it would have been allowed.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuyard.providers.aws.bills import bill_region, bill_request
from gpuyard.providers.aws.calls import AwsCalls
from gpuyard.providers.aws.config import AwsConfig
from gpuyard.providers.aws.errors import (
    NOT_CONNECTED,
    THROTTLED,
    TIMEOUT,
    AwsError,
)
from gpuyard.providers.aws.launching import MachineImage, run_request
from gpuyard.providers.aws.places import NEWEST_IMAGE, LaunchPlaces
from gpuyard.providers.instances.api import (
    CREDENTIALS,
    DENIED,
    TAG_INSTALLATION,
    InstanceOrder,
    MissingRight,
)

NEEDED_FOR: Mapping[str, str] = {
    "ec2:RunInstances": "starting machines",
    "ec2:CreateTags": "marking machines and disks as gpuyard's",
    "ec2:TerminateInstances": "ending machines",
    "ec2:DescribeInstances": "seeing the state of machines, and finding left ones",
    "ec2:DescribeInstanceTypes": "knowing which GPUs a type has",
    "ec2:DescribeInstanceTypeOfferings": "knowing in which zones a type is offered",
    "ec2:DescribeSpotPriceHistory": "spot prices",
    "ec2:DescribeImages": "the size and the root disk of the image",
    "ec2:DescribeSubnets": "knowing the zones of the configured subnets",
    "ssm:GetParameter": "finding the newest image",
    "pricing:GetProducts": "on-demand prices of today",
    "servicequotas:GetServiceQuota": "knowing which machines the account may run",
    "ce:GetCostAndUsage": "comparing AWS's bill with what gpuyard has counted",
}
"""Every action that gpuyard calls, and for what."""
_END = "ec2:TerminateInstances"
# EC2 refuses the dry run then for want of the tag.
_NOBODY_TO_ASK_ABOUT = (
    "a policy that allows it for machines of gpuyard's only looks like this while there"
    " is none"
)
_NO_MACHINE = "i-0123456789abcdef0"
_NO_IMAGE = MachineImage("ami-0123456789abcdef0", "/dev/sda1", 0)
_NO_SUBNETS: Mapping[str, str] = {}
_ANY_TYPE = "g4dn.xlarge"
_ACTION = re.compile(r"perform: ([\w-]+:\w+)")
_UNANSWERED = (CREDENTIALS, NOT_CONNECTED, TIMEOUT, THROTTLED)


class RightsCheck:
    """Asks AWS for each of the permissions."""

    def __init__(
        self, settings: AwsConfig, calls: AwsCalls, places: LaunchPlaces
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._places = places
        self._has_machine = False

    async def missing(self) -> Sequence[MissingRight]:
        """Those that are missing in any configured region. ProviderError if AWS does
        not answer, or if the credentials are wrong.
        """
        regions = list(self._settings.regions)
        found = await asyncio.gather(*(self._missing_in(one) for one in regions))
        by_action: dict[str, list[str]] = {}
        for region, actions in zip(regions, found, strict=True):
            for action in actions:
                by_action.setdefault(action, []).append(region)
        rights: list[MissingRight] = []
        for action, where in by_action.items():
            needed_for = NEEDED_FOR.get(action, "starting machines")
            if action == _END and not self._has_machine:
                needed_for = f"{needed_for}; {_NOBODY_TO_ASK_ABOUT}"
            if len(where) < len(regions):
                needed_for = f"{needed_for} (in {', '.join(where)})"
            rights.append(MissingRight(action, needed_for))
        return rights

    async def _missing_in(self, region: str) -> list[str]:
        """Actions, each once."""
        machine = await self._some_machine(region)
        self._has_machine = self._has_machine or bool(machine)
        found = await asyncio.gather(
            self._try_run(region),
            self._try(
                region,
                _END,
                InstanceIds=[machine or _NO_MACHINE],
                DryRun=True,
            ),
            *(
                self._try(region, action, **parameters)
                for action, parameters in self._questions(region).items()
            ),
        )
        return list(dict.fromkeys(action for action in found if action))

    def _questions(self, region: str) -> Mapping[str, dict[str, Any]]:
        """What to ask, by action."""
        questions: dict[str, dict[str, Any]] = {
            "ec2:DescribeInstances": {"MaxResults": 5},
            "ec2:DescribeInstanceTypes": {"InstanceTypes": [_ANY_TYPE]},
            "ec2:DescribeInstanceTypeOfferings": {
                "Filters": [{"Name": "instance-type", "Values": [_ANY_TYPE]}]
            },
            "ec2:DescribeSpotPriceHistory": {
                "InstanceTypes": [_ANY_TYPE],
                "MaxResults": 5,
                "StartTime": datetime.now(UTC),
            },
            "ec2:DescribeImages": {"Owners": ["self"]},
            "pricing:GetProducts": {"ServiceCode": "AmazonEC2", "MaxResults": 1},
            "servicequotas:GetServiceQuota": {
                "ServiceCode": "ec2",
                "QuotaCode": "L-DB2E81BA",
            },
        }
        if self._settings.compare_bills:
            # AWS charges for the answer, so it is asked for only where it is used.
            yesterday = datetime.now(UTC).date() - timedelta(days=1)
            questions["ce:GetCostAndUsage"] = bill_request(yesterday, "check")
        subnets = self._settings.regions[region].subnets
        if subnets:
            questions["ec2:DescribeSubnets"] = {"SubnetIds": list(subnets)}
        image = self._settings.image_of(region) or NEWEST_IMAGE
        if image.startswith("/"):
            questions["ssm:GetParameter"] = {"Name": image}
        return questions

    async def _some_machine(self, region: str) -> str:
        """A machine of gpuyard's: a policy may allow to end only those."""
        rows = self._calls.pages(
            region,
            "DescribeInstances",
            "Reservations",
            Filters=[{"Name": "tag-key", "Values": [TAG_INSTALLATION]}],
        )
        try:
            async for row in rows:
                return str(row["Instances"][0]["InstanceId"])
        except AwsError as error:
            if error.error_code != DENIED:
                raise
        return ""

    async def _try_run(self, region: str) -> str:
        try:
            image = await self._places.image(region)
            subnets = await self._places.subnets(region)
        except AwsError as error:
            if error.error_code != DENIED:
                raise
            image = _NO_IMAGE
            subnets = _NO_SUBNETS
        zone = next(iter(subnets), f"{region}a")
        order = InstanceOrder(
            owner="check",
            installation="check",
            name="gpuyard-check",
            type=next((one for one in self._settings.types if "." in one), _ANY_TYPE),
            region=region,
            zone=zone,
            spot=False,
            user_data="",
            disk_gb=self._settings.disk_gb,
        )
        request = run_request(order, self._settings, image, subnets.get(zone, ""))
        return await self._try(region, "ec2:RunInstances", **request, DryRun=True)

    async def _try(self, region: str, action: str, **parameters: Any) -> str:
        """The action that is missing; empty if none is."""
        (prefix, _, operation) = action.partition(":")
        service = "service-quotas" if prefix == "servicequotas" else prefix
        if service in ("pricing", "ce"):
            region = bill_region(region)
        try:
            await self._calls.call(service, region, operation, **parameters)
        except AwsError as error:
            if error.error_code == DENIED:
                named = _ACTION.search(error.why)
                return named[1] if named else action
            # EC2 checks permissions first, so another answer means that it is there;
            # what else is wrong is told where it matters.
            if error.error_code in _UNANSWERED:
                raise
        return ""
