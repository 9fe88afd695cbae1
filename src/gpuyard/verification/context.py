"""What the pipelines work with, and the two locks they work under."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from random import Random
from typing import ParamSpec, TypeVar, cast

from gpuyard.config.verification import VerificationPolicy
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.ids import new_id
from gpuyard.storage.blobs import Blobs
from gpuyard.verification.classes import Class
from gpuyard.verification.clock import Clock, cancelled
from gpuyard.verification.database import DatabaseError
from gpuyard.verification.records import Records
from gpuyard.verification.trusted import PromptGenerator, Trusted, TrustedGenerator

P = ParamSpec("P")
T = TypeVar("T")
# How soon to look again whether a trusted executor is free.
_AGAIN_S = 1.0


class Busy(Exception):  # noqa: N818  (no error: somebody else is at it)
    """Another process, or another task of this one, has the lock."""


class LeaseLost(Exception):  # noqa: N818
    """A lock could not be renewed in time, and may be another's by now."""


@dataclass(frozen=True)
class Context:
    """`trusted` gives the trusted executor of a class, or None. `random` draws seeds: a test may put its own."""

    records: Records
    blobs: Blobs
    trusted: Callable[[Class], Trusted | None]
    policy: VerificationPolicy = field(default_factory=VerificationPolicy)
    clock: Clock = field(default_factory=Clock)
    random: Random = field(default_factory=secrets.SystemRandom)
    generator: PromptGenerator = field(default_factory=TrustedGenerator)

    def draw_seed(self) -> int:
        """A new seed, a signed 64-bit number."""
        return self.random.getrandbits(64) - 2**63


async def call(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Ask the database, in a thread."""
    return await asyncio.to_thread(work, *arguments, **named)


async def leased(context: Context, name: str, work: Callable[[], Awaitable[T]]) -> T:
    """What `work` gives, under a lock that is held all the while; Busy when another has it, LeaseLost when it is lost,
    which cancels the work. What a process that died held is free after `lease_s`."""
    records, seconds, holder = context.records, context.policy.lease_s, new_id("holder")
    if not await call(records.lease, name, holder, seconds):
        raise Busy(name)
    task, keeper = asyncio.ensure_future(work()), asyncio.ensure_future(_keep(context, name, holder))
    try:
        await asyncio.wait({task, keeper}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise LeaseLost(f"the lock {name} was lost") from keeper.exception()
        return task.result()
    finally:
        await cancelled(task, keeper)
        with suppress(DatabaseError):  # it is free after a while all the same, and what was done stays done
            await call(records.release, name, holder)


async def _keep(context: Context, name: str, holder: str) -> None:
    """Renew a lock until it is lost; DatabaseError when the database was away for nearly as long as it lasts."""
    clock, seconds = context.clock, context.policy.lease_s
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


async def with_trusted(context: Context, trusted: Trusted, work: Callable[[], Awaitable[T]]) -> T:
    """What `work` gives; nobody else uses the trusted executor meanwhile. Busy when somebody does already."""
    return await leased(context, f"trusted {trusted.name}", work)


async def when_free(context: Context, trusted: Trusted, work: Callable[[], Awaitable[T]]) -> T:
    """As `with_trusted`, once nobody else uses it; Busy when that takes longer than somebody's longest use of it."""
    deadline = context.clock.monotonic() + 2 * context.policy.answer_limit_s
    while True:
        try:
            return await with_trusted(context, trusted, work)
        except Busy:
            if context.clock.monotonic() > deadline:
                raise
        await context.clock.sleep(_AGAIN_S)


def load_generator(name: str | None) -> PromptGenerator:
    """The generator that the settings name as `module:Class`; None: the default. InvalidInputError."""
    if name is None:
        return TrustedGenerator()
    module, _, thing = name.partition(":")
    try:
        made = getattr(import_module(module), thing)()
    except Exception as error:  # whatever another's module raises
        fault = f"{name} cannot be loaded: {type(error).__name__}: {error}"
        raise InvalidInputError.of("verification.generator", fault, "name an installed module:Class") from error
    version = getattr(made, "generator_version", None)
    if not isinstance(version, int) or not callable(getattr(made, "generate", None)):
        fault = f"{name} has no `generator_version` (a number) or no `generate`"
        raise InvalidInputError.of(
            "verification.generator", fault, "see PromptGenerator in gpuyard.verification.trusted"
        )
    return cast(PromptGenerator, made)
