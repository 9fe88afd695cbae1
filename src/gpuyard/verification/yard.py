"""The yard as verification sees it: solvers are jobs that go where they are told, and end when they are let go."""

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpuyard.domain.errors import GpuyardError, UnreachableError
from gpuyard.domain.jobs import Job
from gpuyard.verification.channel import NotStartedError, Order
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import LONGEST_LINE, WORD, one_line

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncClient, AsyncJobHandle

_PAUSE_S = (0.1, 2.0)
# How long a solver that was let go may take to leave.
_FAREWELL_S = 10.0
_LONGEST = LONGEST_LINE + len(WORD)
_LONGEST_WORDS = 300
SOLVER = Path(__file__).parent / "solver"


def lay_out(folder: Path) -> Path:
    """The solver's files in a folder of their own below `folder`, which jobs can be given as theirs."""
    files = sorted(path for path in SOLVER.rglob("*.py"))
    digest = sha256(b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)).hexdigest()[:16]
    target = folder / f"solver-{digest}"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f"{target.name}.{id(files):x}"
        shutil.copytree(SOLVER, fresh, ignore=shutil.ignore_patterns("__pycache__"))
        with suppress(OSError):  # another process was first
            fresh.rename(target)
        shutil.rmtree(fresh, ignore_errors=True)
    return target


class SolverJobs:
    """Submits solvers through a client and watches them. `folder` holds the solver's files."""

    def __init__(self, client: "AsyncClient", folder: Path) -> None:
        self._client, self._folder = client, folder

    async def submit(self, executor: Executor, check_id: str, order: Order, limit_s: float) -> "AsyncJobHandle":
        """Queue it, once: asked again after a crash, the same job is found."""
        return await self._client.run({
            **executor.job(f"verify {executor.name}"[:200], json.dumps(order), str(self._folder)),
            "timeout_s": limit_s, "labels": {"verification": check_id}, "idempotency_key": check_id,
        })  # fmt: skip

    async def begun(self, job: "AsyncJobHandle", within_s: float) -> Job:
        """The job, once it runs or is over; NotStartedError when it still waits, and then it is called off."""
        pause = _PAUSE_S[0]
        try:
            async with asyncio.timeout(within_s):
                while not _has_begun(await job.refresh()):
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, _PAUSE_S[1])
        except TimeoutError:
            waits = f"job {job.id} has not begun within {within_s:g} s"
            raise NotStartedError(f"{waits}.", f"`gpuyard why {job.id}` says what it waited for.") from None
        return job.info

    async def over(self, job: "AsyncJobHandle") -> Job:
        """The job, once it is over."""
        pause = _PAUSE_S[0]
        while not (await job.refresh()).state.terminal:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_S[1])
        return job.info

    async def lines(self, job: "AsyncJobHandle") -> AsyncGenerator[bytes]:
        """The lines of its output until it is over; one that is too long for a message is cut off.

        A connection that broke is taken up again where it was.
        """
        told = 0
        while True:
            number = 0
            try:
                async with aclosing(_cut(self._client.log_bytes(job.id, follow=True))) as lines:
                    async for line in lines:
                        number += 1
                        if number > told:
                            told = number
                            yield line
                return
            except UnreachableError:
                await asyncio.sleep(_PAUSE_S[1])
                await job.refresh()  # raises where nobody is there any more

    async def why_over(self, job: "AsyncJobHandle") -> str:
        """Why a job that is over ended, in words: the yard's, and the last that it said itself where it failed."""
        reason = _why_over(job.info)
        if job.info.exit_code:
            with suppress(GpuyardError):
                async with aclosing(_cut(self._client.log_bytes(job.id, lines=1))) as lines:
                    async for line in lines:
                        said = line[:_LONGEST_WORDS].decode(errors="replace").strip()
                        return f"{reason}, and said last: {one_line(said)}"
        return reason

    async def end(self, job: "AsyncJobHandle") -> None:
        """See it end by itself, or call it off; a yard that is away is not waited for."""
        with suppress(GpuyardError):
            try:
                async with asyncio.timeout(_FAREWELL_S):
                    await self.over(job)
            except TimeoutError:
                await job.cancel()


def _has_begun(job: Job) -> bool:
    return job.state.terminal or any(attempt.started_at is not None for attempt in job.attempts)


def _why_over(job: Job) -> str:
    """Why a job ended, in words."""
    last = job.attempts[-1] if job.attempts else None
    words = [job.reason or "", (last.message if last else None) or ""]
    code = f"exit code {job.exit_code}" if job.exit_code else ""
    return f"job {job.id} is {job.state.value}" + "".join(f": {word}" for word in dict.fromkeys((*words, code)) if word)


async def _cut(parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The lines in parts of a stream; of one that is too long the beginning, which whoever reads it refuses."""
    held, cut = b"", False
    async with aclosing(cast("AsyncGenerator[bytes]", parts)) as stream:
        async for part in stream:
            *whole, held = (held + part).split(b"\n")
            for line in whole:
                if not cut:
                    yield line
                cut = False
            if len(held) > _LONGEST:
                if not cut:
                    yield held
                held, cut = b"", True
    if held and not cut:
        yield held
