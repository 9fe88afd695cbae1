"""What can be rented at Alibaba, and for how much: from its API."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from gpuyard.domain.bills import CostPart
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.price_parts import PricePart
from gpuyard.providers.alibaba.catalogue import INSTANCE_TYPES
from gpuyard.providers.alibaba.client import AlibabaClient
from gpuyard.providers.alibaba.config import AlibabaConfig, region_of
from gpuyard.providers.alibaba.errors import THROTTLED, RefusedCallError
from gpuyard.providers.alibaba.market_answers import (
    machine_type,
    newest_spot_prices,
    price_in,
    stock_in,
    vcpus_left,
)
from gpuyard.providers.instances.api import (
    CREDENTIALS,
    DENIED,
    ListPrice,
    MachineType,
    Market,
)
from gpuyard.providers.kubernetes.fields import objects_at, text_at

# Prices change slowly, and each type needs a request of its own.
_PRICES_S = 1800.0
_TYPES_AT_ONCE = 10
_QUOTAS = (
    "max-postpaid-instance-vcpu-count",
    "used-postpaid-instance-vcpu-count",
    "max-spot-instance-vcpu-count",
    "used-spot-instance-vcpu-count",
)


@dataclass(frozen=True, slots=True)
class TypePrices:
    """What a type costs per hour in a region, with its disk: on demand, and by zone on
    spot; `disk` is the part of that disk. `date` says when Alibaba said so, `read_at`
    is the same in monotonic seconds.
    """

    on_demand: Decimal | None
    disk: Decimal
    spot: Mapping[str, Decimal]
    currency: str
    date: str
    read_at: float


_UNKNOWN = TypePrices(None, Decimal(0), {}, "CNY", "", float("-inf"))
_SOURCE = "Alibaba's price, with the disk"


class MarketSurvey:
    """The markets of the configured types. Sizes are asked for once, prices now and
    then, stock and quotas each time.
    """

    def __init__(self, client: AlibabaClient, settings: AlibabaConfig) -> None:
        self._client = client
        self._settings = settings
        self._types: dict[str, MachineType | None] = {}
        self._prices: dict[tuple[str, str], TypePrices] = {}

    async def markets(self, zones: Sequence[str]) -> list[Market]:
        """Those of the zones. ProviderError when stock or sizes cannot be had; without
        the right to ask for prices or quotas they are unknown.
        """
        regions = list(dict.fromkeys(region_of(zone) for zone in zones))
        found: list[Market] = []
        for region in regions:
            own = [zone for zone in zones if region_of(zone) == region]
            found += await self._region(region, own)
        return found

    async def list_prices(
        self, regions: Sequence[str], *, refresh: bool
    ) -> list[ListPrice]:
        """What each type costs on demand where it is sold; asked for anew with
        `refresh`. ProviderError, also without the right to ask.
        """
        found: list[ListPrice] = []
        for region in regions:
            for name in self._settings.type_names:
                if refresh or not self._is_fresh(region, name):
                    self._prices[region, name] = await self._listed(region, name)
                prices = self._prices[region, name]
                if prices.on_demand is not None:
                    row = ListPrice(
                        name,
                        region,
                        prices.on_demand,
                        prices.currency,
                        _SOURCE,
                        prices.date,
                    )
                    found.append(row)
        return found

    async def _listed(self, region: str, name: str) -> TypePrices:
        """As `_ask_prices`; no prices for a type that the region does not sell."""
        try:
            return await self._ask_prices(region, name)
        except RefusedCallError as error:
            if error.error_code in (CREDENTIALS, DENIED, THROTTLED):
                raise
            return _UNKNOWN

    async def _region(self, region: str, zones: Sequence[str]) -> list[Market]:
        spots = (False, True) if self._settings.spot else (False,)
        await self._read_types(region)
        left = await self._quotas(region)
        stock: dict[bool, Mapping[tuple[str, str], bool]] = {}
        for spot in spots:
            stock[spot] = await self._stock(region, spot)
        await self._read_all_prices(region, stock.values())
        found: list[Market] = []
        for name in self._settings.type_names:
            for zone in zones:
                for spot in spots:
                    is_left = stock[spot].get((zone, name))
                    problem = self._problem(name, zone, spot, is_left, left[spot])
                    if is_left is not None or self._settings.types:
                        found += self._market(name, zone, spot, problem)
        return found

    def _market(self, name: str, zone: str, spot: bool, problem: str) -> list[Market]:
        """The market of a type in a zone; none for a type of unknown size."""
        kind = self._types.get(name)
        if kind is None:
            return []
        region = region_of(zone)
        prices = self._prices.get((region, name), _UNKNOWN)
        price = prices.spot.get(zone) if spot else prices.on_demand
        source = f"{_SOURCE}, {prices.date}" if price is not None else ""
        disk: tuple[PricePart, ...] = ()
        if price is not None and prices.disk:
            disk = (PricePart(CostPart.DISK, prices.disk, source),)
        market = Market(
            kind, region, zone, spot, price, prices.currency, source, problem, disk
        )
        return [market]

    def _problem(
        self,
        name: str,
        zone: str,
        spot: bool,
        is_left: bool | None,
        vcpus: float | None,
    ) -> str:
        """Why a type cannot be had now. `is_left`: None if the zone does not sell it;
        `vcpus`: how many the quota leaves, None if that is unknown.
        """
        how = "on spot" if spot else "on demand"
        if is_left is None:
            return f"{zone} does not sell {name} {how}"
        if not is_left:
            return f"{name} is sold out {how} in {zone}"
        kind = self._types.get(name)
        if kind is None or vcpus is None or kind.cpus <= vcpus:
            return ""
        return (
            f"the quota of {region_of(zone)} leaves {vcpus:g} vCPUs {how}, and {name}"
            f" has {kind.cpus:g}; ask for more in Alibaba's Quota Center"
        )

    # --- answers ---

    async def _read_types(self, region: str) -> None:
        new = [name for name in self._settings.type_names if name not in self._types]
        for first in range(0, len(new), _TYPES_AT_ONCE):
            names = new[first : first + _TYPES_AT_ONCE]
            answer = await self._client.call(
                region, "DescribeInstanceTypes", {"InstanceTypes": names}
            )
            rows = objects_at(answer, "InstanceTypes", "InstanceType")
            known = {text_at(row, "InstanceTypeId"): row for row in rows}
            for name in names:
                row = known.get(name)
                self._types[name] = (
                    machine_type(row) if row else INSTANCE_TYPES.get(name)
                )

    async def _stock(self, region: str, spot: bool) -> dict[tuple[str, str], bool]:
        answer = await self._client.call(
            region,
            "DescribeAvailableResource",
            {
                "DestinationResource": "InstanceType",
                "InstanceChargeType": "PostPaid",
                "SpotStrategy": "SpotAsPriceGo" if spot else "NoSpot",
                "IoOptimized": "optimized",
            },
        )
        return stock_in(answer)

    async def _quotas(self, region: str) -> dict[bool, float | None]:
        """How many vCPUs the account may still have, on demand and on spot."""
        parameters = {"AttributeName": list(_QUOTAS)}
        try:
            answer = await self._client.call(
                region, "DescribeAccountAttributes", parameters
            )
        except RefusedCallError:
            return {False: None, True: None}
        return {
            False: vcpus_left(answer, "postpaid"),
            True: vcpus_left(answer, "spot"),
        }

    async def _read_all_prices(
        self, region: str, stocks: Iterable[Mapping[tuple[str, str], bool]]
    ) -> None:
        """Those of the types that are left anywhere in the region."""
        left: set[str] = set()
        for stock in stocks:
            left.update(name for (_, name), is_left in stock.items() if is_left)
        wanted = left.intersection(self._settings.type_names)
        await asyncio.gather(
            *(self._read_prices(region, name) for name in sorted(wanted))
        )

    async def _read_prices(self, region: str, name: str) -> None:
        if self._is_fresh(region, name):
            return
        try:
            found = await self._ask_prices(region, name)
        except RefusedCallError:
            found = _UNKNOWN
        except ProviderError:
            return  # what is known stays
        self._prices[region, name] = found

    def _is_fresh(self, region: str, name: str) -> bool:
        known = self._prices.get((region, name), _UNKNOWN)
        return time.monotonic() - known.read_at < _PRICES_S

    async def _ask_prices(self, region: str, name: str) -> TypePrices:
        settings = self._settings
        on_demand = await self._client.call(
            region,
            "DescribePrice",
            {
                "ResourceType": "instance",
                "InstanceType": name,
                "InstanceNetworkType": "vpc",
                "PriceUnit": "Hour",
                "SystemDisk": {
                    "Category": settings.disk_category,
                    "Size": settings.disk_gb,
                },
            },
        )
        (total, disk, currency) = price_in(on_demand)
        spot: Mapping[str, Decimal] = {}
        if settings.spot:
            history = await self._client.call(
                region,
                "DescribeSpotPriceHistory",
                {
                    "InstanceType": name,
                    "NetworkType": "vpc",
                    "IoOptimized": "optimized",
                },
            )
            spot = {
                zone: price + disk
                for zone, price in newest_spot_prices(history).items()
            }
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        return TypePrices(total, disk, spot, currency, today, time.monotonic())
