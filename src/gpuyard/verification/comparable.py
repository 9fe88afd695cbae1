"""Which executors can be compared with something, and why others cannot.

A class that cannot be verified is left out alone, with what a person has to do.
"""

from collections.abc import Mapping, Sequence

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.classes import Class
from gpuyard.verification.context import call
from gpuyard.verification.executors import Executor, tolerance_of
from gpuyard.verification.session import SOLVE, SOLVE_PRINTED, Session
from gpuyard.verification.tolerance_limits import required_limits
from gpuyard.verification.trusted_changes import unchanged
from gpuyard.verification.trusted_executor import TrustedExecutor


async def comparable(
    session: Session, executors: Sequence[Executor]
) -> tuple[list[Executor], dict[Class, str]]:
    """The executors that can be compared, and why the classes of the others cannot.

    That is where a trusted executor has changed, or the limits of a tolerance are not
    measured, as after each such change.
    """
    left, changed = await unchanged(session.context, executors)
    missing = await call(_without_limits, session, left)
    left = [executor for executor in left if executor.gpu_class not in missing]
    return left, changed | missing


def _without_limits(
    session: Session, executors: Sequence[Executor]
) -> dict[Class, str]:
    found: dict[Class, str] = {}
    for cls in sorted({executor.gpu_class for executor in executors}):
        if tolerance_of(session.store.settings, cls) is None:
            continue
        known = session.store.records.ranges(cls)
        ranges = {name: one.high for name, one in known.items()}
        try:
            require_limits(cls, ranges, session.trusted.get(cls))
        except InvalidInputError as error:
            found[cls] = f"class {cls} is not verified: {error}"
    return found


def require_limits(
    cls: Class, ranges: Mapping[str, float], trusted: TrustedExecutor | None
) -> None:
    """InvalidInputError where a class with tolerance lacks its limits or its deadline.

    A deadline of work without fingerprints does not hold for it.
    """
    required_limits(cls.value, ranges)
    if trusted is None or trusted.gpu_class is not cls:
        return
    if SOLVE in ranges and SOLVE_PRINTED not in ranges:
        raise InvalidInputError.of(
            f"verification.tolerances.{cls}",
            "is set, and the deadline was calibrated without fingerprints, which take"
            " time, too",
            f"run `gpuyard verify calibrate --class {cls} --trusted {trusted.name}`"
            " again",
        )
