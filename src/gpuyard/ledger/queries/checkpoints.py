"""Reading checkpoints."""

from collections.abc import Iterable

import sqlalchemy as sa

from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import artifacts, checkpoints


class CheckpointQueries(LedgerReader):
    """Reads of checkpoints."""

    def checkpoints_of(self, job_id: str) -> list[Row]:
        """A job's checkpoints, oldest first: as the server heard of them, because the
        clocks of two nodes may differ.
        """
        return self._rows(
            sa.select(checkpoints)
            .where(checkpoints.c.job_id == job_id)
            .order_by(checkpoints.c.id)
        )

    def checkpoints_of_jobs(self, job_ids: Iterable[str]) -> list[Row]:
        """The checkpoints of these jobs, kept or not."""
        of_jobs = checkpoints.c.job_id.in_(list(job_ids))
        return self._rows(sa.select(checkpoints).where(of_jobs))

    def checkpoint_counts(self, job_ids: Iterable[str]) -> dict[str, int]:
        """How many checkpoints of each job are kept."""
        statement = (
            sa.select(checkpoints.c.job_id, sa.func.count().label("n"))
            .where(checkpoints.c.job_id.in_(list(job_ids)), checkpoints.c.kept)
            .group_by(checkpoints.c.job_id)
        )
        return {row["job_id"]: row["n"] for row in self._rows(statement)}

    def checkpoint(self, checkpoint_id: str) -> Row | None:
        """The checkpoint of this id."""
        return self._row(
            sa.select(checkpoints).where(checkpoints.c.id == checkpoint_id)
        )

    def has_checkpoint(
        self, attempt_id: str, path: str, sha256: str, created_at: float
    ) -> bool:
        """Whether exactly this checkpoint is in the ledger, kept or not."""
        where = sa.and_(
            checkpoints.c.sha256 == sha256,
            checkpoints.c.attempt_id == attempt_id,
            checkpoints.c.path == path,
            checkpoints.c.created_at == created_at,
        )
        return self._row(sa.select(checkpoints.c.id).where(where)) is not None

    def blob_is_used(self, sha256: str) -> bool:
        """Whether a checkpoint or an artifact that is kept needs this blob."""
        return any(self._needs(table, sha256) for table in (checkpoints, artifacts))

    def _needs(self, table: sa.Table, sha256: str) -> bool:
        where = sa.and_(table.c.sha256 == sha256, table.c.kept)
        return self._row(sa.select(table.c.id).where(where).limit(1)) is not None
