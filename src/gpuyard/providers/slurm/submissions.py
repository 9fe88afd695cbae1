"""Submitting to Slurm. Attempts that come together and need the same become one array: one call in place of many.

An array has an id of its own, which is its comment, and a folder `arrays/ID` with its attempts in order and a link to
the folder of each. Every attempt keeps a list of the arrays it was put into. All of that is written before the call,
so each is found again, whatever becomes of the answer.
"""

import asyncio
import shlex
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from gpuyard.domain.ids import new_id
from gpuyard.providers.folder import AttemptFolder
from gpuyard.providers.slurm.ask import RefusedError, Request, Slurm
from gpuyard.providers.slurm.names import Names
from gpuyard.providers.slurm.site import Site
from gpuyard.providers.slurm.text import Row, others

MOST = 100
"""How many go into one array; sites allow a thousand unless they say otherwise."""


class Submissions:
    """Sends attempts, whose orders are written, to Slurm. `python` runs the runner there."""

    def __init__(self, slurm: Slurm, site: Site, names: Names, spool: Path, python: str) -> None:
        self._slurm = slurm
        self._site = site
        self._names = names
        self._spool = spool
        self._python = python
        self._lines: dict[Request, deque[tuple[str, asyncio.Future[str]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, request: Request, attempt_id: str) -> str:
        """The job of an attempt. While others that need the same are being sent, it waits for the next call.

        RefusedError when Slurm will not have it.
        """
        if request.nodes > 1:
            return await self._send_one(request, attempt_id)
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        line = self._lines.get(request)
        if line is None:
            line = self._lines[request] = deque()
            task = asyncio.create_task(self._empty(request, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        line.append((attempt_id, done))
        return await done

    async def _empty(self, request: Request, line: "deque[tuple[str, asyncio.Future[str]]]") -> None:
        while line:
            now = [line.popleft() for _ in range(min(len(line), MOST))]
            results = await self._send(request, [attempt_id for attempt_id, _ in now])
            for (_, done), result in zip(now, results, strict=True):
                if done.done():
                    continue  # nobody waits for it any more
                if isinstance(result, BaseException):
                    done.set_exception(result)
                else:
                    done.set_result(result)
        del self._lines[request]

    async def _send(self, request: Request, attempt_ids: Sequence[str]) -> Sequence[str | BaseException]:
        """What became of each. A refused array is sent one by one, so that each is refused for itself or not at all."""
        if len(attempt_ids) > 1:
            (answer,) = await asyncio.gather(self._send_array(request, attempt_ids), return_exceptions=True)
            if not isinstance(answer, BaseException):
                return answer
            if not isinstance(answer, RefusedError):
                return [answer] * len(attempt_ids)
        return await asyncio.gather(*(self._send_one(request, i) for i in attempt_ids), return_exceptions=True)

    async def _send_one(self, request: Request, attempt_id: str) -> str:
        folder = self._names.folder(attempt_id)
        script = f"#!/bin/sh\nexec {shlex.join([self._python, str(folder.runner), str(folder.path)])}\n"
        job_id = await self._slurm.submit(request, script, attempt_id, folder.messages)
        await self._names.remember({job_id: attempt_id})
        return job_id

    async def _send_array(self, request: Request, attempt_ids: Sequence[str]) -> Sequence[str]:
        array_id, folders = new_id("array"), [self._names.folder(attempt_id) for attempt_id in attempt_ids]
        place, runner = self._place(array_id), folders[0].runner
        before = await self._site.read_all([_arrays(folder) for folder in folders])
        files = {_arrays(folder): before.get(_arrays(folder), b"") + f"{array_id} {index}\n".encode()
                 for index, folder in enumerate(folders)}  # fmt: skip
        links = {place / str(index): f"../../{attempt_id}" for index, attempt_id in enumerate(attempt_ids)}
        await self._site.write({place / "attempts": "\n".join(attempt_ids).encode(), **files}, links)
        mine = f'"$(readlink -f {shlex.quote(str(place))}/"$SLURM_ARRAY_TASK_ID")"'
        script = f"#!/bin/sh\nexec {shlex.join([self._python, str(runner)])} {mine}\n"
        output = place / "%a" / folders[0].messages.name
        number = await self._slurm.submit(request, script, array_id, output, len(attempt_ids))
        job_ids = [f"{number}_{index}" for index in range(len(attempt_ids))]
        await self._names.remember(dict(zip(job_ids, attempt_ids, strict=True)))
        return job_ids

    def _place(self, array_id: str) -> Path:
        return self._spool / "arrays" / array_id

    async def find(self, attempt_id: str, queue: Callable[[], Awaitable[list[Row]]]) -> str | None:
        """The job that says it is this attempt; one that came twice runs once, whichever is first."""
        folder = self._names.folder(attempt_id)
        there = await self._site.read_all([folder.job, folder.order, _arrays(folder)])
        if not there:
            return None  # every submission begins with its folder
        if folder.job in there:
            return there[folder.job].decode()
        rows, places = await queue(), _places(there.get(_arrays(folder)))
        labels = {(attempt_id, ""), *places}
        mine = sorted((row for row in rows if (row.attempt_id, row.index) in labels), key=lambda row: row.order)
        found = [row.job_id for row in mine] or await self._unlisted(rows, dict(places))
        if not found:
            return None
        await self._names.remember({found[0]: attempt_id})
        for job_id in found[1:]:
            await self._slurm.cancel(job_id)
        return found[0]

    async def _unlisted(self, rows: Sequence[Row], places: Mapping[str, str]) -> list[str]:
        """Those at these places of arrays that are there, of which the queue does not tell each."""
        numbers = {row.job_id.partition("_")[0]: places[row.attempt_id] for row in rows if row.attempt_id in places}
        job_ids = [f"{number}_{index}" for number, index in numbers.items()]
        listed = {row.job_id for row in rows}
        known = {row.job_id for row in await self._slurm.gone(job_ids)} if job_ids else set[str]()
        return [job_id for job_id in job_ids if job_id in known or others(job_id) in listed]

    async def forget(self, attempt_id: str) -> None:
        """Remove the folder of an attempt, and those of arrays of which nobody else is left."""
        folder = self._names.folder(attempt_id)
        places = _places((await self._site.read_all([_arrays(folder)])).get(_arrays(folder)))
        await self._site.remove(folder.path)
        for array_id, _ in places:
            names = await self._site.read(self._place(array_id) / "attempts") or b""
            others = [self._names.folder(name).order for name in names.decode().split()]
            if not await self._site.read_all(others):
                await self._site.remove(self._place(array_id))


def _arrays(folder: AttemptFolder) -> Path:
    """The arrays that an attempt was put into, and its index in each."""
    return folder.path / "arrays"


def _places(listed: bytes | None) -> set[tuple[str, str]]:
    lines = (line.partition(" ") for line in (listed or b"").decode().splitlines())
    return {(array_id, index) for array_id, _, index in lines}
