"""Trusted executors: machines whose answers are taken as correct.

The answers of other executors are compared with theirs. They are reached as all
executors are: by jobs on the instance.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpuyard.domain.errors import GpuyardError, UnreachableError
from gpuyard.domain.ids import new_id
from gpuyard.verification.answers import (
    MOST_BYTES,
    AnswersError,
    IncomingFile,
    answers_of,
    most_bytes,
    read_series,
)
from gpuyard.verification.channels import AFTER_S, GoneError, OutputChannel
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.clock import steady_now
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import (
    SAMPLING,
    AnswersPiece,
    Claims,
    Declined,
    Failed,
    FingerprintsPiece,
    Hash,
    OrderDocument,
    ProtocolError,
    Ready,
    SeriesPiece,
    SolverTask,
)
from gpuyard.verification.solver.order import VERSION
from gpuyard.verification.solver_jobs import NotStartedError, SolverJobs
from gpuyard.verification.waiting import Obstacle

# How the ids of the tasks of trusted executors begin.
_KIND = "trusted"
LONGEST_TASK_S = AFTER_S + max(
    traits.spin_up_s + traits.prepare_s + traits.solve_s for traits in TRAITS.values()
)
"""Seconds after which a task of a trusted executor is given up; more where its class
was calibrated to solve for longer."""


class ExecutorFault(Exception):  # noqa: N818  (a fault of an executor)
    """A trusted executor is gone, failed, or did not answer in time."""


class TrustedAway(ExecutorFault):
    """A trusted executor did not begin what it was asked, so that this cannot be why.

    `busy`: other jobs of ours have its place.
    """

    def __init__(self, message: str, *, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy


@dataclass(frozen=True, slots=True)
class FollowedAnswers:
    """What a trusted executor makes of the tokens of given answers.

    `texts`: the text of the tokens, by prompt; `fingerprints`: the file of its own
    fingerprints after them.
    """

    texts: Mapping[str, str]
    fingerprints: bytes


class TrustedExecutor(Protocol):
    """The trusted executor of a class.

    It is given one task at a time; callers hold a lock by its `name` (see `context`).
    """

    @property
    def name(self) -> str:
        """The executor's name."""
        ...

    @property
    def gpu_class(self) -> Class:
        """The class that it is of itself."""
        ...

    @property
    def runtime(self) -> Mapping[str, str]:
        """What its engine said of itself when it last ran; empty before."""
        ...

    async def generate(self, cls: Class, count: int, series: int) -> list[list[str]]:
        """Make `series` lists of `count` new prompts each, which may hold duplicates.

        Raises ExecutorFault.
        """
        ...

    async def solve(
        self, cls: Class, prompts: Sequence[str], seed: int
    ) -> dict[str, str]:
        """Answer all prompts in one batch under `seed`; returns the answers by prompt.

        Some answers may be missing. Raises ExecutorFault.
        """
        ...

    async def follow(
        self, cls: Class, prompts: Sequence[str], seed: int, tokens: str
    ) -> FollowedAnswers:
        """Follow the (packed) tokens of given answers instead of drawing its own.

        Raises ExecutorFault.
        """
        ...

    async def prove(
        self, cls: Class, nonce: str, proofs: Mapping[str, Any]
    ) -> dict[str, str]:
        """Make these proofs (as in an order) for a nonce.

        Returns claim → digest (hex) for `vram` and `speed`. Raises ExecutorFault.
        """
        ...


class TrustedRun:
    """What the solver on a trusted executor sent in one run.

    `prepare_s` is the time from the start of the job until it was ready, `solve_s` from
    there to the hash, `claims_s` from there to the claims.
    Its output arrives in chunks, so several messages may arrive at the same moment:
    where the solver's own figures are longer, they are used.
    """

    def __init__(self, limit: int) -> None:
        self.parcel = IncomingFile(limit)
        self.prints = IncomingFile()
        self.sha256 = ""
        self.prints_sha256: str | None = None
        self.prepare_s = 0.0
        self.solve_s = 0.0
        self.claims: Mapping[str, Any] = {}
        self.claims_s = 0.0


class JobTrustedExecutor:
    """A trusted executor that is used by submitting jobs to the instance."""

    def __init__(
        self, executor: Executor, jobs: SolverJobs, patience_s: Callable[[], float]
    ) -> None:
        """`patience_s` returns how long solving one series may take."""
        self._executor = executor
        self._jobs = jobs
        self._patience_s = patience_s
        self.runtime: Mapping[str, str] = {}

    @property
    def gpu_class(self) -> Class:
        """See `TrustedExecutor.gpu_class`."""
        return self._executor.gpu_class

    @property
    def name(self) -> str:
        """The executor's name."""
        return self._executor.name

    @property
    def gpu_place(self) -> str:
        """The instance's name of its GPU as a place; empty if no GPU is named."""
        gpu = self._executor.settings.gpu
        return f"gpu:{gpu}" if gpu else ""

    @property
    def engine_kind(self) -> str:
        """What answers there, such as `vllm`."""
        return self._executor.settings.engine.kind

    async def generate(self, cls: Class, count: int, series: int) -> list[list[str]]:
        """See `TrustedExecutor.generate`."""
        wanted = {"series": series, "prompts": count, "seed": secrets.randbits(63)}
        run = await self._run(
            {"task": "generate", "generate": wanted}, SolverTask.GENERATE, MOST_BYTES
        )
        try:
            return read_series(run.parcel, series, count)
        except AnswersError as error:
            raise ExecutorFault(f"{self.name} made no series: {error}") from error
        finally:
            run.parcel.close()

    async def solve(
        self, cls: Class, prompts: Sequence[str], seed: int
    ) -> dict[str, str]:
        """See `TrustedExecutor.solve`."""
        return (await self.solve_timed(prompts, seed))[0]

    async def solve_timed(
        self,
        prompts: Sequence[str],
        seed: int,
        claims: Mapping[str, Any] | None = None,
        *,
        fingerprints: bool = False,
    ) -> tuple[dict[str, str], TrustedRun]:
        """Solve, and also return the times and the claims of the run.

        `fingerprints`: make those of the answers, too, which takes longer.
        """
        order: OrderDocument = {
            "task": "solve",
            "prompts": list(prompts),
            "seed": seed,
            "claims": dict(claims or {}),
            "fingerprints": fingerprints,
        }
        answers, run = await self._answers(prompts, order)
        run.prints.close()
        return answers, run

    async def _answers(
        self, prompts: Sequence[str], order: OrderDocument
    ) -> tuple[dict[str, str], TrustedRun]:
        run = await self._run(
            order, SolverTask.SOLVE, most_bytes(prompts, SAMPLING["max_tokens"])
        )
        try:
            return answers_of(run.parcel, run.sha256, prompts), run
        except AnswersError as error:
            raise ExecutorFault(f"{self.name} sent no answers: {error}") from error
        finally:
            run.parcel.close()

    async def print_answers(
        self, prompts: Sequence[str], seed: int, tokens: str = ""
    ) -> tuple[FollowedAnswers, TrustedRun]:
        """Answer all prompts with fingerprints; with `tokens`, follow these."""
        order = {
            "task": "solve",
            "prompts": list(prompts),
            "seed": seed,
            "fingerprints": True,
            "tokens": tokens,
        }
        answers, run = await self._answers(prompts, order)
        try:
            prints = run.prints.read()
        except AnswersError as error:
            raise ExecutorFault(f"{self.name} sent no fingerprints: {error}") from error
        finally:
            run.prints.close()
        if run.prints.sha256 != run.prints_sha256:
            raise ExecutorFault(f"{self.name} sent other fingerprints than it said")
        return FollowedAnswers(answers, prints), run

    async def follow(
        self, cls: Class, prompts: Sequence[str], seed: int, tokens: str
    ) -> FollowedAnswers:
        """See `TrustedExecutor.follow`."""
        return (await self.print_answers(prompts, seed, tokens))[0]

    async def prove(
        self, cls: Class, nonce: str, proofs: Mapping[str, Any]
    ) -> dict[str, str]:
        """See `TrustedExecutor.prove`."""
        order = {"task": "probe", "claims": {"nonce": nonce, **proofs}}
        run = await self._run(order, SolverTask.PROBE, MOST_BYTES)
        made = {name: said for name, said in run.claims.items() if said}
        found = {name: said.get("digest") for name, said in made.items()}
        for name, digest in found.items():
            if not isinstance(digest, str):
                why = made[name].get("failed", "it says nothing")
                raise ExecutorFault(f"{self.name} cannot prove its own {name}: {why}")
        return found

    async def _run(
        self, work: OrderDocument, task: SolverTask, limit: int
    ) -> TrustedRun:
        traits = TRAITS[self._executor.gpu_class]
        check_id = new_id(_KIND)
        # The work may give a seed. It changes nothing that is the same in every order.
        order: OrderDocument = {
            "seed": None,
            **work,
            "version": VERSION,
            "check": check_id,
            "settings": dict(SAMPLING),
            "engine": self._executor.engine,
        }
        limit_s = traits.prepare_s + self._patience_s() + AFTER_S
        channel = OutputChannel(
            self._jobs, self._executor, check_id, order, limit_s, task
        )
        run = TrustedRun(limit)
        try:
            async with asyncio.timeout(traits.spin_up_s + limit_s):
                # Its lock is ours, so a job that is still there belongs to nobody.
                await self._jobs.end_left_behind(self._executor, _KIND)
                await channel.start(order)
                await self._collect(channel, run, task)
            return run
        except (TimeoutError, ProtocolError, AnswersError, GpuyardError) as error:
            run.parcel.close()
            raise self._fault(error, is_there=channel.job_id is not None) from error
        finally:
            await channel.close()

    def _fault(self, error: Exception, *, is_there: bool) -> ExecutorFault:
        """What an error shows of the trusted executor.

        `is_there`: whether the instance has taken its job.
        """
        words = f"{self.name}: {str(error) or 'it took too long'}"
        if isinstance(error, NotStartedError):
            return TrustedAway(words, busy=error.obstacle is Obstacle.OTHER_JOBS)
        is_ended = isinstance(error, GoneError) and error.ours
        if is_ended or not is_there or isinstance(error, UnreachableError):
            return TrustedAway(words)
        return ExecutorFault(words)

    async def _collect(
        self, channel: OutputChannel, run: TrustedRun, task: SolverTask
    ) -> None:
        began = ready_at = hashed_at = steady_now()
        while not (run.claims if task is SolverTask.PROBE else run.parcel.complete):
            match await channel.receive():
                case Ready() as said:
                    # A task without an engine says nothing of it.
                    self.runtime = said.runtime or self.runtime
                    ready_at = steady_now()
                    run.prepare_s = ready_at - began
                case Hash() as said:
                    hashed_at = steady_now()
                    run.sha256 = said.sha256
                    run.prints_sha256 = said.fingerprints
                    run.solve_s = max(said.solve_s, hashed_at - ready_at)
                case Claims() as said:
                    run.claims = said.model_dump(exclude={"type", "took_s"})
                    run.claims_s = max(said.took_s, steady_now() - hashed_at)
                case FingerprintsPiece() as piece:
                    run.prints.add(piece)
                case AnswersPiece() | SeriesPiece() as piece:
                    run.parcel.add(piece)
                case Declined() | Failed() as said:
                    raise ExecutorFault(f"{self.name}: {said.reason}")
