"""The provider under test, how to give it work, and a case of the suite."""

import asyncio
import textwrap
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest import SkipTest

from gpuyard.domain.errors import GpuyardError, JobNotFoundError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import GpuSpec, JobConfig, JobResult, JobStatus
from gpuyard.providers.base import GpuProviderInterface

OVER = tuple(status for status in JobStatus if status.is_over)
_NO_GPU = GpuSpec(gpu_count=0)
_TOO_MUCH = GpuSpec(gpu_count=1024)
_LONGEST_PAUSE_S = 0.1
_LONGEST_AFTER_AN_ANSWER_S = 1.0
# Prints a line and stays until it is ended.
STAY = """
    import time
    print("here", flush=True)
    while True:
        time.sleep(0.05)
    """


@dataclass(slots=True)
class Subject:
    """A started provider and how jobs run there.

    `python`: the command of a Python 3 interpreter where jobs run. `image`, `gpu_spec`,
    `options`: those of every job.
    `too_much`: more than the provider can supply. `missing_workdir`: provider options
    that name a folder which is not there, None where jobs have no such option.
    `timeout_minutes`: the shortest that is honoured and long enough for an interpreter
    to start. `patience_s`: the longest that anything asked for may take. `pause_s`:
    between two looks, at least: it grows with the wait, and with the time that a look
    takes.
    """

    provider: GpuProviderInterface
    python: tuple[str, ...] = ("python3",)
    image: str | None = None
    gpu_spec: GpuSpec = _NO_GPU
    too_much: GpuSpec = _TOO_MUCH
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    missing_workdir: Mapping[str, Any] | None = None
    timeout_minutes: float = 0.05
    patience_s: float = 60.0
    pause_s: float = 0.02
    submitted: list[str] = field(default_factory=list[str])

    def job(self, code: str, *arguments: str, **fields: Any) -> JobConfig:
        """A job that runs a Python snippet with these arguments; `fields` are
        JobConfig's, `options` more options.
        """
        options = {**self.options, **fields.pop("options", {})}
        command = (*self.python, "-c", textwrap.dedent(code), *arguments)
        values: dict[str, Any] = {
            "name": "conformance",
            "image": self.image,
            "gpu_spec": self.gpu_spec,
            "command": command,
            "attempt_id": new_id("attempt"),
        }
        return JobConfig(**{**values, **fields}, provider_options=options)

    def has_own(self, call: str) -> bool:
        """True when the provider has this call itself, not only the base class's."""
        own = getattr(type(self.provider), call)
        return own is not getattr(GpuProviderInterface, call)

    async def submit(self, config: JobConfig) -> str:
        """Submit; the reference. The case's end cancels it if it still runs."""
        job_id = await self.provider.submit_job(config)
        self.submitted.append(job_id)
        return job_id

    async def until(self, job_id: str, *wanted: JobStatus) -> JobResult:
        """Wait for one of these states; fails at once when the job ends in another."""
        states = " or ".join(wanted)
        began = time.monotonic()
        while True:
            asked = time.monotonic()
            result = await self.provider.get_job_status(job_id)
            if result.status in wanted:
                return result
            assert not result.status.is_over, (
                f"job {job_id} should be {states}, and is over: {result}"
            )
            assert time.monotonic() - began < self.patience_s, (
                f"job {job_id} should be {states} within {self.patience_s:g} s:"
                f" {result}"
            )
            await self._pause(began, asked)

    async def ended(self, job_id: str) -> JobResult:
        """Wait for the job's end, whichever."""
        return await self.until(job_id, *OVER)

    async def finish(self, config: JobConfig) -> tuple[JobResult, str]:
        """Submit, wait for the end: how it ended, and its whole log."""
        job_id = await self.submit(config)
        result = await self.ended(job_id)
        return result, await self.provider.get_job_logs(job_id)

    async def succeed(self, config: JobConfig) -> str:
        """The whole log of a job that has to complete."""
        result, log = await self.finish(config)
        assert result.status is JobStatus.COMPLETED, (
            f"the job should complete: {result}; its log: {log[-500:]!r}"
        )
        return log

    async def running(self, config: JobConfig) -> str:
        """Submit a job that prints something first of all, and wait until it has."""
        job_id = await self.submit(config)
        await self.until(job_id, JobStatus.RUNNING)
        await self.says(job_id)
        return job_id

    async def says(self, job_id: str, text: str = "\n") -> str:
        """Wait until the log holds `text`; the log."""
        began = time.monotonic()
        while True:
            asked = time.monotonic()
            log = await self.provider.get_job_logs(job_id)
            if text in log:
                return log
            assert time.monotonic() - began < self.patience_s, (
                f"the log of {job_id} should hold {text!r} by now: {log!r}"
            )
            await self._pause(began, asked)

    async def _pause(self, began: float, asked: float) -> None:
        """Leave the provider alone, for longer the longer the wait since `began` lasts
        and the longer the answer took that was `asked` for.
        """
        now = time.monotonic()
        with_the_wait = min(_LONGEST_PAUSE_S, (now - began) / 20)
        with_the_answer = min(_LONGEST_AFTER_AN_ANSWER_S, 2 * (now - asked))
        await asyncio.sleep(max(self.pause_s, with_the_wait, with_the_answer))

    async def failure(self, config: JobConfig) -> str:
        """How a job that cannot run fails, refused at submission or later: the
        explanation.
        """
        try:
            job_id = await self.submit(config)
        except GpuyardError as error:
            return str(error)
        result = await self.ended(job_id)
        assert result.status is JobStatus.FAILED, (
            f"a job that cannot run should fail: {result}"
        )
        return result.error_message or ""

    async def clean_up(self) -> None:
        """Cancel what still runs."""
        for job_id in self.submitted:
            try:
                if await self.provider.cancel_job(job_id):
                    await self.ended(job_id)
            except JobNotFoundError:
                continue


Check = Callable[[Subject], Awaitable[None]]
Open = Callable[[], AbstractAsyncContextManager[Subject]]


@dataclass(frozen=True, slots=True)
class Case:
    """One promise: `shows` says it in words, `check` holds a Subject to it.

    `str(case)` is its name.
    """

    name: str
    shows: str
    check: Check

    def __str__(self) -> str:
        return self.name

    def run(self, open_subject: Open) -> None:
        """Open a subject, check, clean up: for test frameworks without async tests."""
        asyncio.run(self._run(open_subject))

    async def _run(self, open_subject: Open) -> None:
        async with open_subject() as subject:
            try:
                await self.check(subject)
            finally:
                await subject.clean_up()


def case(check: Check) -> Case:
    """The case of a function `check_…`, whose docstring says what it shows."""
    name = getattr(check, "__name__", "").removeprefix("check_")
    return Case(name, (check.__doc__ or "").strip(), check)


def need(condition: object, what: str) -> None:
    """Skip the case unless the provider offers what it is about."""
    if not condition:
        raise SkipTest(what)
