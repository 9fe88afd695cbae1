"""Trusted executors whose engine has changed since their class was calibrated.

Nobody could be compared with such a one any more, so a class whose trusted executor was
upgraded alone would blame nobody for anything. It is not verified until a person has
calibrated it again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.verification.classes import Class
from gpuyard.verification.context import Context, call, when_trusted_is_free
from gpuyard.verification.executors import Executor
from gpuyard.verification.records import Records
from gpuyard.verification.tolerance import changes_of_runtime
from gpuyard.verification.tolerance_limits import PREFIX
from gpuyard.verification.trusted_executor import TrustedExecutor

T = TypeVar("T")


class TrustedChangedError(GpuyardError):
    """No class can be verified: their trusted executors have changed, or the limits of
    their tolerance are not measured.
    """

    code = "verification_trusted_changed"
    exit_code = 4


def change_of(
    records: Records, cls: Class, trusted: Executor | TrustedExecutor | None
) -> str:
    """How the trusted executor of a class has changed, and what to do; or nothing."""
    known = records.trusted_runtime(cls)
    changed = changes_of_runtime(known.accepted, known.newest) if known else ""
    if not changed or trusted is None:
        return ""
    own = trusted.gpu_class is cls
    how = f"--trusted {trusted.name}" if own else "--against EXECUTOR"
    return (
        f"class {cls} is not verified, because its trusted executor {trusted.name} has"
        f" changed: {changed}. `gpuyard verify calibrate --class {cls} {how}` accepts"
        " it."
    )


async def ask_trusted(
    context: Context,
    cls: Class,
    trusted: TrustedExecutor,
    work: Callable[[], Awaitable[T]],
) -> T:
    """Run `work` as soon as the trusted executor is free, and note what it says of its
    engine while nobody else can ask or accept another.

    Raises as `when_trusted_is_free`.
    """

    async def noted() -> T:
        done = await work()
        if trusted.runtime:
            await call(context.records.note_runtime, cls, trusted.runtime)
        return done

    return await when_trusted_is_free(context, trusted, noted)


async def unchanged(
    context: Context, executors: Sequence[Executor]
) -> tuple[list[Executor], dict[Class, str]]:
    """The executors that can be compared with something, and why others cannot."""
    changed: dict[Class, str] = {}
    for cls in sorted({executor.gpu_class for executor in executors}):
        trusted = context.trusted(cls)
        if words := await call(change_of, context.records, cls, trusted):
            changed[cls] = words
    left = [executor for executor in executors if executor.gpu_class not in changed]
    return left, changed


async def accept(context: Context, cls: Class, runtime: Mapping[str, str]) -> None:
    """Accept the engine of a trusted executor as it is now.

    If it was another before, its older answers are used no more, and the limits of a
    tolerance have to be measured again.
    """
    if runtime and await call(context.records.accept_runtime, cls, runtime):
        await call(context.records.forget_ranges, cls, PREFIX)


async def require_accepted(
    context: Context, cls: Class, trusted: TrustedExecutor
) -> None:
    """InvalidInputError if the trusted executor has to be calibrated by itself first.

    That is one of the class itself, whose deadline was measured with another engine.
    """
    known = await call(context.records.trusted_runtime, cls)
    now = trusted.runtime or (known.newest if known else {})
    changed = changes_of_runtime(known.accepted, now) if known else ""
    if changed and trusted.gpu_class is cls:
        raise InvalidInputError.of(
            "--against",
            f"cannot be compared yet: {trusted.name} has changed, {changed}",
            f"run `gpuyard verify calibrate --class {cls} --trusted {trusted.name}`"
            " first",
        )
