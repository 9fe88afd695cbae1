"""Channels through the yard: a stream from the solver to our hub, or the input and output of its job."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuyard.domain.errors import GpuyardError
from gpuyard.verification.channel import Channel, GoneError, Order
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.clock import cancelled
from gpuyard.verification.executors import Executor
from gpuyard.verification.hub import Hub, Line, LineLostError, release
from gpuyard.verification.protocol import Conversation, Message, Task, parse_output
from gpuyard.verification.times import at, now
from gpuyard.verification.yard import SolverJobs

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncJobHandle

# What a solver may take for everything after its answers: claims and the way of the file.
AFTER_S = 600.0


@dataclass(frozen=True, slots=True)
class YardChannels:
    """Opens channels through the yard: over the hub for executors that can reach it."""

    jobs: SolverJobs
    hub: Hub | None
    solve_s: Mapping[Class, float]
    """How long each class may solve that is in the batch."""

    def open(self, executor: Executor, check_id: str, order: Order) -> Channel:
        """A channel; its job is submitted by `ready` or `reveal`."""
        traits, after_s = TRAITS[executor.gpu_class], 3 * self.solve_s[executor.gpu_class] + AFTER_S
        if executor.settings.stream and self.hub is not None:
            # The barrier is one for all classes, so the quickest waits for the slowest.
            wait_s = max(TRAITS[cls].spin_up_s + TRAITS[cls].prepare_s for cls in self.solve_s)
            return StreamChannel(self.jobs, self.hub, executor, check_id, order, wait_s, wait_s + after_s)
        return OutputChannel(self.jobs, executor, check_id, order, traits.prepare_s + after_s)


class StreamChannel:
    """A solver that dials in and gets the seed when everybody does, after `wait_s` at the latest."""

    def __init__(
        self, jobs: SolverJobs, hub: Hub, executor: Executor, check_id: str, order: Order, wait_s: float, limit_s: float
    ) -> None:
        self.job_id: str | None = None
        self._jobs, self._hub, self._executor, self._check_id, self._order = jobs, hub, executor, check_id, order
        self._wait_s, self._limit_s = wait_s, limit_s
        self._job: AsyncJobHandle | None = None
        self._line: Line | None = None

    async def ready(self) -> Message:
        traits = TRAITS[self._executor.gpu_class]
        stream = self._hub.invite(self._check_id, valid_s=self._wait_s + self._limit_s, wait_s=self._wait_s)
        order = {**self._order, "stream": stream}
        self._job = await self._jobs.submit(self._executor, self._check_id, order, self._limit_s)
        self.job_id = self._job.id
        await self._jobs.begun(self._job, traits.spin_up_s)
        async with asyncio.timeout(traits.prepare_s):
            self._line = await self._arrival(self._job)
            return await self.receive()

    async def _arrival(self, job: "AsyncJobHandle") -> Line:
        """The solver's line, if it comes before its job is over."""
        line = asyncio.ensure_future(self._hub.expect(self._check_id))
        over = asyncio.ensure_future(self._jobs.over(job))
        try:
            await asyncio.wait({line, over}, return_when=asyncio.FIRST_COMPLETED)
            if line.done():
                return line.result()
            over.result()
            raise GoneError(f"{await self._jobs.why_over(job)}.")
        finally:
            await cancelled(line, over)

    async def reveal(self, seed: int) -> float:
        assert self._line is not None
        sent = release([self._line], {self._check_id: seed}).get(self._check_id)
        if sent is None:
            raise GoneError("the solver left before the seed was sent.")
        return at(sent)

    async def receive(self) -> Message:
        assert self._line is not None
        try:
            return await self._line.receive()
        except LineLostError as error:
            raise GoneError(f"{await self._why() or error}.") from error

    async def _why(self) -> str:
        """Why its job is over, if it is."""
        with suppress(GpuyardError):
            if self._job and (await self._job.refresh()).state.terminal:
                return await self._jobs.why_over(self._job)
        return ""

    async def close(self) -> None:
        self._hub.dismiss(self._check_id)
        job, self._job = self._job, None
        if job:
            await self._jobs.end(job)


class OutputChannel:
    """A solver that cannot dial in: the seed is in its order, and what it says in its job's output."""

    def __init__(
        self, jobs: SolverJobs, executor: Executor, check_id: str, order: Order, limit_s: float,
        task: Task = Task.SOLVE,
    ) -> None:  # fmt: skip
        self.job_id: str | None = None
        self._jobs, self._executor, self._check_id, self._order = jobs, executor, check_id, order
        self._limit_s = limit_s
        self._said = Conversation(task, seeded=True)
        self._job: AsyncJobHandle | None = None
        self._lines: AsyncGenerator[bytes] | None = None

    async def ready(self) -> None:
        return None

    async def reveal(self, seed: int) -> float:
        await self.start({**self._order, "seed": seed})
        return now()

    async def start(self, order: Order) -> None:
        """Submit it and wait until it runs; NotStartedError."""
        self._job = await self._jobs.submit(self._executor, self._check_id, order, self._limit_s)
        self.job_id = self._job.id
        await self._jobs.begun(self._job, TRAITS[self._executor.gpu_class].spin_up_s)
        self._lines = self._jobs.lines(self._job)

    async def receive(self) -> Message:
        assert self._lines is not None and self._job is not None
        async for line in self._lines:
            message = parse_output(line.decode(errors="replace"))
            if message is not None:
                return self._said.take(message)
        await self._jobs.over(self._job)
        raise GoneError(f"{await self._jobs.why_over(self._job)}.")

    async def close(self) -> None:
        if self._lines:
            await self._lines.aclose()
        job, self._job = self._job, None
        if job:
            await self._jobs.end(job)
