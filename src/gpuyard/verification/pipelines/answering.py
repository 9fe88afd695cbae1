"""The third pipeline: the trusted executor answers the workloads of its class."""

from dataclasses import dataclass, field
from typing import Any

from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context, call, with_trusted
from gpuyard.verification.pipelines.step import (
    StepFailed,
    StepOutcome,
    StepRun,
    StepSkipped,
    run_step,
)
from gpuyard.verification.prompts import LOST, read_file
from gpuyard.verification.records.events import EventSubtype, PipelineEventKind
from gpuyard.verification.records.workloads import PromptWorkload
from gpuyard.verification.trusted_changes import note_silence
from gpuyard.verification.trusted_executor import ExecutorFault, TrustedExecutor


async def answer(context: Context, cls: Class) -> StepOutcome:
    """Have workloads answered until the time is up.

    Only complete answers are stored; other workloads wait for the next turn.
    """
    return await run_step(context, PipelineEventKind.ANSWERING, cls, _answer)


@dataclass(slots=True)
class _Turn:
    """The progress of one run."""

    answered: int = 0
    missing: int = 0
    seconds: list[float] = field(default_factory=list[float])
    fault: str = ""

    def fits(self, budget_s: float) -> bool:
        """Whether another workload of average length fits into the budget."""
        total = sum(self.seconds)
        return total + (total / len(self.seconds) if self.seconds else 0.0) <= budget_s


async def _answer(step: StepRun) -> dict[str, Any]:
    context = step.context
    cls = step.cls
    trusted = context.trusted(cls)
    if trusted is None:
        raise StepSkipped(
            f"no executor of the class {cls} is trusted",
            EventSubtype.TRUSTED_NOT_CONFIGURED,
        )
    workloads = await call(context.records.unfinished, cls)
    if not workloads:
        raise StepSkipped("no workload waits for answers")
    # Random order, so that one that always fails does not block the others.
    context.random.shuffle(workloads)
    turn = _Turn()

    async def work() -> None:
        await step.tell(EventSubtype.STARTED, workloads=len(workloads))
        for workload in workloads:
            if turn.fault or not turn.fits(context.policy.answer_budget_s):
                break
            await _answer_one(step, trusted, workload, turn)

    await with_trusted(context, trusted, work)
    if turn.fault:
        raise StepFailed(turn.fault, answered=turn.answered)
    if not turn.answered:
        raise StepFailed("no workload was answered", missing=turn.missing)
    return {"answered": turn.answered, "waiting": len(workloads) - turn.answered}


async def _answer_one(
    step: StepRun, trusted: TrustedExecutor, workload: PromptWorkload, turn: _Turn
) -> None:
    context = step.context
    cls = step.cls
    prompts = await _prompts(step, workload)
    if prompts is None:
        return
    began = context.clock.monotonic()
    try:
        answers = await trusted.solve(cls, prompts, workload.seed)
    except ExecutorFault as fault:
        # The next workload would probably fail as well, so this ends the run.
        turn.fault = f"{trusted.name}: {fault}"[:1000]
        await note_silence(context, cls, fault)
        return
    finally:
        turn.seconds.append(context.clock.monotonic() - began)
    # Before its answers are stored, since the older ones may be retired by this.
    if trusted.runtime:
        await call(context.records.note_runtime, cls, trusted.runtime)
    await call(context.records.note_answer, cls)
    missing = sum(not isinstance(answers.get(prompt), str) for prompt in prompts)
    if missing:
        turn.missing += 1
        await step.tell(
            EventSubtype.ANSWERS_MISSING,
            workload=workload.id,
            missing=missing,
            of=len(prompts),
        )
    elif spoilt := sum("\0" in answer for answer in answers.values()):
        # PostgreSQL cannot store NUL, and the same seed would give the same answers.
        await call(context.records.retire_workload, workload.id)
        await step.tell(
            EventSubtype.ANSWERS_MISSING,
            workload=workload.id,
            missing=spoilt,
            of=len(prompts),
            retired=True,
            reason="answers have a NUL character in them",
        )
    elif await call(context.records.finish_workload, workload.id, answers):
        turn.answered += 1


async def _prompts(step: StepRun, workload: PromptWorkload) -> tuple[str, ...] | None:
    """A workload's prompts; None, after an event, when its file cannot be read.

    A workload whose file never will be readable is retired.
    """
    try:
        return await read_file(step.context, workload.blob, TRAITS[step.cls].prompts)
    except OSError as error:
        lost = isinstance(error, LOST)
        if lost:
            await call(step.context.records.retire_workload, workload.id)
        reason = f"{type(error).__name__}: {error}"[:1000]
        await step.tell(
            EventSubtype.ERROR_DOWNLOADING,
            workload=workload.id,
            reason=reason,
            retired=lost,
        )
        return None
