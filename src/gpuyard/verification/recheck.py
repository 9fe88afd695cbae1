"""Ask the trusted executor again before an executor is blamed.

An executor is not blamed for a result that the trusted one does not repeat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from gpuyard.verification.check import Check
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import (
    Context,
    LeaseBusy,
    LeaseLost,
    call,
)
from gpuyard.verification.prompts import read_file
from gpuyard.verification.protocol import one_line
from gpuyard.verification.solver.messages import canonical
from gpuyard.verification.trusted_changes import ask_trusted, let_judge
from gpuyard.verification.trusted_executor import ExecutorFault, TrustedExecutor
from gpuyard.verification.verdict import CheckOutcome


async def ask_again(context: Context, suspects: Sequence[Check]) -> None:
    """Add the trusted executor's answer of now to each suspect check.

    When the trusted executor cannot be asked, the check is unexplained and not
    blameless: its answer differs, and whoever can keep the trusted executor busy must
    not be able to turn that into nothing.
    """
    by_workload = sorted(suspects, key=_workload)
    for workload_id, group in groupby(by_workload, key=_workload):
        checks = list(group)
        trusted = context.trusted(checks[0].executor.gpu_class)
        try:
            answers = await answers_again(context, trusted, workload_id, checks[0])
            assert trusted is not None
        except (ExecutorFault, LeaseBusy, LeaseLost, OSError) as error:
            for check in checks:
                check.unexplained = (
                    "its answer differs, and the trusted executor could not be asked"
                    f" again: {error}"
                )
            continue
        for check in checks:
            check.again = answers.get(check.taken.hidden, "")
            check.trusted_runtime = dict(trusted.runtime)


async def ask_for_engines(context: Context, checks: Sequence[Check]) -> None:
    """Learn what the trusted engine is now, where checks say that theirs is another.

    What is known of it may be old: if all are upgraded together, the answers that are
    ready came before. One workload of each class is answered again. When the trusted
    executor cannot be asked, the checks stay as they are.
    """
    others = [check for check in checks if _says_another_engine(check)]
    for cls, group in groupby(sorted(others, key=_class), key=_class):
        same = list(group)
        trusted = context.trusted(cls)
        asked = same[0].taken.workload_id
        try:
            answers = await answers_again(context, trusted, asked, same[0])
            assert trusted is not None
        except (ExecutorFault, LeaseBusy, LeaseLost, OSError):
            continue
        for check in same:
            check.trusted_runtime = dict(trusted.runtime) or check.trusted_runtime
            if check.taken.workload_id == asked:
                check.again = answers.get(check.taken.hidden, "")
            await call(check.judge)


def _says_another_engine(check: Check) -> bool:
    """Whether it does, and the trusted executor was not asked since the seed was out.

    One that was asked to follow has said what it is.
    """
    return check.outcome is CheckOutcome.OTHER_ENGINE and check.followed is None


async def ask_every_prompt(context: Context, checks: Sequence[Check]) -> None:
    """Add the trusted executor's answers to all prompts of each check, or why not.

    They are asked for under the seed of the check, and once more where an answer of the
    executor differs: a trusted executor that contradicts itself blames nobody.
    """
    for check in checks:
        try:
            check.trusted_answers = await _all_answers(context, check)
        except (ExecutorFault, LeaseBusy, LeaseLost, OSError) as error:
            check.not_compared = one_line(
                f"the trusted executor did not answer: {error}"
            )


async def _all_answers(context: Context, check: Check) -> dict[str, str]:
    """The right answers to the prompts of a check; ExecutorFault."""
    assert check.answers is not None
    cls = check.executor.gpu_class
    series = check.taken.series
    trusted = context.trusted(cls)
    if trusted is None:
        raise ExecutorFault(f"no executor of the class {cls} is trusted")
    solve = partial(trusted.solve, cls, series, check.taken.seed)
    right = await ask_trusted(context, cls, trusted, solve)
    if trusted.runtime:
        check.trusted_runtime = dict(trusted.runtime)
    if missing := len(set(series) - set(right)):
        raise ExecutorFault(f"{trusted.name} left out {missing} of {len(series)}")
    if canonical(right) == await call(check.answers.read_bytes):
        return right
    if right != await ask_trusted(context, cls, trusted, solve):
        raise ExecutorFault(f"{trusted.name} contradicts itself")
    return right


async def ask_for_digests(context: Context, checks: Sequence[Check]) -> None:
    """Have the trusted executor repeat the proofs of each check.

    A check that has failed already is left out, and one whose answers did not come. The
    others each have their own nonce, and a proof that nobody repeats shows nothing.
    Each check is told why its proofs could not be repeated.
    """
    for check in checks:
        failed = any(line.ok is False for line in check.lines)
        proofs = check.claims and check.expected.proofs
        if failed or not (check.answers and proofs):
            continue
        try:
            right = await _trusted_digests(context, check)
            check.expected = replace(
                check.expected,
                nonce=check.nonce,
                vram_digest=right.get("vram"),
                speed_digest=right.get("speed"),
            )
        except (ExecutorFault, LeaseBusy, LeaseLost, OSError) as error:
            check.expected = replace(check.expected, no_digest=_no_digest(error))
        check.lines = ()


async def _trusted_digests(context: Context, check: Check) -> dict[str, str]:
    """The right digest of each proof of a check, by claim.

    If one differs from that of the executor, they are computed once more: ExecutorFault
    when the trusted executor contradicts itself.
    """
    cls = check.executor.gpu_class
    trusted = context.trusted(cls)
    if trusted is None:
        raise ExecutorFault(f"no executor of the class {cls} is trusted")
    prove = partial(trusted.prove, cls, check.nonce, check.expected.proofs)
    right = await let_judge(context, cls, trusted, prove)
    if all(digest == _digest(check, name) for name, digest in right.items()):
        return right
    if right != await let_judge(context, cls, trusted, prove):
        raise ExecutorFault(f"{trusted.name} contradicts itself")
    return right


def _no_digest(error: Exception) -> str:
    return one_line(f"the trusted executor computed none: {error}")


def _digest(check: Check, name: str) -> object:
    """The digest that the executor sent."""
    proof: Mapping[str, Any] = (check.claims or {}).get(name) or {}
    return proof.get("digest")


async def answers_again(
    context: Context, trusted: TrustedExecutor | None, workload_id: str, check: Check
) -> dict[str, str]:
    """Have the whole workload answered again, because the size of a batch matters."""
    workload = await call(context.records.workload, workload_id)
    cls = check.executor.gpu_class
    if trusted is None or workload is None:
        raise ExecutorFault(
            f"there is none of the class {cls}" if workload else "the workload is gone"
        )
    prompts = await read_file(context, workload.blob, TRAITS[cls].prompts)
    solve = partial(trusted.solve, cls, prompts, check.taken.seed)
    return await ask_trusted(context, cls, trusted, solve)


def _class(check: Check) -> Class:
    return check.executor.gpu_class


def _workload(check: Check) -> str:
    return check.taken.workload_id
