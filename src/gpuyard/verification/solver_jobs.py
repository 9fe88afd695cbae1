"""Runs solvers as jobs of the instance."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpuyard.client import calls
from gpuyard.domain.errors import GpuyardError, UnreachableError
from gpuyard.domain.events import EventKind
from gpuyard.domain.jobs import Job
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import JobState
from gpuyard.verification.executors import Executor
from gpuyard.verification.packing import pack_solver, remove_program
from gpuyard.verification.protocol import LONGEST_LINE, WORD, OrderDocument, one_line
from gpuyard.verification.waiting import SOLVER_LABEL, Obstacle, Wait, wait_of

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncClient
    from gpuyard.client.aio_job import AsyncJobHandle


class NotStartedError(GpuyardError):
    """The solver's job did not start in time; `obstacle` says why."""

    code = "verification_not_started"

    def __init__(
        self, message: str, remedy: str = "", obstacle: Obstacle = Obstacle.UNKNOWN
    ) -> None:
        super().__init__(message, remedy)
        self.obstacle = obstacle


_PAUSE_S = (0.1, 2.0)
# How long a released solver may take to exit.
_FAREWELL_S = 10.0
_LONGEST = LONGEST_LINE + len(WORD)
_LONGEST_WORDS = 300
# Labels stay on the server; names go to the executor.
_EXECUTOR = "verified"
# How often it is asked what a job waits for while its time to begin runs.
_LOOKS = 2
# How many of the jobs are named behind which one waits.
_MOST_NAMED = 3
# The newest events of a job, among which is why it was ended.
_EVENTS = 50


class SolverJobs:
    """Submits solvers and watches their jobs. `programs`: the folder of their files."""

    def __init__(self, client: "AsyncClient", programs: Path) -> None:
        self._client = client
        self._programs = programs
        self._packed: dict[str, Path] = {}

    async def submit(
        self, executor: Executor, check_id: str, order: OrderDocument, limit_s: float
    ) -> "AsyncJobHandle":
        """Submit the job once: after a crash, the same check finds the same job."""
        program = executor.settings.solver
        packed = None
        if program is None:
            packed = await asyncio.to_thread(pack_solver, self._programs)
            program = str(packed)
        try:
            job = await self._client.run(
                {
                    **executor.job(program, json.dumps(order)),
                    "timeout_s": limit_s,
                    "labels": {SOLVER_LABEL: check_id, _EXECUTOR: _mark_of(executor)},
                    "idempotency_key": check_id,
                }
            )
        except BaseException:
            if packed:
                remove_program(packed)
            raise
        if packed:
            self._packed[job.id] = packed
        return job

    async def wait_until_started(
        self, executor: Executor, job: "AsyncJobHandle", within_s: float
    ) -> Job:
        """Wait until the job runs or has ended; NotStartedError after `within_s`.

        Who gets it only when most of the time is over is not blamed for the rest.
        """
        wait = Wait()
        for _ in range(_LOOKS):
            if await _begins(job, within_s / _LOOKS):
                return job.info
            found = await wait_of(self._client, executor, job.info)
            if not (await job.refresh()).attempts:  # else it was just handed over
                wait = found
        others = ", ".join(wait.behind[:_MOST_NAMED])
        raise NotStartedError(
            f"job {job.id} has not begun within {within_s:g} s"
            + (f", behind {others}." if others else "."),
            f"`gpuyard why {job.id}` says what it waits for.",
            wait.obstacle,
        )

    async def is_ended_by_us(self, job: "AsyncJobHandle") -> bool:
        """Whether a person or a budget of ours ends the job.

        What an agent or another queue says of that does not count: only that the
        instance began to end it. A job that nobody got could be ended by nobody else.
        """
        if job.info.state is JobState.CANCELLED and not job.info.attempts:
            return True
        try:
            found = await self._client.call(calls.events(None, _EVENTS, job.id))
        except UnreachableError:
            raise
        except GpuyardError:
            return False
        return any(map(_is_end_by_us, found))

    async def wait_until_over(self, job: "AsyncJobHandle") -> Job:
        """Wait until the job has ended."""
        pause = _PAUSE_S[0]
        while not (await job.refresh()).state.terminal:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_S[1])
        return job.info

    async def lines(self, job: "AsyncJobHandle") -> AsyncGenerator[bytes]:
        """Yield the lines of the job's output until it has ended.

        Lines too long for a message are cut off. A broken connection is resumed where
        it was.
        """
        told = 0
        while True:
            number = 0
            try:
                async with aclosing(
                    _lines_of(self._client.log_bytes(job.id, follow=True))
                ) as lines:
                    async for line in lines:
                        number += 1
                        if number > told:
                            told = number
                            yield line
                return
            except UnreachableError:
                await asyncio.sleep(_PAUSE_S[1])
                await job.refresh()  # raises when the instance is gone

    async def why_over(self, job: "AsyncJobHandle") -> str:
        """Why a job ended, in words; for a failed one with its last line of output."""
        reason = _why_over(job.info)
        if job.info.exit_code:
            with suppress(GpuyardError):
                async with aclosing(
                    _lines_of(self._client.log_bytes(job.id, lines=1))
                ) as lines:
                    async for line in lines:
                        said = line[:_LONGEST_WORDS].decode(errors="replace").strip()
                        return f"{reason}, and said last: {one_line(said)}"
        return reason

    async def end(self, job: "AsyncJobHandle", *, at_once: bool = False) -> None:
        """Wait for the job to end by itself, or cancel it after a while or `at_once`.

        Errors of the instance are ignored.
        """
        with suppress(GpuyardError):
            try:
                async with asyncio.timeout(0 if at_once else _FAREWELL_S):
                    await self.wait_until_over(job)
            except TimeoutError:
                await job.cancel()
        if packed := self._packed.pop(job.id, None):
            await asyncio.to_thread(remove_program, packed)

    async def end_left_behind(self, executor: Executor, kind: str) -> None:
        """End jobs of an executor that a process left behind when it was killed.

        `kind`: how the ids of their checks begin.
        """
        live = [state.value for state in JobState if not state.terminal]
        label = {_EXECUTOR: _mark_of(executor)}
        found = [
            job.id
            async for job in self._client.jobs(state=live, label=label)
            if job.labels.get(SOLVER_LABEL, "").startswith(f"{kind}_")
        ]
        for job_id in found:
            job = await self._client.job(job_id)
            await job.cancel()
            await self.wait_until_over(job)


async def _begins(job: "AsyncJobHandle", within_s: float) -> bool:
    """Wait until the job runs or has ended; False after `within_s`."""
    pause = _PAUSE_S[0]
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not _has_begun(await job.refresh()):
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _PAUSE_S[1])
            return True
    return False


def _is_end_by_us(event: Mapping[str, Any]) -> bool:
    if event["kind"] == EventKind.JOB_CANCEL_REQUESTED:
        return True
    is_ending = event["kind"] == EventKind.ATTEMPT_ENDING
    return is_ending and event["data"].get("reason") == Reason.BUDGET


def _mark_of(executor: Executor) -> str:
    """The label of the jobs on an executor: names may have what labels may not."""
    return sha256(executor.name.encode()).hexdigest()[:32]


def _has_begun(job: Job) -> bool:
    return job.state.terminal or any(
        attempt.started_at is not None for attempt in job.attempts
    )


def _why_over(job: Job) -> str:
    """Why a job ended, in words."""
    last = job.attempts[-1] if job.attempts else None
    words = [job.reason or "", (last.message if last else None) or ""]
    code = f"exit code {job.exit_code}" if job.exit_code else ""
    return f"job {job.id} is {job.state.value}" + "".join(
        f": {word}" for word in dict.fromkeys((*words, code)) if word
    )


async def _lines_of(parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream of parts.

    Of a line that is too long only its beginning is returned, which the parser refuses.
    """
    held = b""
    cut = False
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
                held = b""
                cut = True
    if held and not cut:
        yield held
