"""From what people write to the jobs and arrays that they mean."""

import asyncio
import re
from collections.abc import Sequence

from gpuyard.controller.core import SLICE, Core
from gpuyard.controller.visibility import EVERYTHING, Visibility
from gpuyard.domain.arrays import array_range
from gpuyard.domain.errors import InvalidInputError, IsArrayError, NotFoundError
from gpuyard.domain.units import shortened

# The task of an array: what means the array, and the index.
_TASK = re.compile(r"(.+)_(\d{1,10})", re.ASCII)
ARRAY_ID = re.compile(r"array_[0-9a-f]{32}")


class JobLookup:
    """Finds jobs and arrays. A person names them by id, by the end of an id, or by
    name, and the task of an array by its array and its index: `sweep_7`.

    `visibility` says what exists for who asks. A name means the newest of its own jobs,
    else the newest of all that it may see.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def find(self, reference: str, visibility: Visibility = EVERYTHING) -> str:
        """The id of the job that `reference` means.

        Raises NotFoundError for no match, InvalidInputError for several, IsArrayError
        if it means an array.
        """
        found = self._find_any(reference, visibility)
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

    def find_array(self, reference: str, visibility: Visibility = EVERYTHING) -> str:
        """The id of the array that `reference` means; NotFoundError if it means none,
        InvalidInputError if several.
        """
        found = self._find_any(reference, visibility)
        if ARRAY_ID.fullmatch(found):
            return found
        raise NotFoundError(
            f"{reference!r} is a single job and no array.",
            "`gpuyard show` shows it.",
        )

    async def find_many(
        self, references: Sequence[str], visibility: Visibility = EVERYTHING
    ) -> list[str]:
        """The ids of the jobs that these mean, each once and in their order; the errors
        of `find`. An array means its tasks.
        """
        found: dict[str, None] = {}
        for job_or_array in await self._find_each(references, visibility):
            if ARRAY_ID.fullmatch(job_or_array):
                task_ids = self._core.queries.task_ids
                tasks = await asyncio.to_thread(task_ids, job_or_array)
                found |= dict.fromkeys(tasks)
            else:
                found[job_or_array] = None
        return list(found)

    async def find_waiting(
        self, references: Sequence[str], visibility: Visibility = EVERYTHING
    ) -> tuple[list[str], list[str]]:
        """The jobs that these mean, and of the arrays that they mean the tasks in the
        queue, each once; the errors of `find`.
        """
        each = await self._find_each(references, visibility)
        arrays = {found for found in each if ARRAY_ID.fullmatch(found)}
        jobs = dict.fromkeys(found for found in each if found not in arrays)
        tasks: list[str] = []
        for array_id in sorted(arrays):
            tasks += await asyncio.to_thread(
                self._core.queries.task_ids, array_id, queued=True
            )
        return list(jobs), [job_id for job_id in tasks if job_id not in jobs]

    async def _find_each(
        self, references: Sequence[str], visibility: Visibility
    ) -> list[str]:
        """The id of the job or of the array that each means."""
        found: list[str] = []
        live = self._core.view.jobs if not visibility.hidden else ()
        others = [one for one in references if one not in live]
        read = self._core.queries.visible_job_ids
        whole_ids = await asyncio.to_thread(read, others, visibility.hidden)
        for position, reference in enumerate(references):
            if position % SLICE == 0:
                await asyncio.sleep(0)
            is_whole = reference in live or reference in whole_ids
            found.append(
                reference if is_whole else self._find_any(reference, visibility)
            )
        return found

    def parents(self, reference: str, visibility: Visibility = EVERYTHING) -> list[str]:
        """The jobs that another is to wait for: one, or the tasks of an array."""
        found = self._find_any(reference, visibility)
        if ARRAY_ID.fullmatch(found):
            return self._core.queries.task_ids(found)
        return [found]

    def _find_any(self, reference: str, visibility: Visibility) -> str:
        """The id of the job or of the array that `reference` means."""
        queries = self._core.queries
        found = queries.find_job_ids(reference, visibility.user, visibility.hidden)
        if len(found) == 1 and not found[0].endswith(reference):
            return self._named(reference, found[0])
        if not found:
            found = queries.find_array_ids(reference, visibility.hidden)
        if not found:
            found = self._find_task(reference, visibility)
        if not found:
            raise _unknown(reference)
        if len(found) > 1:
            raise InvalidInputError.of(
                "job",
                f"{reference!r} could be {', '.join(found)}",
                "give more of the id",
            )
        return found[0]

    def _find_task(self, reference: str, visibility: Visibility) -> list[str]:
        match = _TASK.fullmatch(reference)
        if match is None:
            return []
        try:
            array_id = self._find_any(match[1], visibility)
        except NotFoundError:
            return []
        if not ARRAY_ID.fullmatch(array_id):
            return []
        index = int(match[2])
        job_id = self._core.queries.task_id(array_id, index)
        row = self._core.queries.array(array_id)
        if job_id is None and row is not None:
            raise _no_task(match[1], index, row["tasks"])
        return [] if job_id is None else [job_id]

    def _named(self, name: str, newest: str) -> str:
        """What has this name, of which `newest` is the newest job: that, or the array
        of which it is a task. A task may have got a name of its own.
        """
        array_id = self._core.queries.array_of(newest)
        array = self._core.queries.array(array_id) if array_id else None
        return array["id"] if array and array["name"] == name else newest


def _no_task(array: str, index: int, tasks: str) -> NotFoundError:
    if index in array_range(tasks).indices:
        return NotFoundError(
            f"The task {index} of the array {array!r} is no longer kept.",
            "`[retention]` in the configuration says for how long jobs are kept.",
        )
    return NotFoundError(
        f"The array {array!r} has no task {index}.",
        f"Its tasks are {shortened(tasks)}.",
    )


def _unknown(reference: str) -> NotFoundError:
    return NotFoundError(
        f"There is no job {reference!r}.", "`gpuyard jobs` lists them."
    )
