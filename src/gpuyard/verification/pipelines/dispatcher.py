"""The dispatcher: repeats every pipeline for every class, each in a task of its own."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gpuyard.config.verification import VerificationPolicy
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.clock import cancelled, within
from gpuyard.verification.context import Context, LeaseBusy, LeaseLost, call, leased
from gpuyard.verification.database import DatabaseError
from gpuyard.verification.pipelines.answering import answer
from gpuyard.verification.pipelines.eviction import evict
from gpuyard.verification.pipelines.generation import generate
from gpuyard.verification.pipelines.sampling import sample
from gpuyard.verification.pipelines.step import StepOutcome
from gpuyard.verification.records.events import EventSubtype, PipelineEventKind

log = structlog.get_logger(__name__)
# How soon to retry a busy step: generation and answering share a trusted executor.
_AGAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A step, how often it runs for a class, and after how long it is stopped."""

    kind: PipelineEventKind
    run: Callable[[Context, Class], Coroutine[Any, Any, StepOutcome]]
    every_s: Callable[[VerificationPolicy], float]
    limit_s: Callable[[VerificationPolicy, Class], float]


def _step_limit_s(policy: VerificationPolicy, _cls: Class) -> float:
    return policy.step_limit_s


def _answer_limit_s(policy: VerificationPolicy, cls: Class) -> float:
    """At least the time for one workload, from the start of the executor on."""
    traits = TRAITS[cls]
    return max(
        policy.answer_limit_s, traits.spin_up_s + traits.prepare_s + traits.solve_s
    )


PIPELINES = (
    Pipeline(
        PipelineEventKind.GENERATION,
        generate,
        lambda policy: policy.generate_every_s,
        _step_limit_s,
    ),
    Pipeline(
        PipelineEventKind.SAMPLING,
        sample,
        lambda policy: policy.sample_every_s,
        _step_limit_s,
    ),
    Pipeline(
        PipelineEventKind.ANSWERING,
        answer,
        lambda policy: policy.answer_every_s,
        _answer_limit_s,
    ),
    Pipeline(
        PipelineEventKind.EVICTION,
        evict,
        lambda policy: policy.evict_every_s,
        _step_limit_s,
    ),
)


class Dispatcher:
    """Runs the pipelines of these classes.

    Several servers may do so with the same database: a step of a class runs on one of
    them at a time.
    """

    def __init__(
        self,
        context: Context,
        classes: Sequence[Class],
        pipelines: Sequence[Pipeline] = PIPELINES,
    ) -> None:
        self._context = context
        self._classes = classes
        self._pipelines = pipelines

    async def run(self) -> None:
        """Repeat all pipelines until cancelled."""
        turns = [
            asyncio.create_task(
                self._repeat(pipeline, cls), name=f"{pipeline.kind} {cls}"
            )
            for cls in self._classes
            for pipeline in self._pipelines
        ]
        try:
            await asyncio.gather(*turns)
        finally:
            await cancelled(*turns)

    async def once(self, cls: Class) -> dict[PipelineEventKind, StepOutcome]:
        """Run each step of a class once, in order."""
        return {
            pipeline.kind: await self.turn(pipeline, cls)
            for pipeline in self._pipelines
        }

    async def _repeat(self, pipeline: Pipeline, cls: Class) -> None:
        while True:
            every_s = pipeline.every_s(self._context.policy)
            try:
                outcome = await self.turn(pipeline, cls)
            except DatabaseError:  # reported by the command that waits for samples
                outcome = StepOutcome.BUSY
            await self._context.clock.sleep(
                min(every_s, _AGAIN_S) if outcome is StepOutcome.BUSY else every_s
            )

    async def turn(self, pipeline: Pipeline, cls: Class) -> StepOutcome:
        """Run one step once. Errors stay in the step, except DatabaseError."""
        context = self._context
        kind = pipeline.kind
        limit_s = pipeline.limit_s(context.policy, cls)

        async def step() -> StepOutcome:
            try:
                return await within(context.clock, limit_s, pipeline.run(context, cls))
            except TimeoutError as error:
                await call(
                    context.records.event,
                    kind,
                    EventSubtype.FAILURE,
                    cls,
                    reason=str(error),
                )
                return StepOutcome.FAILED

        try:
            return await leased(context, f"{kind} {cls}", step)
        except (LeaseBusy, LeaseLost):  # another process runs this step
            return StepOutcome.BUSY
        except DatabaseError:
            raise
        except Exception:
            log.exception("verification_turn_failed", kind=kind, gpu_class=cls)
            return StepOutcome.FAILED
