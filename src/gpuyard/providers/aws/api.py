"""AWS EC2 as gpuyard needs it (`InstanceApi`)."""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from datetime import date
from typing import Any

from gpuyard.domain.bills import CloudBill
from gpuyard.providers.aws.bills import read_bill
from gpuyard.providers.aws.calls import AwsCalls
from gpuyard.providers.aws.config import AwsConfig
from gpuyard.providers.aws.errors import AwsError
from gpuyard.providers.aws.instances import instance_of
from gpuyard.providers.aws.launching import run_request
from gpuyard.providers.aws.markets import RegionMarkets
from gpuyard.providers.aws.places import LaunchPlaces
from gpuyard.providers.aws.prices import (
    catalogue,
    price_file,
    read_price_list,
    write_rows,
)
from gpuyard.providers.aws.rights import RightsCheck
from gpuyard.providers.instances.api import (
    TAG_INSTALLATION,
    TAG_OWNER,
    Instance,
    InstanceOrder,
    InstanceRef,
    ListPrice,
    Market,
    MissingRight,
)

_PAGE = 1000
_END_AT_ONCE = 500
_MISMATCH = "IdempotentParameterMismatch"
_UNKNOWN = "InvalidInstanceID"


class AwsApi:
    """The machines of one account, in the configured regions."""

    def __init__(self, settings: AwsConfig) -> None:
        self._settings = settings
        self._calls = AwsCalls(settings)
        self._places = LaunchPlaces(settings, self._calls)
        self._markets = [
            RegionMarkets(region, settings, self._calls, self._places)
            for region in settings.regions
        ]

    async def close(self) -> None:
        """See InstanceApi."""
        self._calls.close()

    # --- what there is to rent ---

    async def markets(self) -> Sequence[Market]:
        """See InstanceApi."""
        found = await asyncio.gather(*(one.markets() for one in self._markets))
        return [market for markets in found for market in markets]

    def list_prices(self) -> Sequence[ListPrice]:
        """The on-demand prices in the configured regions that are used while AWS's
        price list does not answer.
        """
        rows = catalogue(self._settings.home).rows
        return [row for row in rows if row.region in self._settings.regions]

    async def refresh_prices(self) -> Sequence[ListPrice]:
        """Read AWS's price list into the file of the home; what it had of other regions
        stays.
        """
        types = [name for name in self._settings.types if "." in name]
        book = catalogue(self._settings.home)
        for region in self._settings.regions:
            book.update(await read_price_list(self._calls, region, types))
        path = price_file(self._settings.home)
        await asyncio.to_thread(write_rows, path, book.rows)
        return self.list_prices()

    async def bill(self, day: date, installation: str) -> CloudBill:
        """What AWS bills for the machines of an installation. ProviderError."""
        region = next(iter(self._settings.regions))
        return await read_bill(self._calls, region, day, installation)

    # --- machines ---

    async def launch(self, order: InstanceOrder) -> Instance:
        """See InstanceApi."""
        region = order.region
        # The configured image stands in the order; a region may have its own.
        image_name = "" if order.image == self._settings.image else order.image
        (image, subnet) = await asyncio.gather(
            self._places.image(region, image_name),
            self._places.subnet(region, order.zone),
        )
        request = run_request(order, self._settings, image, subnet)
        try:
            answer = await self._calls.call("ec2", region, "RunInstances", **request)
        except AwsError as error:
            if error.aws_code != _MISMATCH:
                raise
            # The same order was sent before, with an older image for example.
            found = await self.find(order.owner, order.installation)
            if found is None:
                raise
            return found
        return instance_of(answer["Instances"][0], region)

    async def find(self, owner: str, installation: str) -> Instance | None:
        """See InstanceApi."""
        tags = {TAG_OWNER: owner, TAG_INSTALLATION: installation}
        found = await self._tagged(tags)
        return min(found, key=lambda one: not one.state.is_live, default=None)

    async def instances(self, installation: str) -> Sequence[Instance]:
        """See InstanceApi."""
        return await self._tagged({TAG_INSTALLATION: installation})

    async def _tagged(self, tags: dict[str, str]) -> list[Instance]:
        regions = self._settings.regions
        found = await asyncio.gather(*(self._tagged_in(one, tags) for one in regions))
        return [instance for instances in found for instance in instances]

    async def _tagged_in(self, region: str, tags: dict[str, str]) -> list[Instance]:
        reservations: AsyncIterator[dict[str, Any]] = self._calls.pages(
            region,
            "DescribeInstances",
            "Reservations",
            Filters=[
                {"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()
            ],
            MaxResults=_PAGE,
        )
        return [
            instance_of(row, region)
            async for reservation in reservations
            for row in reservation["Instances"]
        ]

    async def end(self, refs: Sequence[InstanceRef]) -> None:
        """See InstanceApi."""
        by_region: defaultdict[str, list[str]] = defaultdict(list)
        for ref in refs:
            by_region[ref.region].append(ref.id)
        await asyncio.gather(
            *(
                self._end_in(region, ids[first : first + _END_AT_ONCE])
                for region, ids in by_region.items()
                for first in range(0, len(ids), _END_AT_ONCE)
            )
        )

    async def _end_in(self, region: str, ids: Sequence[str]) -> None:
        left = list(dict.fromkeys(ids))
        while left:
            try:
                await self._calls.call(
                    "ec2", region, "TerminateInstances", InstanceIds=left
                )
            except AwsError as error:
                if not error.aws_code.startswith(_UNKNOWN):
                    raise
                # EC2 ends none if it has forgotten one, and names those.
                gone = set(re.findall(r"i-[0-9a-f]+", error.why)) & set(left)
                if not gone:
                    raise
                left = [one for one in left if one not in gone]
            else:
                return

    # --- rights ---

    async def missing_rights(self) -> Sequence[MissingRight]:
        """See InstanceApi."""
        return await RightsCheck(self._settings, self._calls, self._places).missing()
