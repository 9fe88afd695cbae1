"""Trusted executors whose engine has changed since their class was calibrated.

Nobody could be compared with such a one any more, so a class whose trusted executor was
upgraded alone would blame nobody for anything. It is not verified until a person has
calibrated it again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.verification.classes import Class
from gpuyard.verification.context import (
    Context,
    LeaseBusy,
    LeaseLost,
    call,
    when_trusted_is_free,
)
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import one_line
from gpuyard.verification.records import Records
from gpuyard.verification.tolerance import changes_of_runtime
from gpuyard.verification.tolerance_limits import PREFIX
from gpuyard.verification.trusted_executor import (
    ExecutorFault,
    TrustedAway,
    TrustedExecutor,
)

T = TypeVar("T")
SILENCES_TOLD = 3
"""From so many silences in a row on, people are told."""
_LONGEST_REASON = 400


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
    """Let the trusted executor judge, and note what it says of its engine while nobody
    else can ask or accept another.

    Raises as `let_judge`.
    """

    async def noted() -> T:
        done = await work()
        if trusted.runtime:
            await call(context.records.note_runtime, cls, trusted.runtime)
        return done

    return await let_judge(context, cls, trusted, noted)


async def let_judge(
    context: Context,
    cls: Class,
    trusted: TrustedExecutor,
    work: Callable[[], Awaitable[T]],
) -> T:
    """Run `work` as soon as the trusted executor is free, and note whether it answers:
    while it does not, nobody of the class can be judged, and a person has to know.

    Raises as `when_trusted_is_free`, and ExecutorFault as `work` does.
    """
    try:
        done = await when_trusted_is_free(context, trusted, work)
    except (ExecutorFault, LeaseBusy, LeaseLost) as error:
        await note_silence(context, cls, error)
        raise
    await call(context.records.note_answer, cls)
    return done


async def note_silence(context: Context, cls: Class, error: Exception) -> None:
    """Note that the trusted executor of a class did not do what it was asked."""
    busy = isinstance(error, TrustedAway) and error.busy
    reason = one_line(f"{error}")[:_LONGEST_REASON]
    await call(context.records.note_silence, cls, reason, busy=busy)


def silence_of(records: Records, cls: Class, name: str) -> str:
    """That the trusted executor of a class, called `name`, does not judge, and what to
    do; empty while it was silent only a few times.
    """
    silence = records.trusted_silence(cls)
    if silence is None or silence.times < SILENCES_TOLD:
        return ""
    since = datetime.fromtimestamp(silence.since, UTC).strftime("%Y-%m-%d %H:%M")
    return (
        f"class {cls}: its trusted executor {name} was asked {silence.times} times in a"
        f" row since {since} UTC, and did not answer, so checks may come to nothing."
        f" Give it no other jobs. The last time: {silence.reason}"
    )


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
