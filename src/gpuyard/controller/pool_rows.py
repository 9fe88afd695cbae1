"""The nodes of pools as the ledger has them."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any

from gpuyard.billing.meter import cost
from gpuyard.controller.core import Core
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.providers.pool_hands import OWNER_PREFIX
from gpuyard.scheduler.pools import PoolStage


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A node of a pool; see the table. Times are UTC seconds. `price_per_hour` is a
    number as text, None if it is not known.
    """

    id: str
    pool: str
    provider: str
    state: PoolStage
    size: str
    name: str
    asked_at: float
    reference: str = ""
    node_id: str | None = None
    price_per_hour: str | None = None
    currency: str = ""
    began_at: float | None = None
    joined_at: float | None = None
    ended_at: float | None = None
    why: str = ""

    @classmethod
    def new(cls, pool: str, provider: str, size: str, now: float) -> "PoolRow":
        """A node that is to be asked for."""
        made = new_id(OWNER_PREFIX)
        name = f"{pool}-{made[-4:]}"
        return cls(made, pool, provider, PoolStage.ASKED, size, name, now)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "PoolRow":
        """From a row of the ledger."""
        values: dict[str, Any] = dict(row)
        values["state"] = PoolStage(row["state"])
        return cls(**values)

    @property
    def may_leave(self) -> bool:
        """Whether it runs jobs, or is on its way to them."""
        return self.state.comes or self.state is PoolStage.JOINED

    def cost(self, now: float) -> Decimal | None:
        """What it has cost so far, or in all; None if its price is not known."""
        if self.price_per_hour is None:
            return None
        if self.began_at is None:
            return Decimal(0)
        until = now if self.ended_at is None else self.ended_at
        return cost(Decimal(self.price_per_hour), max(until - self.began_at, 0.0))


class PoolBook:
    """The nodes that have not gone, by id, and what the others have cost. Each change
    is an event. Only the event loop may look at it.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.rows: dict[str, PoolRow] = {}
        # By pool and currency. It is counted, because the history of a pool may have
        # very many nodes.
        self._spent: dict[tuple[str, str], Decimal] = defaultdict(Decimal)

    def reload(self) -> None:
        """Read them from the ledger."""
        found = map(PoolRow.of, self._core.queries.live_pool_nodes())
        self.rows = {row.id: row for row in found}
        self._spent.clear()
        for gone in self._core.queries.time_of_gone_pool_nodes():
            amount = cost(Decimal(gone["price_per_hour"]), gone["seconds"])
            self._spent[gone["pool"], gone["currency"]] += amount

    def spent(self, pool: str, now: float) -> dict[str, Decimal]:
        """What all nodes that a pool has had have cost, by currency. Those without a
        known price do not count.
        """
        found: dict[str, Decimal] = defaultdict(Decimal)
        for (name, currency), amount in self._spent.items():
            if name == pool:
                found[currency] += amount
        for row in self.of(pool):
            if amount := row.cost(now):
                found[row.currency] += amount
        return found

    def of(self, pool: str) -> list[PoolRow]:
        """The nodes of a pool, the oldest first."""
        return [row for row in self.rows.values() if row.pool == pool]

    def add(self, row: PoolRow) -> None:
        """Remember a node that is to be asked for, before anybody is asked."""
        values = asdict(row)
        del values["id"]
        self._emit(row, values)

    def change(self, row_id: str, **values: Any) -> PoolRow | None:
        """Give the node these values; returns what it is now, None if it has gone."""
        before = self.rows.get(row_id)
        if before is None:
            return None
        after = replace(before, **values)
        if after != before:
            self._emit(after, values)
        return after

    def _emit(self, row: PoolRow, values: Mapping[str, Any]) -> None:
        if row.state is PoolStage.GONE:
            self.rows.pop(row.id, None)
            if amount := row.cost(self._core.clock()):
                self._spent[row.pool, row.currency] += amount
        else:
            self.rows[row.id] = row
        info = {
            "pool": row.pool,
            "pool_node": row.id,
            "name": row.name,
            "node": row.node_id,
            "state": row.state.value,
            "why": row.why,
        }
        stored = {**values, "state": row.state.value}
        change = Change(Table.POOL_NODES, row.id, stored)
        kind = EventKind.POOL_NODE_CHANGED
        now = self._core.clock()
        self._core.emit([Event(kind, now, (change,), None, info)])
