"""The pools as people see them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from gpuyard.controller.pool_calls import LivePool
from gpuyard.controller.pool_rows import PoolRow
from gpuyard.controller.pools import Pools
from gpuyard.domain.errors import NotFoundError
from gpuyard.ledger.queries import Queries
from gpuyard.scheduler.pools import PoolStage

_MOST_SHOWN = 50
_MOST_COUNTED = 100_000


class PoolListing:
    """Answers questions about pools, from memory and from the ledger."""

    def __init__(self, pools: Pools, queries: Queries) -> None:
        self._pools = pools
        self._queries = queries

    def all(self, now: float) -> list[dict[str, Any]]:
        """Every pool, by name; see `/api/v1/pools`."""
        pools = self._pools.by_name
        return [self._pool(pools[name], now) for name in sorted(pools)]

    def one(self, name: str, now: float) -> dict[str, Any]:
        """A pool with its newest nodes; NotFoundError."""
        pool = self._pools.by_name.get(name)
        if pool is None:
            known = ", ".join(sorted(self._pools.by_name)) or "none"
            raise NotFoundError(
                f"There is no pool {name!r}.", f"Those of [pools] are: {known}."
            )
        rows = map(PoolRow.of, self._queries.pool_nodes(name, _MOST_SHOWN))
        nodes = [_node(row, now) for row in rows]
        return {**self._pool(pool, now), "newest_nodes": nodes}

    def _pool(self, pool: LivePool, now: float) -> dict[str, Any]:
        settings = pool.settings
        live = self._pools.book.of(pool.name)
        states = Counter(row.state.value for row in live)
        ever = map(PoolRow.of, self._queries.pool_nodes(pool.name, _MOST_COUNTED))
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
            "cost": _texts(_costs(ever, now)),
        }


_LIVE = tuple(stage for stage in PoolStage if stage is not PoolStage.GONE)


def _node(row: PoolRow, now: float) -> dict[str, Any]:
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


def _costs(rows: Iterable[PoolRow], now: float) -> Mapping[str, Decimal]:
    """What the nodes have cost, by currency."""
    found: dict[str, Decimal] = defaultdict(Decimal)
    for row in rows:
        if cost := row.cost(now):
            found[row.currency] += cost
    return found


def _texts(amounts: Mapping[str, Decimal]) -> dict[str, str]:
    return {currency: str(amount) for currency, amount in sorted(amounts.items())}
