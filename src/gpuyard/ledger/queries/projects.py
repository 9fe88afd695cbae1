"""Reading projects and their members, and whose things are."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from gpuyard.ledger.people_tables import project_members, projects
from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import jobs, specs

# SQLite takes 32,766 variables in one statement unless it was built to take more.
_MAX_VARIABLES = 30_000


class Belonging(NamedTuple):
    """Whose a thing is: its project, and who submitted it (None: the owner of the
    instance).
    """

    project: str | None
    owner: str | None


class ProjectQueries(LedgerReader):
    """Reads of projects, and of whose things are."""

    def projects(self) -> list[Row]:
        """Every registered project, by name."""
        return self._rows(sa.select(projects).order_by(projects.c.name))

    def project_members(self) -> list[Row]:
        """Every member of every project."""
        return self._rows(sa.select(project_members).order_by(project_members.c.id))

    def belongings_of(self, ids: Iterable[str]) -> dict[str, Belonging]:
        """Whose these jobs, arrays and batches are; nothing of those that are not in
        the ledger, and of batches from before there were owners.
        """
        wanted = list(ids)
        found: dict[str, Belonging] = {}
        for start in range(0, len(wanted), _MAX_VARIABLES):
            found |= self._belongings_of(wanted[start : start + _MAX_VARIABLES])
        return found

    def _belongings_of(self, wanted: Sequence[str]) -> dict[str, Belonging]:
        project = specs.c.body["project"].as_string().label("project")
        user = specs.c.body["user"].as_string().label("user")
        own = sa.select(specs.c.job_id.label("id"), project, user)
        own = own.where(specs.c.job_id.in_(wanted))
        of_arrays = sa.select(jobs.c.id, project, user)
        of_arrays = of_arrays.where(
            jobs.c.id.in_(wanted), specs.c.job_id == jobs.c.array_id
        )
        return {
            row["id"]: Belonging(row["project"] or None, row["user"] or None)
            for statement in (own, of_arrays)
            for row in self._rows(statement)
        }

    def projects_of_jobs(self, job_ids: Iterable[str]) -> dict[str, str | None]:
        """The project of each of these jobs that is in the ledger."""
        wanted = list(job_ids)
        found: dict[str, str | None] = {}
        for start in range(0, len(wanted), _MAX_VARIABLES):
            part = wanted[start : start + _MAX_VARIABLES]
            columns = sa.select(jobs.c.id, jobs.c.project)
            rows = self._rows(columns.where(jobs.c.id.in_(part)))
            found |= {row["id"]: row["project"] for row in rows}
        return found
