"""Asking the trusted executor again: nobody is blamed for an answer that it would not give twice itself."""

from collections.abc import Sequence
from itertools import groupby

from gpuyard.verification.check import Check
from gpuyard.verification.classes import TRAITS
from gpuyard.verification.context import Busy, Context, LeaseLost, call, when_free
from gpuyard.verification.files import read_file
from gpuyard.verification.trusted import ExecutorFault, Trusted


async def ask_again(context: Context, suspects: Sequence[Check]) -> None:
    """Put what the trusted executor says now into each suspect; whom it cannot be asked about is not blamed."""
    by_workload = sorted(suspects, key=_workload)
    for workload_id, group in groupby(by_workload, key=_workload):
        checks = list(group)
        trusted = context.trusted(checks[0].executor.gpu_class)
        try:
            answers = await _answers(context, trusted, workload_id, checks[0])
        except (ExecutorFault, Busy, LeaseLost, OSError) as error:
            for check in checks:
                check.fault = f"its answer differs, and the trusted executor could not be asked again: {error}"
            continue
        for check in checks:
            check.again = answers.get(check.taken.hidden, "")


async def _answers(context: Context, trusted: Trusted | None, workload_id: str, check: Check) -> dict[str, str]:
    """All hidden prompts of the workload at once, as when they were answered first: a batch's size matters."""
    workload, cls = await call(context.records.workload, workload_id), check.executor.gpu_class
    if trusted is None or workload is None:
        raise ExecutorFault(f"there is none of the class {cls}" if workload else "the workload is gone")
    prompts = await read_file(context, workload.blob, TRAITS[cls].prompts)
    return await when_free(context, trusted, lambda: trusted.solve(cls, prompts, check.taken.seed))


def _workload(check: Check) -> str:
    return check.taken.workload_id
