"""The third pipeline: a class's trusted executor answers its workloads, ahead of time."""

from dataclasses import dataclass, field
from typing import Any

from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context, call, with_trusted
from gpuyard.verification.files import LOST, read_file
from gpuyard.verification.records.events import Kind, Subtype
from gpuyard.verification.records.workloads import Workload
from gpuyard.verification.step import Fail, Outcome, Skip, Step, run_step
from gpuyard.verification.trusted import ExecutorFault, Trusted


async def answer(context: Context, cls: Class) -> Outcome:
    """Have workloads answered until the time is up. Answers are kept when they are complete; a workload whose are not
    waits for its next turn."""
    return await run_step(context, Kind.ANSWERING, cls, _answer)


@dataclass(slots=True)
class _Turn:
    """What became of the workloads of one run."""

    answered: int = 0
    missing: int = 0
    seconds: list[float] = field(default_factory=list[float])
    fault: str = ""

    def fits(self, budget_s: float) -> bool:
        """Whether one more, of average length, is over within the budget."""
        total = sum(self.seconds)
        return total + (total / len(self.seconds) if self.seconds else 0.0) <= budget_s


async def _answer(step: Step) -> dict[str, Any]:
    context, cls = step.context, step.cls
    trusted = context.trusted(cls)
    if trusted is None:
        raise Skip(f"no executor of the class {cls} is trusted", Subtype.TRUSTED_NOT_CONFIGURED)
    workloads = await call(context.records.unfinished, cls)
    if not workloads:
        raise Skip("no workload waits for answers")
    # In random order, so that one that always fails does not stand before the others.
    context.random.shuffle(workloads)
    turn = _Turn()

    async def work() -> None:
        await step.tell(Subtype.STARTED, workloads=len(workloads))
        for workload in workloads:
            if turn.fault or not turn.fits(context.policy.answer_budget_s):
                break
            await _answer_one(step, trusted, workload, turn)

    await with_trusted(context, trusted, work)
    if turn.fault:
        raise Fail(turn.fault, answered=turn.answered)
    if not turn.answered:
        raise Fail("no workload was answered", missing=turn.missing)
    return {"answered": turn.answered, "waiting": len(workloads) - turn.answered}


async def _answer_one(step: Step, trusted: Trusted, workload: Workload, turn: _Turn) -> None:
    context, cls = step.context, step.cls
    prompts = await _prompts(step, workload)
    if prompts is None:
        return
    began = context.clock.monotonic()
    try:
        answers = await trusted.solve(cls, prompts, workload.seed)
    except ExecutorFault as fault:
        turn.fault = f"{trusted.name}: {fault}"[:1000]  # what befell this one is likely to befall the next
        return
    finally:
        turn.seconds.append(context.clock.monotonic() - began)
    missing = sum(not isinstance(answers.get(prompt), str) for prompt in prompts)
    if missing:
        turn.missing += 1
        await step.tell(Subtype.ANSWERS_MISSING, workload=workload.id, missing=missing, of=len(prompts))
    elif spoilt := sum("\0" in answer for answer in answers.values()):
        # PostgreSQL keeps no NUL, and under the same seed the answers would be the same again.
        await call(context.records.retire_workload, workload.id)
        await step.tell(Subtype.ANSWERS_MISSING, workload=workload.id, missing=spoilt, of=len(prompts), retired=True,
                        reason="answers have a NUL character in them")  # fmt: skip
    elif await call(context.records.finish_workload, workload.id, answers):
        turn.answered += 1


async def _prompts(step: Step, workload: Workload) -> tuple[str, ...] | None:
    """A workload's prompts; None, and it is told, when its file cannot be read. One that never can be is retired."""
    try:
        return await read_file(step.context, workload.blob, TRAITS[step.cls].prompts)
    except OSError as error:
        lost = isinstance(error, LOST)
        if lost:
            await call(step.context.records.retire_workload, workload.id)
        reason = f"{type(error).__name__}: {error}"[:1000]
        await step.tell(Subtype.ERROR_DOWNLOADING, workload=workload.id, reason=reason, retired=lost)
        return None
