"""The node pools, and the size and price of their nodes, from Tencent's API."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.fields import (
    Json,
    object_at,
    objects_at,
    text_at,
    value_at,
)
from gpuyard.providers.tencent.api import TencentApi
from gpuyard.providers.tencent.catalogue import INSTANCE_TYPES, InstanceType

# Prices and availability are read this often; they change slowly.
_MARKET_S = 1800.0
_SPOT = "SPOTPAID"


@dataclass(frozen=True, slots=True)
class NodePool:
    """A node pool of Tencent's: at most `max_nodes` nodes of the instance `types`.

    `types` are in Tencent's order of preference. `labels` and `taints` are those of
    each node, in Kubernetes' form. `scales`: nodes are added when pods need them.
    """

    id: str
    name: str
    types: tuple[str, ...]
    labels: Mapping[str, str]
    taints: tuple[Json, ...]
    max_nodes: int
    scales: bool
    spot: bool


@dataclass(frozen=True, slots=True)
class TencentMachine:
    """An instance type on the market: its size (None when unknown) and price per hour.

    `sold_out`: no zone has one left. `source` says where the price comes from.
    """

    size: InstanceType | None
    price: Decimal | None = None
    sold_out: bool = False
    source: str = ""


class Survey:
    """The newest answers of Tencent's API.

    When a call fails, its last answer is kept, and `problem` says why it failed.
    """

    def __init__(self, api: TencentApi) -> None:
        self._api = api
        self._market: dict[tuple[str, bool], TencentMachine] = {}
        self._market_at = 0.0
        self._market_types = frozenset[str]()
        self._launch_configs: dict[str, Json] = {}
        self._problems: dict[str, str] = {}
        self.pools: tuple[NodePool, ...] = ()

    @property
    def problem(self) -> str:
        """Why the last calls failed; empty when all succeeded."""
        return " ".join(dict.fromkeys(self._problems.values()))

    async def update(self, types: Iterable[str]) -> None:
        """Read the pools, and the market data of their types and of `types`."""
        try:
            found = await self._api.node_pools()
            self._problems.pop("pools", None)
        except ProviderError as error:
            self._problems["pools"] = str(error)
        else:
            await self._update_launch_configs(found)
            pools = [_pool(row, self._launch_configs) for row in found]
            self.pools = tuple(pool for pool in pools if pool)
        wanted = frozenset(types).union(*(pool.types for pool in self.pools))
        is_old = time.monotonic() - self._market_at > _MARKET_S
        if wanted and (is_old or wanted - self._market_types):
            await self._update_market(wanted)

    async def _update_launch_configs(self, pools: Sequence[Json]) -> None:
        ids = {text_at(row, "Regular", "LaunchConfigurationId") for row in pools}
        try:
            found = await self._api.launch_configurations(sorted(ids - {""}))
            self._problems.pop("launches", None)
        except ProviderError as error:
            self._problems["launches"] = str(error)
        else:
            self._launch_configs = {
                text_at(row, "LaunchConfigurationId"): row for row in found
            }

    async def _update_market(self, types: frozenset[str]) -> None:
        try:
            found = await self._api.instance_types(sorted(types))
            self._problems.pop("market", None)
        except ProviderError as error:
            self._problems["market"] = str(error)
            return
        self._market = _market(found)
        self._market_types = types
        self._market_at = time.monotonic()

    def machine(self, type_name: str, spot: bool) -> TencentMachine:
        """What is known of an instance type."""
        exact = self._market.get((type_name, spot))
        any_price = exact or self._market.get((type_name, not spot))
        size = INSTANCE_TYPES.get(type_name)
        if size is None and any_price is not None:
            size = any_price.size
        return replace(exact or TencentMachine(None), size=size)


def _pool(row: Json, launch_configs: Mapping[str, Json]) -> NodePool | None:
    """A pool from Tencent's answer.

    None for one that is being deleted, or whose machines Tencent does not make.
    """
    is_deleted = text_at(row, "LifeState").lower().startswith("delet")
    kind = text_at(row, "Type")
    if is_deleted or kind not in ("Native", "Regular"):
        return None
    if kind == "Native":
        native = object_at(row, "Native")
        types = native.get("InstanceTypes") or ()
        charge = native.get("InstanceChargeType")
        scales = bool(native.get("EnableAutoscaling"))
        max_nodes = value_at(native, "Scaling", "MaxReplicas")
    else:
        regular = object_at(row, "Regular")
        launch = launch_configs.get(text_at(regular, "LaunchConfigurationId"), {})
        types = launch.get("InstanceTypes") or (launch.get("InstanceType"),)
        charge = launch.get("InstanceChargeType")
        scales = regular.get("AutoscalingGroupStatus") == "enabled"
        max_nodes = regular.get("MaxNodesNum")
    labels = objects_at(row, "Labels")
    return NodePool(
        text_at(row, "NodePoolId"),
        text_at(row, "Name"),
        types=tuple(str(name) for name in types if name),
        labels={text_at(label, "Name"): text_at(label, "Value") for label in labels},
        taints=tuple(_taint(taint) for taint in objects_at(row, "Taints")),
        max_nodes=int(max_nodes or 0),
        scales=scales and not row.get("Unschedulable"),
        spot=charge == _SPOT,
    )


def _taint(taint: Json) -> Json:
    """Tencent's taint in Kubernetes' form."""
    return {key.lower(): text_at(taint, key) for key in ("Key", "Value", "Effect")}


def _market(quotas: Sequence[Json]) -> dict[tuple[str, bool], TencentMachine]:
    """The best zone's machine, by instance type and whether it is spot.

    The best zone is the cheapest that has some left, or else the cheapest.
    """
    source = f"Tencent's price of {datetime.now(UTC):%Y-%m-%d}"
    found: dict[tuple[str, bool], TencentMachine] = {}
    for row in quotas:
        key = text_at(row, "InstanceType"), row.get("InstanceChargeType") == _SPOT
        prices = object_at(row, "Price")
        price = prices.get("UnitPriceDiscount") or prices.get("UnitPrice")
        machine = TencentMachine(
            _size(row),
            Decimal(str(price)) if price else None,
            sold_out=row.get("Status") != "SELL",
            source=source if price else "",
        )
        known = found.get(key)
        if known is None or _rank(machine) < _rank(known):
            found[key] = machine
    return found


def _rank(machine: TencentMachine) -> tuple[bool, bool, Decimal]:
    """A sort key: available machines first, then priced ones, then cheap ones."""
    return machine.sold_out, machine.price is None, machine.price or Decimal(0)


def _size(row: Json) -> InstanceType | None:
    """The size of an instance type; None when it has a part of a GPU."""
    gpus = float(row.get("GpuCount") or row.get("Gpu") or 0)
    if gpus != int(gpus):
        return None
    return InstanceType(
        None,
        int(gpus),
        float(row.get("Cpu") or 0),
        float(row.get("Memory") or 0),
        "Tencent's CVM API",
    )
