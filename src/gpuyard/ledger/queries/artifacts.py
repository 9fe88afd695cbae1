"""Reading artifacts."""

from collections.abc import Iterable

import sqlalchemy as sa

from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import artifacts


class ArtifactQueries(LedgerReader):
    """Reads of artifacts."""

    def artifacts_of(self, job_id: str) -> list[Row]:
        """Those of a job that are kept, by path."""
        where = sa.and_(artifacts.c.job_id == job_id, artifacts.c.kept)
        return self._rows(sa.select(artifacts).where(where).order_by(artifacts.c.path))

    def artifacts_of_jobs(self, job_ids: Iterable[str]) -> list[Row]:
        """The artifacts of these jobs, kept or not."""
        of_jobs = artifacts.c.job_id.in_(list(job_ids))
        return self._rows(sa.select(artifacts).where(of_jobs))

    def artifact(self, artifact_id: str) -> Row | None:
        """The artifact of this id, if it is kept."""
        where = sa.and_(artifacts.c.id == artifact_id, artifacts.c.kept)
        return self._row(sa.select(artifacts).where(where))
