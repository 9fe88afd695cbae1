"""Reading what attempts used that have ended, for advice on costs."""

from collections.abc import Sequence

import sqlalchemy as sa

from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import attempts, pool_nodes

_PAGE = 5000
# A machine ends a while after what it was rented for, at the latest.
_LATER_END_S = 86_400.0


class CostUseQueries(LedgerReader):
    """Reads of what attempts cost and used."""

    def ended_uses(
        self, begin: float, end: float, after: str, hidden: Sequence[str]
    ) -> list[Row]:
        """A page of the attempts that ended from `begin` until before `end`, after the
        id `after`, in order, but for those of `hidden` projects. Each with the `name`
        and the `shape` (JSON) of its job, and whether it left a checkpoint
        (`has_saved`). Empty at the end.
        """
        statement = sa.text(
            "SELECT a.id, a.job_id, a.owner, a.tier, a.currency, a.basis, a.cost,"
            " a.started_at, a.ended_at, a.ran_s, a.gpus, a.cpus, a.gpu_used, a.reason,"
            " CAST(a.usage AS TEXT) AS usage, CAST(a.placements AS TEXT) AS placements,"
            " j.name, CAST(j.shape AS TEXT) AS shape,"
            " EXISTS (SELECT 1 FROM checkpoints AS c WHERE c.job_id = a.job_id"
            " AND c.attempt_id = a.id) AS has_saved"
            " FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id"
            " WHERE a.id > :after AND a.gpus IS NOT NULL AND a.started_at IS NOT NULL"
            " AND a.ended_at >= :begin AND a.ended_at < :end"
            " AND (a.project IS NULL OR a.project NOT IN :hidden)"
            f" ORDER BY a.id LIMIT {_PAGE}"
        ).bindparams(sa.bindparam("hidden", list(hidden), sa.Text, expanding=True))
        return self._rows(statement.bindparams(begin=begin, end=end, after=after))

    def completed_runs(
        self, begin: float, end: float, after: str, hidden: Sequence[str]
    ) -> list[Row]:
        """A page, as of `ended_uses`, of the attempts that have completed their job and
        began at its beginning. Each with the `name` of its job and its last `progress`
        (JSON).
        """
        statement = sa.text(
            "SELECT a.id, a.owner, a.tier, a.currency, a.cost, a.gpu, a.gpus,"
            " a.started_at, a.ended_at, a.ran_s, a.gpu_used, j.name,"
            " CAST(p.body AS TEXT) AS progress"
            " FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id"
            " LEFT JOIN progress AS p ON p.job_id = a.job_id"
            " WHERE a.id > :after AND a.gpus IS NOT NULL AND a.started_at IS NOT NULL"
            " AND a.ended_at >= :begin AND a.ended_at < :end"
            " AND a.reason IS NULL AND a.resumed_from IS NULL"
            " AND j.state = 'completed'"
            " AND (a.project IS NULL OR a.project NOT IN :hidden)"
            f" ORDER BY a.id LIMIT {_PAGE}"
        ).bindparams(sa.bindparam("hidden", list(hidden), sa.Text, expanding=True))
        return self._rows(statement.bindparams(begin=begin, end=end, after=after))

    def rented_attempts(self, provider: str, begin: float, end: float) -> list[Row]:
        """The attempts for which a provider has rented a machine that may have cost
        something from `begin` until before `end`, and those that had ended a while
        before: their machines may still have cost something.
        """
        row = attempts.c
        columns = (
            row.id,
            row.job_id,
            row.provider_ref,
            row.created_at,
            row.ended_at,
            row.price_per_hour,
            row.currency,
            row.cost,
            row.placements,
        )
        return self._rows(
            sa.select(*columns)
            .where(row.provider == provider, row.provider_ref.is_not(None))
            .where(row.created_at < end)
            .where(row.ended_at.is_(None) | (row.ended_at >= begin - _LATER_END_S))
            .order_by(row.id)
        )

    def rented_pool_nodes(self, provider: str, begin: float, end: float) -> list[Row]:
        """The same of the nodes of pools."""
        row = pool_nodes.c
        return self._rows(
            sa.select(pool_nodes)
            .where(row.provider == provider, row.reference != "")
            .where(row.began_at < end)
            .where(row.ended_at.is_(None) | (row.ended_at >= begin - _LATER_END_S))
            .order_by(row.id)
        )
