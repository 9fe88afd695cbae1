"""From what people write to the jobs and arrays that they mean."""

import asyncio
import re
from collections.abc import Sequence

from gpuyard.controller.core import SLICE, Core
from gpuyard.domain.errors import InvalidInputError, IsArrayError, NotFoundError

# The task of an array: what means the array, and the index.
_TASK = re.compile(r"(.+)_(\d{1,10})", re.ASCII)
ARRAY_ID = re.compile(r"array_[0-9a-f]{32}")


class JobLookup:
    """Finds jobs and arrays. A person names them by id, by the end of an id, or by
    name, and the task of an array by its array and its index: `sweep_7`.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def find(self, reference: str) -> str:
        """The id of the job that `reference` means.

        Raises NotFoundError for no match, InvalidInputError for several, IsArrayError
        if it means an array.
        """
        found = self._find_any(reference)
        if not ARRAY_ID.fullmatch(found):
            return found
        row = self._core.queries.array(found)
        if row is None:
            raise _unknown(reference)
        first = row["tasks"].replace("-", ",").split(",")[0]
        raise IsArrayError(
            f"{reference!r} is an array of {row['total']:,} jobs.",
            f"Name one of them, such as {reference}_{first}.",
        )

    def find_array(self, reference: str) -> str:
        """The id of the array that `reference` means; NotFoundError if it means none,
        InvalidInputError if several.
        """
        found = self._find_any(reference)
        if ARRAY_ID.fullmatch(found):
            return found
        raise NotFoundError(
            f"{reference!r} is a single job and no array.",
            "`gpuyard show` shows it.",
        )

    async def find_many(self, references: Sequence[str]) -> list[str]:
        """The ids of the jobs that these mean, each once and in their order; the errors
        of `find`. An array means its tasks.
        """
        return list(await self._find_each(references, only_queued=False))

    async def find_waiting(
        self, references: Sequence[str]
    ) -> tuple[list[str], set[str]]:
        """As `find_many`, but that an array means only its tasks in the queue; and
        which of the jobs are such tasks, not named themselves: they may have left the
        queue by now.
        """
        found = await self._find_each(references, only_queued=True)
        return list(found), {job_id for job_id, named in found.items() if not named}

    async def _find_each(
        self, references: Sequence[str], *, only_queued: bool
    ) -> dict[str, bool]:
        """The jobs, and whether each is named itself, and not only its array."""
        found: dict[str, bool] = {}
        queries = self._core.queries
        others = [one for one in references if one not in self._core.view.jobs]
        rows = await asyncio.to_thread(queries.job_outcomes, others)
        whole_ids = {row["id"] for row in rows}
        for position, reference in enumerate(references):
            if position % SLICE == 0:
                await asyncio.sleep(0)
            if reference in self._core.view.jobs or reference in whole_ids:
                found[reference] = True
                continue
            job_or_array = self._find_any(reference)
            if ARRAY_ID.fullmatch(job_or_array):
                tasks = await asyncio.to_thread(
                    queries.task_ids, job_or_array, queued=only_queued
                )
                for task in tasks:
                    found.setdefault(task, False)
            else:
                found[job_or_array] = True
        return found

    def parents(self, reference: str) -> list[str]:
        """The jobs that another is to wait for: one, or the tasks of an array."""
        found = self._find_any(reference)
        if ARRAY_ID.fullmatch(found):
            return self._core.queries.task_ids(found)
        return [found]

    def _find_any(self, reference: str) -> str:
        """The id of the job or of the array that `reference` means."""
        queries = self._core.queries
        found = queries.find_job_ids(reference)
        if len(found) == 1 and not found[0].endswith(reference):
            # By name: the newest job of it may be a task.
            return queries.array_of(found[0]) or found[0]
        if not found:
            found = queries.find_array_ids(reference)
        if not found:
            found = self._find_task(reference)
        if not found:
            raise _unknown(reference)
        if len(found) > 1:
            raise InvalidInputError.of(
                "job",
                f"{reference!r} could be {', '.join(found)}",
                "give more of the id",
            )
        return found[0]

    def _find_task(self, reference: str) -> list[str]:
        match = _TASK.fullmatch(reference)
        if match is None:
            return []
        try:
            array_id = self._find_any(match[1])
        except NotFoundError:
            return []
        if not ARRAY_ID.fullmatch(array_id):
            return []
        job_id = self._core.queries.task_id(array_id, int(match[2]))
        if job_id is None:
            row = self._core.queries.array(array_id)
            tasks = row["tasks"] if row else "none"
            raise NotFoundError(
                f"The array {match[1]!r} has no task {match[2]}.",
                f"Its tasks are {tasks}.",
            )
        return [job_id]


def _unknown(reference: str) -> NotFoundError:
    return NotFoundError(
        f"There is no job {reference!r}.", "`gpuyard jobs` lists them."
    )
