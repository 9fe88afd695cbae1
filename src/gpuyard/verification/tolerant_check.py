"""Checks that are judged by fingerprints, and what the trusted executor does for it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from gpuyard.verification.check import Check, texts_sha256
from gpuyard.verification.classes import Class
from gpuyard.verification.context import (
    Context,
    LeaseBusy,
    LeaseLost,
    call,
)
from gpuyard.verification.fingerprints import FingerprintError
from gpuyard.verification.protocol import SAMPLING
from gpuyard.verification.recheck import answers_again
from gpuyard.verification.records.trusted_runtimes import TrustedRuntime
from gpuyard.verification.solver.engines.fingerprints import pack_tokens
from gpuyard.verification.tolerance import (
    Printed,
    checked_tokens,
    contradicts_itself,
)
from gpuyard.verification.trusted_changes import ask_trusted
from gpuyard.verification.trusted_executor import (
    ExecutorFault,
    FollowedAnswers,
    TrustedAway,
    TrustedExecutor,
)
from gpuyard.verification.verdict import rounding

TRIES = 3
"""How often a trusted executor is asked that is away, for each check at most."""
PAUSE_S = 60.0
"""Seconds before it is asked again."""


class ContradictionError(Exception):
    """The trusted executor says of the same tokens what rounding does not explain."""


async def note_runtimes(context: Context, checks: Sequence[Check]) -> None:
    """Note in each check on what the trusted executor of its class answered last.

    So what an executor says of its own engine counts before anything is compared.
    """
    by_class: dict[Class, TrustedRuntime | None] = {}
    for cls in {check.executor.gpu_class for check in checks if check.runtime}:
        by_class[cls] = await call(context.records.trusted_runtime, cls)
    for check in checks:
        if known := by_class.get(check.executor.gpu_class):
            check.trusted_runtime = dict(known.newest)
            check.accepted_runtime = dict(known.accepted)
            if check.lines:
                await call(check.judge)


async def follow_tokens(context: Context, checks: Sequence[Check]) -> None:
    """Let the trusted executor follow the tokens of each check that needs it.

    That takes it one pass over the answers, and not a step for each token. If the
    fingerprints differ too much, it does so once more, and that counts: a trusted
    executor that contradicts itself by more than rounding blames nobody. One that is
    away blames nobody, either. One that begins and does not follow leaves the check
    unexplained and not blameless: the executor chooses the tokens, and may choose some
    that stop an engine.
    """
    gone: dict[Class, TrustedAway | LeaseBusy | LeaseLost] = {}
    for check in checks:
        tokens = await asyncio.to_thread(_tokens, check)
        if not tokens:
            continue
        cls = check.executor.gpu_class
        try:
            if cls in gone:  # it was waited for, and not once more for each check
                raise gone[cls]
            await _follow(context, check, tokens)
            continue
        except (ContradictionError, OSError) as error:
            check.fault = f"{_NOT_COMPARED}: {error}"
        except (TrustedAway, LeaseBusy, LeaseLost) as error:
            gone[cls] = error
            check.fault = f"{_NOT_COMPARED}: {_DID_NOT}: {error}"
        except ExecutorFault as error:
            check.unexplained = f"{_NOT_COMPARED}: {_DID_NOT}: {error}"
        await call(check.judge)


_NOT_COMPARED = "its fingerprints could not be compared"
_DID_NOT = "the trusted executor did not follow them"


def _tokens(check: Check) -> str:
    """The packed tokens of a check; empty if nothing is to be compared by them."""
    evidence = check.evidence()
    printed = evidence.printed
    failed = any(line.ok is False for line in check.lines)
    if printed is None or failed or not (check.answers and rounding(evidence)):
        return ""
    return _packed(printed, len(evidence.series))


def _packed(printed: Printed, prompts: int) -> str:
    try:
        rows = checked_tokens(printed, prompts, SAMPLING["max_tokens"])
    except FingerprintError:
        return ""  # which fails the check
    return pack_tokens(row.tokens for row in rows)


async def _follow(context: Context, check: Check, tokens: str) -> None:
    cls = check.executor.gpu_class
    trusted = context.trusted(cls)
    if trusted is None:
        raise TrustedAway(f"no executor of the class {cls} is trusted")
    prompts = sorted(check.taken.series)
    ask = partial(trusted.follow, cls, prompts, check.taken.seed, tokens)
    first = await _asked(context, check, trusted, ask)
    check.trusted_runtime = dict(trusted.runtime)
    if not await call(_may_round, check):
        # It has become what the executor is, so texts are compared, and asked for again
        # if they differ.
        await call(check.judge)
        return
    check.followed = first
    await call(check.judge)
    if not any(line.ok is False for line in check.lines):
        return
    again = await _asked_again(context, check, trusted, ask)
    if await asyncio.to_thread(_contradicts, check, first, again):
        raise ContradictionError(f"{trusted.name} contradicts itself")
    # What is wrong by rounding of the trusted executor alone is right now.
    check.followed = again
    await call(check.judge)


async def _asked(
    context: Context,
    check: Check,
    trusted: TrustedExecutor,
    ask: Callable[[], Awaitable[FollowedAnswers]],
) -> FollowedAnswers:
    """What the trusted executor makes of the tokens of a check.

    While it is away, it is asked again a few times. Raises TrustedAway if it stays so,
    and ExecutorFault if these tokens stop it, and what nobody else has chosen does not.
    """
    is_stopped = False
    away = TrustedAway("it was not asked")
    for turn in range(TRIES):
        if turn:
            await context.clock.sleep(PAUSE_S)
        if is_stopped and not await _answers_its_own(context, check, trusted):
            continue
        try:
            return await ask_trusted(context, check.executor.gpu_class, trusted, ask)
        except TrustedAway as error:
            away = error
        except ExecutorFault as error:
            if is_stopped or await _answers_its_own(context, check, trusted):
                raise
            is_stopped = True
            away = TrustedAway(f"{error}")
    raise away


async def _asked_again(
    context: Context,
    check: Check,
    trusted: TrustedExecutor,
    ask: Callable[[], Awaitable[FollowedAnswers]],
) -> FollowedAnswers:
    """The same once more; ExecutorFault also if it is away: the fingerprints differ,
    and who can keep it busy must not turn a failure into nothing.
    """
    try:
        return await _asked(context, check, trusted, ask)
    except (ExecutorFault, LeaseBusy, LeaseLost) as error:
        raise ExecutorFault(f"they differ, and not once more: {error}") from error


async def _answers_its_own(
    context: Context, check: Check, trusted: TrustedExecutor
) -> bool:
    """Whether the trusted executor answers its own workload."""
    try:
        await answers_again(context, trusted, check.taken.workload_id, check)
    except (ExecutorFault, LeaseLost, OSError):
        return False
    return True


def _may_round(check: Check) -> bool:
    """Whether honest answers may differ by rounding, as far as is known now."""
    return bool(rounding(check.evidence()))


def _contradicts(check: Check, first: FollowedAnswers, again: FollowedAnswers) -> bool:
    """Whether the trusted executor says of the same tokens what rounding does not."""
    assert check.limits is not None
    if first.texts != again.texts:
        return True
    if texts_sha256(first) != check.sha256:
        return False  # which fails the check, whatever the digits are
    return contradicts_itself(
        first.fingerprints,
        again.fingerprints,
        check.limits,
        len(check.taken.series),
        SAMPLING["max_tokens"],
    )
