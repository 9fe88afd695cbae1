"""Checks that are judged by fingerprints, and what the trusted executor does for it."""

import asyncio
from collections.abc import Sequence
from functools import partial

from gpuyard.verification.check import Check
from gpuyard.verification.classes import Class
from gpuyard.verification.context import (
    Context,
    LeaseBusy,
    LeaseLost,
    call,
    when_trusted_is_free,
)
from gpuyard.verification.fingerprints import FingerprintError
from gpuyard.verification.protocol import SAMPLING
from gpuyard.verification.records.events import EventSubtype, PipelineEventKind
from gpuyard.verification.solver.engines.fingerprints import pack_tokens
from gpuyard.verification.tolerance import Printed, checked_tokens
from gpuyard.verification.trusted_executor import ExecutorFault, FollowedAnswers
from gpuyard.verification.verdict import rounding


async def note_runtimes(context: Context, checks: Sequence[Check]) -> None:
    """Note in each check on what the trusted executor of its class answered last.

    So what an executor says of its own engine counts before anything is compared.
    """
    by_class: dict[Class, dict[str, str]] = {}
    for cls in {check.executor.gpu_class for check in checks if check.runtime}:
        by_class[cls] = await call(_newest_runtime, context, cls)
    for check in checks:
        check.trusted_runtime = by_class.get(check.executor.gpu_class, {})
        if check.lines and check.trusted_runtime:
            await call(check.judge)


def _newest_runtime(context: Context, cls: Class) -> dict[str, str]:
    newest = context.records.newest_event(
        cls, PipelineEventKind.ANSWERING, EventSubtype.SUCCESS
    )
    return dict(newest.data.get("runtime") or {}) if newest else {}


async def follow_tokens(context: Context, checks: Sequence[Check]) -> None:
    """Let the trusted executor follow the tokens of each check that needs it.

    That takes it one pass over the answers, and not a step for each token. If the
    fingerprints differ too much, it does so once more: a trusted executor that
    contradicts itself blames nobody.
    """
    for check in checks:
        tokens = await asyncio.to_thread(_tokens, check)
        if not tokens:
            continue
        try:
            await _follow(context, check, tokens)
        except (ExecutorFault, LeaseBusy, LeaseLost, OSError) as error:
            check.fault = (
                "its fingerprints could not be compared, because the trusted executor"
                f" did not follow them: {error}"
            )
            await call(check.judge)


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
        raise ExecutorFault(f"no executor of the class {cls} is trusted")
    prompts = sorted(check.taken.series)
    ask = partial(trusted.follow, cls, prompts, check.taken.seed, tokens)
    check.followed = await when_trusted_is_free(context, trusted, ask)
    check.trusted_runtime = dict(trusted.runtime)
    await call(check.judge)
    if any(line.ok is False for line in check.lines):
        again: FollowedAnswers = await when_trusted_is_free(context, trusted, ask)
        if again != check.followed:
            raise ExecutorFault(f"{trusted.name} contradicts itself")
