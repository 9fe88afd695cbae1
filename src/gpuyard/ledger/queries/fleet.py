"""Reading nodes, GPUs, models and what is known about places."""

import sqlalchemy as sa

from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import (
    HAS_NOT_GONE,
    demand_shares,
    gpus,
    invitations,
    models,
    nodes,
    pool_nodes,
    timings,
    trust,
)


class FleetQueries(LedgerReader):
    """Reads of nodes, GPUs, models and what is known about places."""

    def nodes(self) -> list[Row]:
        """Every node."""
        return self._rows(sa.select(nodes).order_by(nodes.c.id))

    def invitations(self) -> list[Row]:
        """Every invitation to join."""
        return self._rows(sa.select(invitations).order_by(invitations.c.id))

    def live_pool_nodes(self) -> list[Row]:
        """Every node of a pool that has not gone, the oldest first."""
        is_live = sa.text(HAS_NOT_GONE)
        return self._rows(
            sa.select(pool_nodes).where(is_live).order_by(pool_nodes.c.id)
        )

    def pool_nodes(self, pool: str, most: int, before: str | None = None) -> list[Row]:
        """The newest nodes that a pool has had, the newest first; those older than the
        one with the id `before`.
        """
        wanted = sa.select(pool_nodes).where(pool_nodes.c.pool == pool)
        if before is not None:
            wanted = wanted.where(pool_nodes.c.id < before)
        return self._rows(wanted.order_by(pool_nodes.c.id.desc()).limit(most))

    def time_of_gone_pool_nodes(self) -> list[Row]:
        """For how many `seconds` the nodes of pools that have gone cost something, by
        `pool`, `currency` and `price_per_hour`.
        """
        row = pool_nodes.c
        ran_s = row.ended_at - row.began_at
        price = (row.pool, row.currency, row.price_per_hour)
        seconds = sa.func.sum(ran_s).label("seconds")
        return self._rows(
            sa.select(*price, seconds)
            .where(row.state == "gone", ran_s > 0)
            .where(row.price_per_hour.is_not(None))
            .group_by(*price)
        )

    def gpus(self) -> list[Row]:
        """Every GPU that is on a node, by node and index."""
        return self._rows(
            sa.select(gpus)
            .where(gpus.c.node_id.is_not(None))
            .order_by(gpus.c.node_id, gpus.c.index)
        )

    def models(self) -> list[Row]:
        """What users requested of models, such as pinning."""
        return self._rows(sa.select(models))

    def timings(self) -> list[Row]:
        """How long models took to load, sleep and so on, the oldest first."""
        return self._rows(sa.select(timings).order_by(timings.c.at))

    def demand_shares(self) -> list[Row]:
        """At what times of day models are requested."""
        return self._rows(sa.select(demand_shares))

    def trust(self) -> list[Row]:
        """What is known about places, ordered by place."""
        return self._rows(
            sa.select(trust)
            .where(trust.c.updated_at.is_not(None))
            .order_by(trust.c.place)
        )
