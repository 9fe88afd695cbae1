"""What Tencent says of the cluster's supply: its node pools, what their nodes are, and what those cost today."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.fields import Json, at, rows, table, text
from gpuyard.providers.tencent.api import TencentApi
from gpuyard.providers.tencent.catalogue import INSTANCE_TYPES, InstanceType

# Prices and what is sold out change slowly.
_MARKET_S = 1800.0
_SPOT = "SPOTPAID"


@dataclass(frozen=True, slots=True)
class NodePool:
    """Nodes alike that Tencent keeps: `types` it makes them of, in its order, `most` that there can be.

    `labels` and `taints` are those of each node, in Kubernetes' form. `scales`: nodes come when pods need them.
    """

    id: str
    name: str
    types: tuple[str, ...]
    labels: Mapping[str, str]
    taints: tuple[Json, ...]
    most: int
    scales: bool
    spot: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance type on the market: what it has (None where nobody says), its price of an hour, `sold_out` where
    no zone has one left; `source` says who named the price and when."""

    has: InstanceType | None
    price: Decimal | None = None
    sold_out: bool = False
    source: str = ""


class Survey:
    """The newest answers. What Tencent does not say this time is as it was; `problem` tells why it does not."""

    def __init__(self, api: TencentApi) -> None:
        self._api = api
        self._market: dict[tuple[str, bool], Machine] = {}
        self._market_at, self._market_of = 0.0, frozenset[str]()
        self._launches: dict[str, Json] = {}
        self._problems: dict[str, str] = {}
        self.pools: tuple[NodePool, ...] = ()

    @property
    def problem(self) -> str:
        """Why Tencent did not say all of it; empty when it did."""
        return " ".join(dict.fromkeys(self._problems.values()))

    async def look(self, kinds: Iterable[str]) -> None:
        """Ask for the pools, and for the market in their types and `kinds`."""
        try:
            found = await self._api.node_pools()
            self._problems.pop("pools", None)
        except ProviderError as error:
            self._problems["pools"] = str(error)
        else:
            await self._learn_launches(found)
            self.pools = tuple(pool for row in found if (pool := _pool(row, self._launches)))
        wanted = frozenset(kinds).union(*(pool.types for pool in self.pools))
        if wanted and (wanted - self._market_of or time.monotonic() - self._market_at > _MARKET_S):
            await self._learn_market(wanted)

    async def _learn_launches(self, pools: Sequence[Json]) -> None:
        ids = sorted({text(row, "Regular", "LaunchConfigurationId") for row in pools} - {""})
        try:
            found = await self._api.launch_configurations(ids)
            self._problems.pop("launches", None)
        except ProviderError as error:
            self._problems["launches"] = str(error)
        else:
            self._launches = {text(row, "LaunchConfigurationId"): row for row in found}

    async def _learn_market(self, kinds: frozenset[str]) -> None:
        try:
            found = await self._api.instance_types(sorted(kinds))
            self._problems.pop("market", None)
        except ProviderError as error:
            self._problems["market"] = str(error)
            return
        self._market = _market(found)
        self._market_of, self._market_at = kinds, time.monotonic()

    def machine(self, kind: str, spot: bool) -> Machine:
        """What is known of an instance type."""
        found, other = self._market.get((kind, spot)), self._market.get((kind, not spot))
        told = found or other
        return replace(found or Machine(None), has=INSTANCE_TYPES.get(kind) or (told.has if told else None))


def _pool(row: Json, launches: Mapping[str, Json]) -> NodePool | None:
    """None for one that is on its way out, or whose machines are not Tencent's to make."""
    kind = text(row, "Type")
    if text(row, "LifeState").lower().startswith("delet") or kind not in ("Native", "Regular"):
        return None
    if kind == "Native":
        native = table(row, "Native")
        types, charge = native.get("InstanceTypes") or (), native.get("InstanceChargeType")
        scales, most = bool(native.get("EnableAutoscaling")), at(native, "Scaling", "MaxReplicas")
    else:
        regular = table(row, "Regular")
        launch = launches.get(text(regular, "LaunchConfigurationId"), {})
        types, charge = launch.get("InstanceTypes") or (launch.get("InstanceType"),), launch.get("InstanceChargeType")
        scales, most = regular.get("AutoscalingGroupStatus") == "enabled", regular.get("MaxNodesNum")
    return NodePool(
        text(row, "NodePoolId"), text(row, "Name"), tuple(str(name) for name in types if name),
        {text(label, "Name"): text(label, "Value") for label in rows(row, "Labels")},
        tuple({key.lower(): text(taint, key) for key in ("Key", "Value", "Effect")} for taint in rows(row, "Taints")),
        int(most or 0), scales and not row.get("Unschedulable"), charge == _SPOT,
    )  # fmt: skip


def _market(quotas: Sequence[Json]) -> dict[tuple[str, bool], Machine]:
    """By type and whether it is spot: the cheapest zone that has some left, else the cheapest."""
    source = f"Tencent's price of {datetime.now(UTC):%Y-%m-%d}"
    found: dict[tuple[str, bool], Machine] = {}
    for row in quotas:
        key = text(row, "InstanceType"), row.get("InstanceChargeType") == _SPOT
        price = at(row, "Price", "UnitPriceDiscount") or at(row, "Price", "UnitPrice")
        priced = Decimal(str(price)) if price else None
        sold_out = row.get("Status") != "SELL"
        machine = Machine(_has(row), priced, sold_out, source if priced is not None else "")
        known = found.get(key)
        if known is None or _rank(machine) < _rank(known):
            found[key] = machine
    return found


def _rank(machine: Machine) -> tuple[bool, bool, Decimal]:
    return machine.sold_out, machine.price is None, machine.price or Decimal(0)


def _has(row: Json) -> InstanceType | None:
    """None for a part of a GPU."""
    gpus = float(row.get("GpuCount") or row.get("Gpu") or 0)
    if gpus != int(gpus):
        return None
    return InstanceType(None, int(gpus), float(row.get("Cpu") or 0), float(row.get("Memory") or 0), "Tencent's CVM API")
