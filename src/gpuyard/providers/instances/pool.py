"""The nodes of a pool on rented machines of a cloud."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

from gpuyard.config.pools import PoolSettings
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.instances.api import (
    CAPACITY,
    QUOTA,
    SETTING,
    Instance,
    InstanceApi,
    InstanceOrder,
    InstanceRef,
    Market,
)
from gpuyard.providers.instances.boot_plan import BootPlan
from gpuyard.providers.instances.cloud_init import user_data
from gpuyard.providers.instances.extras import with_extras
from gpuyard.providers.instances.markets import (
    is_offered,
    market_of,
    offer_id,
    spot_bid,
)
from gpuyard.providers.instances.settings import InstanceSettings
from gpuyard.providers.pool_hands import (
    OWNER_PREFIX,
    NodeSize,
    PoolMachine,
    PoolOrder,
)

# A market that had no machine is not tried again before this time, unless no other is
# left.
_LEFT_ALONE_S = 300.0
_ELSEWHERE = frozenset({CAPACITY, QUOTA})


class InstancePool:
    """`PoolHands` of one pool: `api` of the cloud `provider`, and what its settings say
    of all machines.
    """

    def __init__(
        self,
        provider: str,
        pool: PoolSettings,
        settings: InstanceSettings,
        api: InstanceApi,
        installation: Callable[[], str],
    ) -> None:
        self.poll_s = settings.poll_s
        self._provider = provider
        self._pool = pool
        # The same choice of markets as for jobs, but by what the pool says.
        choice: dict[str, Any] = {"types": settings.types}
        if pool.type is not None:
            choice["types"] = (pool.type,)
        if pool.max_price is not None:
            choice["max_price"] = pool.max_price
        self._settings = settings.model_copy(update=choice)
        self._api = api
        self._installation = installation
        self._markets: list[Market] = []
        # When a market had none (monotonic seconds), by its offer.
        self._refused_at: dict[str, float] = {}

    async def size(self) -> NodeSize:
        """See PoolHands."""
        await self._read_markets()
        machine = self._best().type
        return NodeSize(
            machine.name,
            machine.cpus,
            machine.memory_gb,
            machine.gpus,
            machine.gpu,
            machine.gpu_memory_gb,
            machine.capability,
        )

    async def _read_markets(self) -> None:
        found = await self._api.markets()
        priced = with_extras(found, self._provider, self._settings)
        self._markets = [market for market in priced if self._is_meant(market)]

    def _is_meant(self, market: Market) -> bool:
        pool = self._pool
        return (
            market.spot == pool.spot
            and is_offered(market, self._settings)
            and (not pool.regions or market.region in pool.regions)
            and (not pool.zones or market.zone in pool.zones)
            and (pool.type is not None or market.type.gpus > 0)
        )

    def _best(self) -> Market:
        """The cheapest market; one that has just refused comes last. ProviderError."""
        if not self._markets:
            raise ProviderError(
                f"type: {self._provider} has no {self._wish()}; `gpuyard offers` lists"
                " what it has",
                self._provider,
                SETTING,
            )
        return min(self._markets, key=self._rank)

    def _wish(self) -> str:
        """What the pool asks for, for people."""
        pool = self._pool
        words = [pool.type or "machine with a GPU", "on spot" if pool.spot else ""]
        if places := (*pool.regions, *pool.zones):
            words.append(f"in {', '.join(places)}")
        if self._settings.max_price is not None:
            words.append(f"for at most {self._settings.max_price} an hour")
        return " ".join(filter(None, words))

    def _rank(self, market: Market) -> tuple[bool, bool, Decimal, str]:
        name = offer_id(self._provider, market)
        refused_at = self._refused_at.get(name, -_LEFT_ALONE_S)
        has_refused = time.monotonic() < refused_at + _LEFT_ALONE_S
        price = market.total_per_hour or Decimal(0)
        return (bool(market.problem), has_refused, price, name)

    async def launch(self, order: PoolOrder) -> PoolMachine:
        """See PoolHands."""
        if known := await self.find(order.owner):
            return known
        if not self._markets:
            await self._read_markets()
        market = self._best()
        try:
            made = await self._api.launch(self._instance_order(order, market))
        except ProviderError as error:
            if error.error_code in _ELSEWHERE:
                name = offer_id(self._provider, market)
                self._refused_at[name] = time.monotonic()
            raise
        return self._machine(made)

    def _instance_order(self, order: PoolOrder, market: Market) -> InstanceOrder:
        settings = self._settings
        boot = BootPlan(
            join_url=settings.server_url or order.join_url,
            join_code=order.join_code,
            node_name=order.name,
            install=settings.install,
            silence_s=settings.silence_s,
            needs_gpus=market.type.gpus,
            needs_docker=False,
            spot=market.spot,
            cloud=self._provider,
        )
        return InstanceOrder(
            owner=order.owner,
            installation=self._installation(),
            name=order.name,
            type=market.type.name,
            region=market.region,
            zone=market.zone,
            spot=market.spot,
            user_data=user_data(boot),
            disk_gb=settings.disk_gb,
            max_price=spot_bid(self._provider, market, settings),
            image=settings.image,
        )

    async def find(self, owner: str) -> PoolMachine | None:
        """See PoolHands."""
        found = await self._api.find(owner, self._installation())
        if found is None:
            return None
        if not self._markets:
            # Else nobody knows what it costs; a machine is found all the same.
            with suppress(ProviderError):
                await self._read_markets()
        return self._machine(found)

    async def machines(self) -> Sequence[PoolMachine]:
        """See PoolHands."""
        found = await self._api.instances(self._installation())
        return [
            self._machine(instance)
            for instance in found
            if instance.owner.startswith(OWNER_PREFIX)
        ]

    def _machine(self, instance: Instance) -> PoolMachine:
        market = market_of(instance, self._markets)
        ends_at = None
        if instance.launched_at is not None and self._pool.lifetime:
            ends_at = instance.launched_at + self._pool.lifetime
        return PoolMachine(
            instance.owner,
            f"{instance.region}/{instance.id}",
            instance.state.is_live,
            instance.launched_at,
            ends_at,
            instance.interrupted,
            instance.why,
            market.total_per_hour if market else None,
            market.currency if market else "",
        )

    async def end(self, reference: str) -> None:
        """See PoolHands."""
        region, _, name = reference.partition("/")
        await self._api.end([InstanceRef(region, name)])
