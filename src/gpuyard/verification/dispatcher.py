"""The one loop above the pipelines: a task for each class and step, which knows nothing of the others."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gpuyard.config.verification import VerificationPolicy
from gpuyard.verification.answering import answer
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.clock import cancelled, within
from gpuyard.verification.context import Busy, Context, LeaseLost, call, leased
from gpuyard.verification.database import DatabaseError
from gpuyard.verification.eviction import evict
from gpuyard.verification.generation import generate
from gpuyard.verification.records.events import Kind, Subtype
from gpuyard.verification.sampling import sample
from gpuyard.verification.step import Outcome

log = structlog.get_logger(__name__)
# Who was in the way is often gone soon: generation and answering share a trusted executor.
_AGAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A step, how often a class has its turn, and after how long a turn is stopped."""

    kind: Kind
    run: Callable[[Context, Class], Coroutine[Any, Any, Outcome]]
    every_s: Callable[[VerificationPolicy], float]
    limit_s: Callable[[VerificationPolicy, Class], float]


def _step_limit_s(policy: VerificationPolicy, _cls: Class) -> float:
    return policy.step_limit_s


def _answer_limit_s(policy: VerificationPolicy, cls: Class) -> float:
    """One workload must be possible, however long its executor takes to be ready."""
    traits = TRAITS[cls]
    return max(policy.answer_limit_s, traits.spin_up_s + traits.prepare_s + traits.solve_s)


PIPELINES = (
    Pipeline(Kind.GENERATION, generate, lambda policy: policy.generate_every_s, _step_limit_s),
    Pipeline(Kind.SAMPLING, sample, lambda policy: policy.sample_every_s, _step_limit_s),
    Pipeline(Kind.ANSWERING, answer, lambda policy: policy.answer_every_s, _answer_limit_s),
    Pipeline(Kind.EVICTION, evict, lambda policy: policy.evict_every_s, _step_limit_s),
)


class Dispatcher:
    """Keeps classes in samples. Any number of servers may run one on the same database: a step of a class runs on one
    of them at a time."""

    def __init__(self, context: Context, classes: Sequence[Class], pipelines: Sequence[Pipeline] = PIPELINES) -> None:
        self._context = context
        self._classes = classes
        self._pipelines = pipelines

    async def run(self) -> None:
        """Go on until cancelled."""
        turns = [asyncio.create_task(self._repeat(pipeline, cls), name=f"{pipeline.kind} {cls}")
                 for cls in self._classes for pipeline in self._pipelines]  # fmt: skip
        try:
            await asyncio.gather(*turns)
        finally:
            await cancelled(*turns)

    async def once(self, cls: Class) -> dict[Kind, Outcome]:
        """One turn of each step of a class, in order."""
        return {pipeline.kind: await self.turn(pipeline, cls) for pipeline in self._pipelines}

    async def _repeat(self, pipeline: Pipeline, cls: Class) -> None:
        while True:
            every_s = pipeline.every_s(self._context.policy)
            try:
                outcome = await self.turn(pipeline, cls)
            except DatabaseError:  # whoever waits for samples finds the same, and says so
                outcome = Outcome.BUSY
            await self._context.clock.sleep(min(every_s, _AGAIN_S) if outcome is Outcome.BUSY else every_s)

    async def turn(self, pipeline: Pipeline, cls: Class) -> Outcome:
        """One turn of one step; whatever happens to it stays there, but for a database that fails: DatabaseError."""
        context, kind = self._context, pipeline.kind
        limit_s = pipeline.limit_s(context.policy, cls)

        async def step() -> Outcome:
            try:
                return await within(context.clock, limit_s, pipeline.run(context, cls))
            except TimeoutError as error:
                await call(context.records.event, kind, Subtype.FAILURE, cls, reason=str(error))
                return Outcome.FAILED

        try:
            return await leased(context, f"{kind} {cls}", step)
        except (Busy, LeaseLost):  # another is at it, or may be by now
            return Outcome.BUSY
        except DatabaseError:
            raise
        except Exception:
            log.exception("verification_turn_failed", kind=kind, gpu_class=cls)
            return Outcome.FAILED
