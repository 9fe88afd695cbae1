"""Asking the trusted executor again: nobody is blamed for an answer that it would not give twice itself."""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from gpuyard.verification.check import Check
from gpuyard.verification.classes import TRAITS
from gpuyard.verification.context import Busy, Context, LeaseLost, call, when_free
from gpuyard.verification.files import read_file
from gpuyard.verification.solver.probe import nonce_of
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


async def ask_for_digest(context: Context, checks: Sequence[Check]) -> None:
    """Have the trusted executor do the memory proof of one check of each class again, which nobody knew would be it.

    Each check has a nonce of its own, and a proof takes the whole of a GPU: one that may be any is enough to deter.
    Where it differs it is done once more: a trusted executor whose memory does not repeat itself blames nobody.
    """
    proven = [check for check in checks if check.claims and check.expected.vram_gb]
    for cls in sorted({check.executor.gpu_class for check in proven}):
        check = secrets.choice([one for one in proven if one.executor.gpu_class is cls])
        trusted, nonce = context.trusted(cls), nonce_of(check.id, check.taken.seed)
        if trusted is None:
            continue
        prove = partial(trusted.prove_memory, cls, nonce, check.expected.vram_gb)
        with suppress(ExecutorFault, Busy, LeaseLost):  # then there is nothing to hold it against
            digest = await when_free(context, trusted, prove)
            if digest == _digest(check) or digest == await when_free(context, trusted, prove):
                check.expected, check.lines = replace(check.expected, vram_digest=digest), ()


def _digest(check: Check) -> object:
    """What the executor says its proof came to."""
    proof: Mapping[str, Any] = (check.claims or {}).get("vram") or {}
    return proof.get("digest")


async def _answers(context: Context, trusted: Trusted | None, workload_id: str, check: Check) -> dict[str, str]:
    """All hidden prompts of the workload at once, as when they were answered first: a batch's size matters."""
    workload, cls = await call(context.records.workload, workload_id), check.executor.gpu_class
    if trusted is None or workload is None:
        raise ExecutorFault(f"there is none of the class {cls}" if workload else "the workload is gone")
    prompts = await read_file(context, workload.blob, TRAITS[cls].prompts)
    return await when_free(context, trusted, lambda: trusted.solve(cls, prompts, check.taken.seed))


def _workload(check: Check) -> str:
    return check.taken.workload_id
