"""Submits attempts to Slurm. Equal attempts that arrive together become one job array,
which takes one call instead of many.

An array has its own id, which is its comment in Slurm, and a folder `arrays/ID` with
the list of its attempts and a link to the folder of each. Every attempt has a list of
the arrays it was put into. All of this is written before the call, so that each attempt
is found even if the reply is lost.
"""

import asyncio
import shlex
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from gpuyard.domain.ids import new_id
from gpuyard.providers.attempt_folder import AttemptFolder
from gpuyard.providers.runner_files import Content
from gpuyard.providers.slurm.client import SlurmClient, SlurmRefusedError, SlurmRequest
from gpuyard.providers.slurm.job_index import JobIndex, is_id, text_of
from gpuyard.providers.slurm.records import SlurmRow, is_job_id, unlisted_jobs
from gpuyard.providers.slurm.site import SlurmSite

MAX_ARRAY_SIZE = 100
"""The most attempts in one array. Slurm's default limit is 1000."""
_Waiting = deque[tuple[str, asyncio.Future[str]]]
"""Attempts to submit, each with the future that gets its job id."""


class SlurmSubmissions:
    """Sends attempts to Slurm; their orders are already written.

    `python` is the command that runs the runner on the nodes.
    """

    def __init__(
        self,
        slurm: SlurmClient,
        site: SlurmSite,
        jobs: JobIndex,
        spool: Path,
        python: str,
    ) -> None:
        self._slurm = slurm
        self._site = site
        self._jobs = jobs
        self._spool = spool
        self._python = python
        self._waiting: dict[SlurmRequest, _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, request: SlurmRequest, attempt_id: str) -> str:
        """Submit an attempt; returns its job.

        While equal attempts are being sent, it waits for the next call.
        SlurmRefusedError when Slurm refuses it.
        """
        if request.nodes > 1:
            return await self._send_one(request, attempt_id)
        job: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(request)
        if waiting is None:
            waiting = deque[tuple[str, asyncio.Future[str]]]()
            self._waiting[request] = waiting
            task = asyncio.create_task(self._send_waiting(request, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting.append((attempt_id, job))
        return await job

    async def _send_waiting(self, request: SlurmRequest, waiting: _Waiting) -> None:
        while waiting:
            size = min(len(waiting), MAX_ARRAY_SIZE)
            batch = [waiting.popleft() for _ in range(size)]
            results = await self._send(request, [attempt_id for attempt_id, _ in batch])
            for (_, job), result in zip(batch, results, strict=True):
                if job.done():
                    continue  # its caller was cancelled
                if isinstance(result, BaseException):
                    job.set_exception(result)
                else:
                    job.set_result(result)
        del self._waiting[request]

    async def _send(
        self, request: SlurmRequest, attempt_ids: Sequence[str]
    ) -> Sequence[str | BaseException]:
        """The job or the error of each attempt.

        The attempts of a refused array are sent one by one, so that each gets its own
        answer.
        """
        if len(attempt_ids) > 1:
            (answer,) = await asyncio.gather(
                self._send_array(request, attempt_ids), return_exceptions=True
            )
            if not isinstance(answer, BaseException):
                return answer
            if not isinstance(answer, SlurmRefusedError):
                return [answer] * len(attempt_ids)
        calls = [self._send_one(request, attempt_id) for attempt_id in attempt_ids]
        return await asyncio.gather(*calls, return_exceptions=True)

    async def _send_one(self, request: SlurmRequest, attempt_id: str) -> str:
        folder = self._jobs.folder(attempt_id)
        command = shlex.join([self._python, str(folder.runner), str(folder.path)])
        script = f"#!/bin/sh\nexec {command}\n"
        job_id = await self._slurm.submit(request, script, attempt_id, folder.messages)
        await self._jobs.add({job_id: attempt_id})
        return job_id

    async def _send_array(
        self, request: SlurmRequest, attempt_ids: Sequence[str]
    ) -> Sequence[str]:
        array_id = new_id("array")
        folders = [self._jobs.folder(attempt_id) for attempt_id in attempt_ids]
        await self._write_array(array_id, folders)
        array_folder = self._array_folder(array_id)
        command = shlex.join([self._python, str(folders[0].runner)])
        links = shlex.quote(str(array_folder))
        attempt_folder = f'"$(readlink -f {links}/"$SLURM_ARRAY_TASK_ID")"'
        script = f"#!/bin/sh\nexec {command} {attempt_folder}\n"
        output = array_folder / "%a" / folders[0].messages.name
        number = await self._slurm.submit(
            request, script, array_id, output, len(attempt_ids)
        )
        job_ids = [f"{number}_{index}" for index in range(len(attempt_ids))]
        await self._jobs.add(dict(zip(job_ids, attempt_ids, strict=True)))
        return job_ids

    async def _write_array(
        self, array_id: str, folders: Sequence[AttemptFolder]
    ) -> None:
        """Write the array's folder, and add the array to the list of each attempt."""
        array_folder = self._array_folder(array_id)
        old_lists = await self._site.read_all([_arrays_file(item) for item in folders])
        attempt_ids = "\n".join(folder.attempt_id for folder in folders)
        files = {array_folder / "attempts": attempt_ids.encode()}
        links: dict[Path, str] = {}
        for index, folder in enumerate(folders):
            path = _arrays_file(folder)
            old_list = text_of(old_lists.get(path))
            files[path] = f"{old_list}{array_id} {index}\n".encode()
            links[array_folder / str(index)] = f"../../{folder.attempt_id}"
        await self._site.write(files, links)

    def _array_folder(self, array_id: str) -> Path:
        return self._spool / "arrays" / array_id

    async def find(
        self, attempt_id: str, queue: Callable[[], Awaitable[list[SlurmRow]]]
    ) -> str | None:
        """The job that runs this attempt; None when there is none.

        If Slurm has several, all but the first are cancelled.
        """
        folder = self._jobs.folder(attempt_id)
        arrays_file = _arrays_file(folder)
        files = await self._site.read_all([folder.job, folder.order, arrays_file])
        if not files:
            return None  # every submission begins with its folder
        job_id = text_of(files.get(folder.job))
        if is_job_id(job_id):
            return job_id
        rows = await queue()
        indices = _read_arrays(files.get(arrays_file))
        labels = {(attempt_id, ""), *indices.items()}
        own_rows = [row for row in rows if (row.attempt_id, row.index) in labels]
        own_rows.sort(key=lambda row: row.order)
        job_ids = [row.job_id for row in own_rows]
        if not job_ids:
            job_ids = await self._unlisted(rows, indices)
        if not job_ids:
            return None
        await self._jobs.add({job_ids[0]: attempt_id})
        for job_id in job_ids[1:]:
            await self._slurm.cancel(job_id)
        return job_ids[0]

    async def _unlisted(
        self, rows: Sequence[SlurmRow], indices: Mapping[str, str]
    ) -> list[str]:
        """The existing jobs at these indices of arrays.

        The queue may list an array without listing each of its jobs.
        """
        array_indices = {
            row.job_id.partition("_")[0]: indices[row.attempt_id]
            for row in rows
            if row.attempt_id in indices
        }
        job_ids = [f"{number}_{index}" for number, index in array_indices.items()]
        if not job_ids:
            return []
        listed = {row.job_id for row in rows}
        gone = {row.job_id for row in await self._slurm.gone(job_ids)}
        return [
            job_id
            for job_id in job_ids
            if job_id in gone or unlisted_jobs(job_id) in listed
        ]

    async def forget(self, attempt_id: str) -> None:
        """Remove the attempt's folder, and arrays of which no attempt is left."""
        folder = self._jobs.folder(attempt_id)
        arrays_file = _arrays_file(folder)
        files = await self._site.read_all([arrays_file])
        await self._site.remove(folder.path)
        for array_id in _read_arrays(files.get(arrays_file)):
            array_folder = self._array_folder(array_id)
            listed = text_of(await self._site.read(array_folder / "attempts"))
            names = [name for name in listed.split() if is_id(name)]
            orders = [self._jobs.folder(name).order for name in names]
            if not await self._site.read_all(orders):
                await self._site.remove(array_folder)


def _arrays_file(folder: AttemptFolder) -> Path:
    """The list of arrays that an attempt was put into, with its index in each."""
    return folder.path / "arrays"


def _read_arrays(listed: Content | None) -> dict[str, str]:
    """The attempt's index in each array, from its list."""
    parts = [line.partition(" ") for line in text_of(listed).splitlines()]
    return {array_id: index for array_id, _, index in parts if is_id(array_id)}
