"""Calibration: a class's deadline and ranges, from runs of its trusted executor."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.domain.gpus import GPUClass
from gpuyard.verification.claims import Claim, wanted_of
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import (
    LeaseBusy,
    LeaseLost,
    call,
    when_trusted_is_free,
)
from gpuyard.verification.executors import Executor
from gpuyard.verification.prompts import read_file
from gpuyard.verification.records.series import Series
from gpuyard.verification.session import SOLVE_PRINTED, Session, deadline_range
from gpuyard.verification.trusted_changes import accept
from gpuyard.verification.trusted_executor import (
    ExecutorFault,
    JobTrustedExecutor,
    TrustedRun,
)
from gpuyard.verification.verify import (
    NotPreparedError,
    Say,
    check_places,
    prepare,
)

# Cards of one class differ by their coolers, clocks and drivers.
LEEWAY = 1.2
# A model loads much faster from a warm cache than from a cold disk.
PREPARE_LEEWAY = 3.0
LEAST_PREPARE_S = 10.0
_PROOFS = ("vram", "speed")
FEWEST_RUNS = 5
# A shorter deadline would judge the network and not the GPU.
LEAST_DEADLINE_S = 1.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a class is held to.

    `deadline_s`: from the barrier to the answers' hash. `claims_s`: from there to all
    claims; None when the trusted executor could not make them.
    """

    deadline_s: float
    claims_s: float | None


def calibrate(solve_s: Sequence[float], claims_s: Sequence[float] = ()) -> Calibration:
    """Compute a calibration from what the trusted executor showed; InvalidInputError.

    `solve_s`: its solve times. `claims_s`: how long all claims took, for each run in
    which it could make them.
    """
    longest_s = (
        _at_least_minimum(deadline_s(claims_s, "claims_s"))
        if len(claims_s) == len(solve_s)
        else None
    )
    return Calibration(_at_least_minimum(deadline_s(solve_s)), longest_s)


def _at_least_minimum(limit_s: float) -> float:
    return max(limit_s, LEAST_DEADLINE_S)


def deadline_s(taken_s: Sequence[float], name: str = "solve_s") -> float:
    """The 95th percentile of the times, interpolated, × 1.2.

    Raises InvalidInputError when there are too few times.
    """
    times = _positive(name, taken_s)
    if len(times) < FEWEST_RUNS:
        fault = f"has {len(times)} times; the slowest of few runs says little"
        raise InvalidInputError.of(
            name,
            fault,
            f"let the trusted executor solve at least {FEWEST_RUNS} workloads",
        )
    return statistics.quantiles(times, n=20, method="inclusive")[-1] * LEEWAY


def _positive(name: str, figures: Sequence[float]) -> Sequence[float]:
    if wrong := [
        figure for figure in figures if not (math.isfinite(figure) and figure > 0)
    ]:
        raise InvalidInputError.of(
            name,
            f"has a figure of {wrong[0]:g}, not of more than 0",
            "repeat the calibration",
        )
    if not figures:
        raise InvalidInputError.of(name, "has no figures", "repeat the calibration")
    return figures


class TooLittleWorkError(GpuyardError):
    """A series is solved so fast that a deadline would judge the network."""

    code = "verification_too_little_work"
    exit_code = 4


def require_work(cls: Class, solve_s: Sequence[float]) -> None:
    """TooLittleWorkError when a GPU class needs too little time for its series."""
    needed_s = deadline_s(solve_s)
    if isinstance(cls, GPUClass) and needed_s < LEAST_DEADLINE_S:
        raise TooLittleWorkError(
            f"The trusted executor of {cls} solves a series in {max(solve_s):.2f} s."
            " A deadline from that would judge the network and not the GPU.",
            "Use a larger model for all executors of the class.",
        )


async def calibrate_class(
    session: Session, executor: Executor, runs: int, say: Say
) -> Calibration:
    """Let the trusted executor solve `runs` series, and store the calibration.

    Where tolerance is allowed, it makes fingerprints, too, as those do who are checked.
    """
    cls = executor.gpu_class
    records = session.context.records
    trusted = session.trusted.get(cls)
    if trusted is None or trusted.name != executor.name:
        fault = f"{executor.name} is not trusted for {cls}"
        remedy = f"set trusted = true for {executor.name}"
        raise InvalidInputError.of("--trusted", fault, remedy)
    if trusted.gpu_class is not cls:
        fault = f"{executor.name} is of the class {trusted.gpu_class}, not {cls}"
        remedy = "a deadline is measured by a trusted executor of the class itself"
        raise InvalidInputError.of("--trusted", fault, remedy)
    await check_places(session, [executor])
    await prepare(session, cls, 1, say)
    found = await call(records.series, cls)
    name = deadline_range(session.store.settings, cls)
    wanted = {}
    if isinstance(cls, GPUClass):
        wanted = wanted_of(cls, frozenset(Claim)).proofs
    times = list[float]()
    prepare_s = list[float]()
    claims_s = list[float]()
    proven = list[TrustedRun]()
    for number in range(runs):
        series = found[number % len(found)]
        run = await _timed_run(
            session, trusted, series, wanted, fingerprints=name == SOLVE_PRINTED
        )
        times.append(run.solve_s)
        prepare_s.append(run.prepare_s)
        if wanted and all("digest" in (run.claims.get(name) or {}) for name in _PROOFS):
            claims_s.append(run.claims_s)
            proven.append(run)
        say(f"{number + 1} of {runs}: {run.solve_s:.2f} s")
    require_work(cls, times)
    result = calibrate(times, claims_s)
    longest_s = max(PREPARE_LEEWAY * max(prepare_s), LEAST_PREPARE_S)
    limits = {
        name: (min(times), result.deadline_s),
        "prepare_s": (min(prepare_s), longest_s),
    }
    if result.claims_s:
        limits["claims_s"] = (min(claims_s), result.claims_s)
        limits.update(proof_limits(proven))
    await accept(session.context, cls, trusted.runtime)
    await call(records.put_ranges, cls, limits)
    return result


def proof_limits(runs: Sequence[TrustedRun]) -> dict[str, tuple[float, float]]:
    """The least and the longest time of a claim by itself: `vram_s` and `speed_s`.

    It is the time of all claims, by our clock, without what the trusted executor says
    that the other proof took. There are none if it does not say it.
    """
    limits: dict[str, tuple[float, float]] = {}
    for name, other in (_PROOFS, _PROOFS[::-1]):
        said = [run.claims[other].get("took_s") for run in runs]
        if not all(isinstance(one, float) and one > 0 for one in said):
            continue
        times = [run.claims_s - one for run, one in zip(runs, said, strict=True) if one]
        if min(times) > 0:
            longest_s = _at_least_minimum(deadline_s(times, f"{name}_s"))
            limits[f"{name}_s"] = (min(times), longest_s)
    return limits


async def _timed_run(
    session: Session,
    trusted: JobTrustedExecutor,
    series: Series,
    claims: Mapping[str, Any],
    *,
    fingerprints: bool,
) -> TrustedRun:
    """Let the trusted executor solve a series once; NotPreparedError."""
    context = session.context
    size = TRAITS[trusted.gpu_class].prompts
    prompts = await read_file(context, series.blob, size)
    solve = partial(
        trusted.solve_timed,
        prompts,
        context.draw_seed(),
        claims,
        fingerprints=fingerprints,
    )
    try:
        _, run = await when_trusted_is_free(context, trusted, solve)
    except (ExecutorFault, LeaseLost, LeaseBusy) as error:
        raise NotPreparedError(f"{error}.") from error
    return run
