"""Trusted executors through the yard: their jobs make prompts, and answer ours ahead of time."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuyard.domain.errors import GpuyardError
from gpuyard.domain.ids import new_id
from gpuyard.verification.answers import MOST_BYTES, AnswersError, Parcel, answers_of, most_bytes, read_series
from gpuyard.verification.batch import SETTINGS
from gpuyard.verification.channel import Order
from gpuyard.verification.channels import AFTER_S, OutputChannel
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import (
    Answers,
    Claims,
    Declined,
    Failed,
    Hash,
    ProtocolError,
    Ready,
    Series,
    Task,
)
from gpuyard.verification.times import now
from gpuyard.verification.trusted import ExecutorFault
from gpuyard.verification.yard import SolverJobs


class Run:
    """What a trusted solver said: the file it sent, its hash, its claims, and how long it took from ready to hash and
    from there to the claims.

    Its output comes in pieces, so that several may come at once: its own figures count where they are longer.
    """

    def __init__(self, limit: int) -> None:
        self.parcel = Parcel(limit)
        self.sha256 = ""
        self.solve_s = 0.0
        self.claims: Mapping[str, Any] = {}
        self.claims_s = 0.0


class JobTrusted:
    """A trusted executor. `name` is the executor's."""

    def __init__(self, executor: Executor, jobs: SolverJobs, patience_s: Callable[[], float]) -> None:
        """`patience_s`: how long a series may take to solve."""
        self._executor, self._jobs, self._patience_s = executor, jobs, patience_s

    @property
    def name(self) -> str:
        """The executor's name."""
        return self._executor.name

    async def generate(self, cls: Class, count: int, series: int) -> list[list[str]]:
        """Lists of new prompts; ExecutorFault."""
        wanted = {"series": series, "prompts": count, "seed": secrets.randbits(63)}
        run = await self._run({"task": "generate", "generate": wanted}, Task.GENERATE, MOST_BYTES)
        try:
            return read_series(run.parcel, series, count)
        except AnswersError as error:
            raise ExecutorFault(f"{self.name} made no series: {error}") from error
        finally:
            run.parcel.close()

    async def solve(self, cls: Class, prompts: Sequence[str], seed: int) -> dict[str, str]:
        """The answers by prompt; ExecutorFault."""
        return (await self.solve_timed(prompts, seed))[0]

    async def solve_timed(
        self, prompts: Sequence[str], seed: int, claims: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, str], Run]:
        """As `solve`; with what the solver said besides."""
        order = {"task": "solve", "prompts": list(prompts), "seed": seed, "claims": dict(claims or {})}
        run = await self._run(order, Task.SOLVE, most_bytes(prompts, SETTINGS["max_tokens"]))
        try:
            return answers_of(run.parcel, run.sha256, prompts), run
        except AnswersError as error:
            raise ExecutorFault(f"{self.name} sent no answers: {error}") from error
        finally:
            run.parcel.close()

    async def prove_memory(self, cls: Class, nonce: str, gigabytes: float) -> str:
        """The digest of the memory proof; ExecutorFault."""
        order = {"task": "probe", "claims": {"nonce": nonce, "vram_gb": gigabytes}}
        run = await self._run(order, Task.PROBE, MOST_BYTES)
        proof: Mapping[str, Any] = run.claims.get("vram") or {}
        if not isinstance(proof.get("digest"), str):
            raise ExecutorFault(f"{self.name} cannot prove its own memory: {proof.get('failed', 'it says nothing')}")
        return proof["digest"]

    async def _run(self, work: Order, task: Task, limit: int) -> Run:
        traits, check_id = TRAITS[self._executor.gpu_class], new_id("trusted")
        order: Order = {
            "version": 1, "check": check_id, "settings": dict(SETTINGS), "engine": self._executor.engine, "seed": None,
            **work,
        }  # fmt: skip
        limit_s = traits.prepare_s + self._patience_s() + AFTER_S
        channel, run = OutputChannel(self._jobs, self._executor, check_id, order, limit_s, task), Run(limit)
        try:
            async with asyncio.timeout(traits.spin_up_s + limit_s):
                await channel.start(order)
                await self._hear(channel, run, task)
            return run
        except (TimeoutError, ProtocolError, AnswersError, GpuyardError) as error:
            run.parcel.close()
            raise ExecutorFault(f"{self.name}: {str(error) or 'it took too long'}") from error
        finally:
            await channel.close()

    async def _hear(self, channel: OutputChannel, run: Run, task: Task) -> None:
        ready_at = hashed_at = now()
        while not (run.claims if task is Task.PROBE else run.parcel.complete):
            match await channel.receive():
                case Ready():
                    ready_at = now()
                case Hash() as said:
                    hashed_at = now()
                    run.sha256, run.solve_s = said.sha256, max(said.solve_s, hashed_at - ready_at)
                case Claims() as said:
                    run.claims = said.model_dump(exclude={"type", "took_s"})
                    run.claims_s = max(said.took_s, now() - hashed_at)
                case Answers() | Series() as piece:
                    run.parcel.add(piece)
                case Declined() | Failed() as said:
                    raise ExecutorFault(f"{self.name}: {said.reason}")
