"""What the pipelines and batches share: a context, and locks in the database."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import ParamSpec, TypeVar

from gpuyard.config.verification import VerificationPolicy
from gpuyard.domain.ids import new_id
from gpuyard.storage.blobs import Blobs
from gpuyard.verification.classes import Class
from gpuyard.verification.clock import SystemClock, cancelled
from gpuyard.verification.database import DatabaseError
from gpuyard.verification.generators import (
    PromptGenerator,
    TrustedGenerator,
)
from gpuyard.verification.records import Records
from gpuyard.verification.trusted_executor import LONGEST_TASK_S, TrustedExecutor

P = ParamSpec("P")
T = TypeVar("T")
# How often to check whether a trusted executor is free.
_AGAIN_S = 1.0


class LeaseBusy(Exception):  # noqa: N818  (not an error here)
    """Another task or process holds the lock."""


class LeaseLost(Exception):  # noqa: N818  (not an error here)
    """A lock was not renewed in time, and another process may hold it now."""


@dataclass(frozen=True)
class Context:
    """What the pipelines work with.

    `trusted` returns the trusted executor of a class, or None. `random` draws the
    seeds; tests use their own. `unreleased`: lock → holder, of locks that could not be
    released because the database was away.
    """

    records: Records
    blobs: Blobs
    trusted: Callable[[Class], TrustedExecutor | None]
    policy: VerificationPolicy = field(default_factory=VerificationPolicy)
    clock: SystemClock = field(default_factory=SystemClock)
    random: Random = field(default_factory=secrets.SystemRandom)
    generator: PromptGenerator = field(default_factory=TrustedGenerator)
    unreleased: dict[str, str] = field(default_factory=dict[str, str])

    def draw_seed(self) -> int:
        """Draw a new seed, a signed 64-bit number."""
        return self.random.getrandbits(64) - 2**63


async def call(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a database function in a thread."""
    return await asyncio.to_thread(work, *arguments, **named)


async def leased(context: Context, name: str, work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` while holding a lock.

    Raises LeaseBusy when another holds it, and LeaseLost when it was lost, which
    cancels the work. A lock of a dead process becomes free after `lease_s`.
    """
    records = context.records
    seconds = context.policy.lease_s
    holder = new_id("holder")
    if name in context.unreleased:
        await call(records.release, name, context.unreleased[name])
        del context.unreleased[name]
    if not await call(records.lease, name, holder, seconds):
        raise LeaseBusy(name)
    task = asyncio.ensure_future(work())
    keeper = asyncio.ensure_future(_keep(context, name, holder))
    try:
        await asyncio.wait({task, keeper}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise LeaseLost(f"the lock {name} was lost") from keeper.exception()
        return task.result()
    finally:
        await cancelled(task, keeper)
        try:
            await call(records.release, name, holder)
        except DatabaseError:
            # It expires by itself, but who wants it again need not wait for that.
            context.unreleased[name] = holder


async def _keep(context: Context, name: str, holder: str) -> None:
    """Renew a lock until it is lost.

    Raises DatabaseError when the database was away for nearly as long as the lock
    lasts.
    """
    clock = context.clock
    seconds = context.policy.lease_s
    until = clock.monotonic() + seconds
    while True:
        await clock.sleep(seconds / 3)
        began = clock.monotonic()
        try:
            if not await call(context.records.renew, name, holder, seconds):
                return
            until = began + seconds
        except DatabaseError:
            if clock.monotonic() + seconds / 3 >= until:
                raise


async def with_trusted(
    context: Context, trusted: TrustedExecutor, work: Callable[[], Awaitable[T]]
) -> T:
    """Run `work` while holding the lock of a trusted executor.

    Raises LeaseBusy when another has it, or waits for it (`when_trusted_is_free`): a
    verdict goes before prompts and answers for later.
    """
    if first := await call(context.records.first_lease, _wishes(trusted)):
        raise LeaseBusy(first)
    return await leased(context, _lock(trusted), work)


async def when_trusted_is_free(
    context: Context, trusted: TrustedExecutor, work: Callable[[], Awaitable[T]]
) -> T:
    """Run `work` as soon as the lock of the trusted executor is free.

    Who has waited longest is next, so that nobody who asks again at once comes first.
    Raises LeaseBusy when that takes longer than the longest task that may be ahead, and
    one more for another that waits: no verdict may depend on what the trusted executor
    does just then.
    """
    policy = context.policy
    longest_s = max(policy.step_limit_s, policy.answer_limit_s, LONGEST_TASK_S)
    deadline = context.clock.monotonic() + 2 * longest_s
    holder = new_id("holder")
    wish = f"{context.clock.now():017.6f} {holder}{_wishes(trusted)}"
    try:
        while True:
            await call(context.records.lease, wish, holder, policy.lease_s)
            if await call(context.records.first_lease, _wishes(trusted)) == wish:
                with suppress(LeaseBusy):
                    return await leased(context, _lock(trusted), work)
            if context.clock.monotonic() > deadline:
                raise LeaseBusy(_lock(trusted))
            await context.clock.sleep(_AGAIN_S)
    finally:
        with suppress(DatabaseError):  # it expires by itself
            await call(context.records.release, wish, holder)


def _lock(trusted: TrustedExecutor) -> str:
    return f"trusted {trusted.name}"


def _wishes(trusted: TrustedExecutor) -> str:
    """How the names of the locks end of those who wait for a trusted executor.

    They begin with the time since when, so that their order is that of the names.
    """
    return f" waits for trusted {trusted.name}"
