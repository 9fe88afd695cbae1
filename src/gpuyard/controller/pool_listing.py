"""The pools as people see them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from gpuyard.controller.pool_calls import LivePool
from gpuyard.controller.pool_rows import PoolRow
from gpuyard.controller.pools import Pools
from gpuyard.domain.errors import NotFoundError
from gpuyard.scheduler.pools import PoolStage


class PoolListing:
    """Answers questions about pools, from memory alone: so it may be asked as often as
    one likes, but only on the event loop, which changes them.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def all(self, now: float) -> list[dict[str, Any]]:
        """Every pool, by name; see `/api/v1/pools`."""
        pools = self._pools.by_name
        return [self._pool(pools[name], now) for name in sorted(pools)]

    def one(self, name: str, now: float) -> dict[str, Any]:
        """A pool; NotFoundError."""
        pool = self._pools.by_name.get(name)
        if pool is None:
            known = ", ".join(sorted(self._pools.by_name)) or "none"
            raise NotFoundError(
                f"There is no pool {name!r}.", f"Those of [pools] are: {known}."
            )
        return self._pool(pool, now)

    def _pool(self, pool: LivePool, now: float) -> dict[str, Any]:
        settings = pool.settings
        live = self._pools.book.of(pool.name)
        states = Counter(row.state.value for row in live)
        return {
            "name": pool.name,
            "provider": settings.provider,
            "size": pool.size.name if pool.size else settings.type,
            "min": settings.min if pool.is_configured else 0,
            "max": settings.max if pool.is_configured else 0,
            "idle_s": settings.idle,
            "nodes": {stage.value: states[stage.value] for stage in _LIVE},
            "waiting": sum(work.jobs for work in pool.waiting),
            "why": pool.plan.why if pool.plan else "",
            "problem": pool.problem or None,
            "boot_s": round(pool.boot_s, 1),
            "cost_per_hour": _texts(_hourly(live)),
            "cost": _texts(self._pools.book.spent(pool.name, now)),
        }


_LIVE = tuple(stage for stage in PoolStage if stage is not PoolStage.GONE)


def shown_pool_node(stored: Mapping[str, Any], now: float) -> dict[str, Any]:
    """A node of a pool, from its row in the ledger."""
    row = PoolRow.of(stored)
    cost = row.cost(now)
    return {
        "id": row.id,
        "name": row.name,
        "state": row.state.value,
        "size": row.size,
        "reference": row.reference,
        "node_id": row.node_id,
        "asked_at": row.asked_at,
        "began_at": row.began_at,
        "joined_at": row.joined_at,
        "ended_at": row.ended_at,
        "price_per_hour": row.price_per_hour,
        "currency": row.currency,
        "cost": None if cost is None else str(cost),
        "why": row.why,
    }


def _hourly(rows: Iterable[PoolRow]) -> Mapping[str, Decimal]:
    """What the machines that run cost in an hour, by currency."""
    found: dict[str, Decimal] = defaultdict(Decimal)
    for row in rows:
        if row.began_at is not None and row.price_per_hour is not None:
            found[row.currency] += Decimal(row.price_per_hour)
    return found


def _texts(amounts: Mapping[str, Decimal]) -> dict[str, str]:
    return {currency: str(amount) for currency, amount in sorted(amounts.items())}
