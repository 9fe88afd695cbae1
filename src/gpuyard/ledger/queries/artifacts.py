"""Reading artifacts."""

from collections.abc import Iterable

import sqlalchemy as sa

from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.queries.jobs import escape_like
from gpuyard.ledger.tables import artifacts, jobs


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

    def newest_artifacts(
        self, limit: int, text: str = "", before: str | None = None
    ) -> list[Row]:
        """The newest ones of all jobs that are kept, newest first, each with the name
        of its job; those whose path or job's name holds `text`, and that are older than
        the one with the id `before`.
        """
        named = sa.select(artifacts, jobs.c.name.label("job_name"))
        wanted = named.join(jobs, jobs.c.id == artifacts.c.job_id)
        wanted = wanted.where(artifacts.c.kept)
        if text:
            holds = f"%{escape_like(text)}%"
            wanted = wanted.where(
                sa.or_(
                    artifacts.c.path.like(holds, escape="\\"),
                    jobs.c.name.like(holds, escape="\\"),
                )
            )
        if before is not None:
            wanted = wanted.where(artifacts.c.id < before)
        return self._rows(wanted.order_by(artifacts.c.id.desc()).limit(limit))

    def artifact(self, artifact_id: str) -> Row | None:
        """The artifact of this id, if it is kept."""
        where = sa.and_(artifacts.c.id == artifact_id, artifacts.c.kept)
        return self._row(sa.select(artifacts).where(where))
