"""What can be rented in a region, for how much, and why not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.gpus import GPU_CLASSES, classify, resolve_gpu_class
from gpuyard.providers.aws.calls import AwsCalls
from gpuyard.providers.aws.config import AwsConfig
from gpuyard.providers.aws.kept import Kept
from gpuyard.providers.aws.places import LaunchPlaces
from gpuyard.providers.aws.prices import PriceBook, catalogue, read_price_list
from gpuyard.providers.aws.quotas import quota_of
from gpuyard.providers.instances.api import ListPrice, MachineType, Market

_TYPES_S = 3600.0
_QUOTAS_S = 3600.0
_LIST_S = 86400.0
_SPOT_S = 300.0
_GPU_TYPES = ("g*", "p*")
# EC2 takes so many values in a filter.
_VALUES = 100


@dataclass(frozen=True, slots=True)
class SpotPrice:
    """The spot price per hour in a zone, and since when (UTC)."""

    price: Decimal
    since: datetime


@dataclass(frozen=True, slots=True)
class Offered:
    """The types of a region, and in which zones each is offered."""

    types: Mapping[str, MachineType]
    zones: Mapping[str, Sequence[str]]


class RegionMarkets:
    """The markets of one region."""

    def __init__(
        self, region: str, settings: AwsConfig, calls: AwsCalls, places: LaunchPlaces
    ) -> None:
        self._region = region
        self._settings = settings
        self._calls = calls
        self._places = places
        self._offered = Kept(self._read_offered, _TYPES_S)
        self._spot_prices = Kept(self._read_spot_prices, _SPOT_S, {})
        self._list_prices = Kept(self._read_list_prices, _LIST_S, ())
        self._quotas: dict[str, Kept[float]] = {}

    async def markets(self) -> Sequence[Market]:
        """All markets of the region, on demand and spot."""
        offered = await self._offered()
        book = catalogue(self._settings.home)
        book.update(await self._list_prices())
        spots: Mapping[tuple[str, str], SpotPrice] = {}
        if self._settings.spot:
            spots = await self._spot_prices()
        subnets = await self._places.subnets(self._region)
        image_gb = await self._image_gb()
        found = self._missing(offered)
        for name, zones in sorted(offered.zones.items()):
            kind = offered.types[name]
            problems = {
                spot: await self._over_quota(kind, spot) for spot in (False, True)
            }
            for zone in zones:
                if subnets and zone not in subnets:
                    continue
                if self._settings.on_demand:
                    found.append(self._on_demand(kind, zone, book, problems[False]))
                if self._settings.spot:
                    problem = problems[True]
                    if spots and (name, zone) not in spots:
                        problem = f"{name} is not on the spot market in {zone}"
                    price = spots.get((name, zone))
                    found.append(self._spot(kind, zone, price, problem))
        return [replace(market, disk_gb=image_gb) for market in found]

    async def _image_gb(self) -> int:
        """How large the root disk of the image is; 0 if that cannot be known now. What
        is wrong with an image is told where a machine starts from it.
        """
        try:
            return (await self._places.image(self._region)).disk_gb
        except ProviderError:
            return 0

    def _missing(self, offered: Offered) -> list[Market]:
        """A market for each type that the settings name and the region lacks."""
        region = self._region
        return [
            Market(
                MachineType(name),
                region,
                region,
                spot=not self._settings.on_demand,
                price_per_hour=None,
                currency="USD",
                price_source="",
                problem=f"{region} does not offer {name}; name another type or region",
            )
            for name in self._settings.types
            if "." in name and name not in offered.zones
        ]

    def _on_demand(
        self, kind: MachineType, zone: str, book: PriceBook, problem: str
    ) -> Market:
        price = book.find(self._region, kind.name)
        return Market(
            kind,
            self._region,
            zone,
            spot=False,
            price_per_hour=price.price_per_hour if price else None,
            currency=price.currency if price else "USD",
            price_source=f"{price.source}, {price.date}" if price else "",
            problem=problem,
        )

    def _spot(
        self, kind: MachineType, zone: str, price: SpotPrice | None, problem: str
    ) -> Market:
        return Market(
            kind,
            self._region,
            zone,
            spot=True,
            price_per_hour=price.price if price else None,
            currency="CNY" if self._region.startswith("cn-") else "USD",
            price_source=f"AWS spot price since {price.since:%Y-%m-%d %H:%M} UTC"
            if price
            else "",
            problem=problem,
        )

    # --- what is offered ---

    async def _read_offered(self) -> Offered:
        types = await self._read_types()
        zones: dict[str, list[str]] = {}
        names = sorted(types)
        for first in range(0, len(names), _VALUES):
            part = names[first : first + _VALUES]
            rows = self._calls.pages(
                self._region,
                "DescribeInstanceTypeOfferings",
                "InstanceTypeOfferings",
                LocationType="availability-zone",
                Filters=[{"Name": "instance-type", "Values": part}],
            )
            async for row in rows:
                zones.setdefault(row["InstanceType"], []).append(row["Location"])
        return Offered(types, {name: sorted(zones[name]) for name in zones})

    async def _read_types(self) -> Mapping[str, MachineType]:
        wanted = self._settings.types
        names = [name for name in wanted if "." in name]
        if len(names) < len(wanted) or not wanted:
            names += _GPU_TYPES
        rows = self._calls.pages(
            self._region,
            "DescribeInstanceTypes",
            "InstanceTypes",
            Filters=[{"Name": "instance-type", "Values": names}],
        )
        kinds = [machine_type(row) async for row in rows]
        return {kind.name: kind for kind in kinds if kind and is_wanted(kind, wanted)}

    # --- prices and quotas ---

    async def _read_spot_prices(self) -> Mapping[tuple[str, str], SpotPrice]:
        offered = await self._offered()
        rows = self._calls.pages(
            self._region,
            "DescribeSpotPriceHistory",
            "SpotPriceHistory",
            InstanceTypes=sorted(offered.zones),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.now(UTC),
        )
        found: dict[tuple[str, str], SpotPrice] = {}
        async for row in rows:
            price = SpotPrice(Decimal(row["SpotPrice"]).normalize(), row["Timestamp"])
            key = row["InstanceType"], row["AvailabilityZone"]
            if key not in found or found[key].since < price.since:
                found[key] = price
        return found

    async def _read_list_prices(self) -> Sequence[ListPrice]:
        offered = await self._offered()
        return await read_price_list(self._calls, self._region, offered.zones)

    async def _over_quota(self, kind: MachineType, spot: bool) -> str:
        """Why the account may not run this type; empty if it may, or if that is not
        known.
        """
        quota = quota_of(kind.name, spot)
        if quota is None:
            return ""
        kept = self._quotas.setdefault(
            quota.code, Kept(lambda: self._read_quota(quota.code), _QUOTAS_S, -1.0)
        )
        cpus = await kept()
        if cpus < 0 or cpus >= kind.cpus:
            return ""
        return (
            f"the quota {quota.name} ({quota.code}) of {self._region} is {cpus:g}"
            f" vCPUs, and {kind.name} has {kind.cpus:g}; ask for more in Service Quotas"
        )

    async def _read_quota(self, code: str) -> float:
        answer = await self._calls.call(
            "service-quotas",
            self._region,
            "GetServiceQuota",
            ServiceCode="ec2",
            QuotaCode=code,
        )
        return float(answer["Quota"]["Value"])


def machine_type(row: Mapping[str, Any]) -> MachineType | None:
    """A type from EC2's description; None if machines of ours cannot be of it: those
    with a part of a GPU, with GPUs of another maker than NVIDIA, or for ARM.
    """
    if "x86_64" not in row["ProcessorInfo"]["SupportedArchitectures"]:
        return None
    cpus = float(row["VCpuInfo"]["DefaultVCpus"])
    memory_gb = row["MemoryInfo"]["SizeInMiB"] / 1024
    plain = MachineType(row["InstanceType"], cpus=cpus, memory_gb=memory_gb)
    gpu_info: Mapping[str, Any] = row.get("GpuInfo") or {}
    if not gpu_info.get("Gpus"):
        return plain
    gpu: Mapping[str, Any] = gpu_info["Gpus"][0]
    if gpu.get("Manufacturer") != "NVIDIA" or not gpu.get("Count"):
        return None
    gpu_mib = gpu["MemoryInfo"]["SizeInMiB"]
    kind = classify(gpu["Name"], gpu_mib)
    known = GPU_CLASSES[kind] if kind else None
    return MachineType(
        plain.name,
        gpu=gpu["Name"],
        gpus=gpu["Count"],
        gpu_memory_gb=float(known.memory_gb) if known else round(gpu_mib / 1024, 1),
        capability=known.compute_capability if known else "",
        cpus=cpus,
        memory_gb=memory_gb,
    )


def is_wanted(kind: MachineType, names: Sequence[str]) -> bool:
    """Whether the settings' `types` mean it; without any, all with GPUs."""
    if not names:
        return kind.gpus > 0
    if kind.name in names:
        return True
    found = classify(kind.gpu, int(kind.gpu_memory_gb * 1024)) if kind.gpu else None
    classes = [resolve_gpu_class(name) for name in names if "." not in name]
    return found is not None and any(found in one for one in classes)
