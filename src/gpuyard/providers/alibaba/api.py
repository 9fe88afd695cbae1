"""Machines of Alibaba ECS: how they are started, listed and ended."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

from gpuyard.domain.bills import CloudBill
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.alibaba.bills import read_bill
from gpuyard.providers.alibaba.client import VPC, AlibabaClient
from gpuyard.providers.alibaba.config import AlibabaConfig
from gpuyard.providers.alibaba.errors import (
    NOT_READY,
    NOT_THERE,
    OTHER_ORDER,
    RefusedCallError,
)
from gpuyard.providers.alibaba.machines import (
    deletion,
    instance_of,
    order_parameters,
    tag_filter,
)
from gpuyard.providers.alibaba.rights import OFFER, rights_missing
from gpuyard.providers.alibaba.survey import MarketSurvey
from gpuyard.providers.alibaba.upkeep import Upkeep
from gpuyard.providers.instances.api import (
    DENIED,
    SETTING,
    TAG_INSTALLATION,
    TAG_OWNER,
    Instance,
    InstanceApi,
    InstanceOrder,
    InstanceRef,
    InstanceState,
    ListPrice,
    Market,
    MissingRight,
)
from gpuyard.providers.instances.former_machines import FormerMachines
from gpuyard.providers.kubernetes.fields import Json, objects_at, text_at, value_at
from gpuyard.providers.shared_call import SharedCall

_PAGE = 100
_BATCH = 100
# A machine is listed a moment after Alibaba has accepted the order.
_LISTED_AFTER_S = (0.0, 0.5, 1.0, 2.0)


class AlibabaApi(InstanceApi):
    """ECS, with the account of the key."""

    def __init__(self, settings: AlibabaConfig) -> None:
        self._settings = settings
        self._client = AlibabaClient(settings)
        self._survey = MarketSurvey(self._client, settings)
        self._upkeep = Upkeep(self._client, settings, self.end)
        # Alibaba forgets a machine at once.
        self._former = FormerMachines()
        # One listing after the other: each tells by the last one what has gone.
        self._listings: dict[str, SharedCall[Sequence[Instance]]] = {}
        self._found_vswitches: Mapping[str, str] | None = None

    async def close(self) -> None:
        """See InstanceApi."""
        await self._upkeep.close()
        self._client.close()

    # --- what there is to rent ---

    async def markets(self) -> Sequence[Market]:
        """See InstanceApi."""
        return await self._survey.markets(list(await self._vswitches()))

    async def list_prices(self, *, refresh: bool) -> Sequence[ListPrice]:
        """What each configured type costs on demand, in each region. ProviderError."""
        regions = self._settings.regions
        return await self._survey.list_prices(regions, refresh=refresh)

    async def bill(self, day: date, installation: str) -> CloudBill:
        """What Alibaba bills for the machines of an installation. ProviderError."""
        region = self._settings.region_id
        return await read_bill(self._client, region, day, installation)

    async def _vswitches(self) -> Mapping[str, str]:
        """The vSwitch of each zone. Alibaba is asked where `vswitch_id` is."""
        if self._found_vswitches is not None:
            return self._found_vswitches
        settings = self._settings
        found = dict(settings.vswitches)
        main = settings.vswitch_id
        if main and main not in found.values():
            found = {await self._zone_of(main): main, **found}
        self._found_vswitches = found
        return found

    async def _zone_of(self, vswitch: str) -> str:
        answer = await self._client.call(
            self._settings.region_id,
            "DescribeVSwitches",
            {"VSwitchId": vswitch},
            product=VPC,
        )
        rows = objects_at(answer, "VSwitches", "VSwitch")
        zones = [text_at(row, "ZoneId") for row in rows]
        if not zones:
            raise self._wrong_setting(
                f"{self._settings.region_id} has no vSwitch {vswitch}",
                "providers.alibaba.vswitch_id",
            )
        return zones[0]

    def _wrong_setting(self, fault: str, setting: str) -> ProviderError:
        message = f"Alibaba Cloud: {fault}. See {setting}."
        return ProviderError(message, self._settings.provider, SETTING)

    # --- starting ---

    async def launch(self, order: InstanceOrder) -> Instance:
        """See InstanceApi. Alibaba itself keeps the client token."""
        parameters = await self._order_parameters(order)
        try:
            answer = await self._client.call(order.region, "RunInstances", parameters)
        except RefusedCallError as error:
            # A repeated order has a later time of release.
            if not error.cloud_code.startswith(OTHER_ORDER):
                raise
            found = await self._accepted(order)
            if found is None:
                raise
            return found
        ids = value_at(answer, "InstanceIdSets", "InstanceIdSet") or [""]
        return Instance(
            str(ids[0]),
            order.region,
            order.zone,
            order.type,
            order.spot,
            InstanceState.PENDING,
            order.owner,
            launched_at=time.time(),
        )

    async def _order_parameters(self, order: InstanceOrder) -> Json:
        vswitch = (await self._vswitches()).get(order.zone)
        if vswitch is None:
            raise self._wrong_setting(
                f"no vSwitch is set for {order.zone}", "providers.alibaba.vswitches"
            )
        return order_parameters(order, self._settings, vswitch, time.time())

    async def _accepted(self, order: InstanceOrder) -> Instance | None:
        """The machine of an order that Alibaba knows already."""
        for pause_s in _LISTED_AFTER_S:
            await asyncio.sleep(pause_s)
            found = await self.find(order.owner, order.installation)
            if found is not None:
                return found
        return None

    # --- listing ---

    async def find(self, owner: str, installation: str) -> Instance | None:
        """See InstanceApi."""
        tags = {TAG_OWNER: owner, TAG_INSTALLATION: installation}
        found = await self._listed(tags)
        return instance_of(found[0]) if found else None

    async def instances(self, installation: str) -> Sequence[Instance]:
        """See InstanceApi. Machines that go on are kept from being released, and those
        that have shut themselves down, which still cost, are ended.
        """
        listing = self._listings.setdefault(
            installation, SharedCall(partial(self._list, installation))
        )
        return await listing()

    async def _list(self, installation: str) -> Sequence[Instance]:
        rows = await self._listed({TAG_INSTALLATION: installation})
        self._upkeep.begin(rows)
        return self._former.with_gone(instance_of(row) for row in rows)

    async def _listed(self, tags: Mapping[str, str]) -> list[Json]:
        """The rows of all machines with these tags, in all regions."""
        regions = self._settings.regions
        parts = await asyncio.gather(
            *(self._pages(region, tag_filter(tags)) for region in regions)
        )
        return [row for part in parts for row in part]

    async def _pages(self, region: str, parameters: Mapping[str, Any]) -> list[Json]:
        found: list[Json] = []
        token = ""
        while True:
            answer = await self._client.call(
                region,
                "DescribeInstances",
                {**parameters, "MaxResults": _PAGE, "NextToken": token or None},
            )
            rows = objects_at(answer, "Instances", "Instance")
            found += rows
            token = text_at(answer, "NextToken")
            if not token or not rows:
                return found

    # --- ending ---

    async def end(self, refs: Sequence[InstanceRef]) -> None:
        """See InstanceApi."""
        by_region: dict[str, list[str]] = {}
        for ref in refs:
            by_region.setdefault(ref.region, []).append(ref.id)
        for region, ids in by_region.items():
            for first in range(0, len(ids), _BATCH):
                await self._end(region, ids[first : first + _BATCH])

    async def _end(self, region: str, ids: Sequence[str]) -> None:
        try:
            await self._client.call(region, "DeleteInstances", deletion(ids))
        except RefusedCallError as error:
            is_missing = error.cloud_code.startswith(NOT_THERE)
            is_early = error.cloud_code.startswith(NOT_READY)
            # Alibaba refuses a whole batch for one machine of it.
            if is_missing:
                left = await self._existing(region, ids)
                if len(left) == len(ids):
                    raise
                if left:
                    await self._end(region, left)
            elif is_early and len(ids) > 1:
                await self._end_each(region, ids)
            else:
                raise

    async def _end_each(self, region: str, ids: Sequence[str]) -> None:
        """End what can be ended; then the first error is raised."""
        ended = await asyncio.gather(
            *(self._end(region, [one]) for one in ids), return_exceptions=True
        )
        for error in ended:
            if error is not None:
                raise error

    async def _existing(self, region: str, ids: Sequence[str]) -> list[str]:
        rows = await self._pages(region, {"InstanceIds": json.dumps(list(ids))})
        return [text_at(row, "InstanceId") for row in rows]

    # --- rights ---

    async def missing_rights(self) -> Sequence[MissingRight]:
        """See InstanceApi."""
        missing: list[MissingRight] = []
        try:
            await self._vswitches()
        except RefusedCallError as error:
            if error.error_code != DENIED:
                raise
            missing.append(MissingRight(error.action, OFFER))
        return [*missing, *await rights_missing(self._client, self._settings)]
