"""Channels: the connection to one executor's solver.

Either the solver connects to our hub (a stream), or the seed is in the job's input and
the messages are in its output.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpuyard.domain.errors import GpuyardError
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.clock import cancelled, steady_now, steady_time
from gpuyard.verification.executors import Executor
from gpuyard.verification.hub import ConnectionLostError, Hub, SolverConnection, release
from gpuyard.verification.protocol import (
    Conversation,
    Message,
    OrderDocument,
    ProtocolError,
    SolverStage,
    SolverTask,
    parse_output,
)
from gpuyard.verification.solver_jobs import SolverJobs

if TYPE_CHECKING:
    from gpuyard.client.aio_job import AsyncJobHandle


class GoneError(GpuyardError):
    """The solver ended before it had sent everything.

    `ours`: a person or a budget of ours ended its job.
    """

    code = "verification_gone"

    def __init__(self, message: str, remedy: str = "", *, ours: bool = False) -> None:
        super().__init__(message, remedy)
        self.ours = ours


class Channel(Protocol):
    """The connection to one solver.

    All methods but `close` raise GoneError when the solver has ended, and other
    GpuyardErrors when the instance does not answer.
    """

    job_id: str | None

    @property
    def heard_at(self) -> float:
        """When the last message arrived (UTC seconds)."""
        ...

    async def ready(self) -> Message | None:
        """Wait until the solver can be given the seed, and return its first message.

        Returns None when the solver is started only with the seed. Raises
        NotStartedError, ProtocolError, and TimeoutError when the job started but the
        solver is not ready in time.
        """
        ...

    async def reveal(self, seed: int) -> float:
        """Give the solver the seed; returns when that was (UTC seconds).

        Raises NotStartedError, and ProtocolError when it has sent results before.
        """
        ...

    async def receive(self) -> Message:
        """Return the next message; ProtocolError when it is invalid or not due."""
        ...

    async def send_salt(self, salt: str) -> bool:
        """Tell the solver the salt of its claims; False where it hears nothing."""
        ...

    async def close(self) -> None:
        """Release the solver and wait for its job to end. Never raises."""
        ...


class ChannelOpener(Protocol):
    """Opens channels: through the instance, or in tests directly to a solver."""

    def open(self, executor: Executor, check_id: str, order: OrderDocument) -> Channel:
        """Return a new channel. The order does not contain the seed."""
        ...


# Time for everything after the hash: the claims and the transfer of the file.
AFTER_S = 600.0


@dataclass(frozen=True, slots=True)
class InstanceChannels:
    """Opens channels through the instance, by a stream where possible."""

    jobs: SolverJobs
    hub: Hub | None
    solve_s: Mapping[Class, float]
    """Seconds that each class of the batch may take to solve."""

    def open(self, executor: Executor, check_id: str, order: OrderDocument) -> Channel:
        """Return a channel; `ready` or `reveal` submits its job."""
        traits = TRAITS[executor.gpu_class]
        after_s = 3 * self.solve_s[executor.gpu_class] + AFTER_S
        if executor.settings.stream and self.hub is not None:
            # All classes share one barrier, so the fastest waits for the slowest.
            wait_s = max(
                TRAITS[cls].spin_up_s + TRAITS[cls].prepare_s for cls in self.solve_s
            )
            return StreamChannel(
                self.jobs, self.hub, executor, check_id, order, wait_s, wait_s + after_s
            )
        return OutputChannel(
            self.jobs, executor, check_id, order, traits.prepare_s + after_s
        )


class StreamChannel:
    """A solver that connects to the hub.

    It gets the seed at the barrier, together with the others, after `wait_s` at the
    latest.
    """

    def __init__(
        self,
        jobs: SolverJobs,
        hub: Hub,
        executor: Executor,
        check_id: str,
        order: OrderDocument,
        wait_s: float,
        limit_s: float,
    ) -> None:
        self.job_id: str | None = None
        self._jobs = jobs
        self._hub = hub
        self._executor = executor
        self._check_id = check_id
        self._order = order
        self._wait_s = wait_s
        self._limit_s = limit_s
        self._job: AsyncJobHandle | None = None
        self._line: SolverConnection | None = None

    @property
    def heard_at(self) -> float:
        return steady_time(self._line.heard_at) if self._line else steady_now()

    async def ready(self) -> Message:
        traits = TRAITS[self._executor.gpu_class]
        stream = self._hub.invite(
            self._check_id, valid_s=self._wait_s + self._limit_s, wait_s=self._wait_s
        )
        order = {**self._order, "stream": stream}
        self._job = await self._jobs.submit(
            self._executor, self._check_id, order, self._limit_s
        )
        self.job_id = self._job.id
        await self._jobs.wait_until_started(self._executor, self._job, traits.spin_up_s)
        async with asyncio.timeout(traits.prepare_s):
            self._line = await self._arrival(self._job)
            return await self.receive()

    async def _arrival(self, job: "AsyncJobHandle") -> SolverConnection:
        """Wait for the solver's connection; GoneError if its job ends first."""
        line = asyncio.ensure_future(self._hub.expect(self._check_id))
        over = asyncio.ensure_future(self._jobs.wait_until_over(job))
        try:
            await asyncio.wait({line, over}, return_when=asyncio.FIRST_COMPLETED)
            if line.done():
                return line.result()
            over.result()
            raise await _gone(self._jobs, job, "")
        finally:
            await cancelled(line, over)

    async def reveal(self, seed: int) -> float:
        assert self._line is not None
        sent = release([self._line], {self._check_id: seed}).get(self._check_id)
        if sent is None and self._line.unread:
            raise ProtocolError(
                f"it sent {self._line.unread} bytes before the seed was out"
            )
        if sent is None:
            raise GoneError("the solver left before the seed was sent.")
        return steady_time(sent)

    async def receive(self) -> Message:
        assert self._line is not None
        try:
            return await self._line.receive()
        except ConnectionLostError as error:
            raise await self._gone(error) from error

    async def send_salt(self, salt: str) -> bool:
        assert self._line is not None
        try:
            await self._line.send({"type": "salt", "salt": salt})
        except ConnectionLostError as error:
            raise await self._gone(error) from error
        return True

    async def _gone(self, lost: ConnectionLostError) -> GoneError:
        """Why its connection was lost."""
        with suppress(GpuyardError):
            if self._job:
                await self._job.refresh()
                return await _gone(self._jobs, self._job, f"{lost}")
        return GoneError(f"{lost}.")

    async def close(self) -> None:
        self._hub.dismiss(self._check_id)
        job = self._job
        self._job = None
        if job:
            await self._jobs.end(job)


class OutputChannel:
    """A solver that cannot connect to us.

    The seed is in its order, and its messages are in the output of its job.
    """

    def __init__(
        self,
        jobs: SolverJobs,
        executor: Executor,
        check_id: str,
        order: OrderDocument,
        limit_s: float,
        task: SolverTask = SolverTask.SOLVE,
    ) -> None:
        self.job_id: str | None = None
        self._jobs = jobs
        self._executor = executor
        self._check_id = check_id
        self._order = order
        self._limit_s = limit_s
        self._said = Conversation(task, seeded=True)
        self._job: AsyncJobHandle | None = None
        self._lines: AsyncGenerator[bytes] | None = None
        self.heard_at = steady_now()

    async def ready(self) -> None:
        return None

    async def reveal(self, seed: int) -> float:
        await self.start({**self._order, "seed": seed})
        return steady_now()

    async def start(self, order: OrderDocument) -> None:
        """Submit the job and wait until it runs; NotStartedError."""
        self._job = await self._jobs.submit(
            self._executor, self._check_id, order, self._limit_s
        )
        self.job_id = self._job.id
        await self._jobs.wait_until_started(
            self._executor, self._job, TRAITS[self._executor.gpu_class].spin_up_s
        )
        self._lines = self._jobs.lines(self._job)

    async def receive(self) -> Message:
        assert self._lines is not None and self._job is not None
        async for line in self._lines:
            self.heard_at = steady_now()
            message = parse_output(line.decode(errors="replace"))
            if message is not None:
                return self._said.take(message)
        await self._jobs.wait_until_over(self._job)
        raise await _gone(self._jobs, self._job, "")

    async def send_salt(self, salt: str) -> bool:
        return False

    async def close(self) -> None:
        if self._lines:
            await self._lines.aclose()
        job = self._job
        self._job = None
        if job:
            # One that has not said everything has nothing more that anybody waits for.
            over = self._said.stage is SolverStage.OVER
            await self._jobs.end(job, at_once=not over)


async def _gone(jobs: SolverJobs, job: "AsyncJobHandle", meanwhile: str) -> GoneError:
    """Why a job is no longer there; `meanwhile`: what is known while it still is."""
    ours = await jobs.is_ended_by_us(job)
    over = job.info.state.terminal
    words = await jobs.why_over(job) if over else meanwhile
    return GoneError(f"{words}.", ours=ours)
