"""What a class is held to, from what its trusted executor has shown: the deadline, and ranges of figures. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuyard.domain.errors import InvalidInputError

MARGIN = 0.15  # cards of one class differ by their coolers, clocks and drivers
LEEWAY = 1.2
FEWEST_RUNS = 5
LEAST_DEADLINE_S = 1.0  # a shorter one would judge the way to the executor, and not its GPU


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high`, both of them included."""

    low: float
    high: float

    def __contains__(self, figure: float) -> bool:
        return self.low <= figure <= self.high


@dataclass(frozen=True, slots=True)
class Calibration:
    """`deadline_s`: from the barrier to the answers' hash. `claims_s`: from there to all claims, None where they could
    not be made. `ranges` by figure, such as `tflops`."""

    deadline_s: float
    claims_s: float | None
    ranges: Mapping[str, Range]


def calibrate(
    solve_s: Sequence[float], probes: Sequence[Mapping[str, float]], claims_s: Sequence[float] = (),
    margin: float = MARGIN,
) -> Calibration:  # fmt: skip
    """From what the trusted executor showed: its solve times (s), its probes (figure → value), and how long all claims
    took it (s) whenever it could make them; InvalidInputError.

    Every probe has to have every figure. Probes may be empty: a class without a GPU has no ranges.
    """
    names = sorted({name for probe in probes for name in probe})
    for number, probe in enumerate(probes):
        if missing := [name for name in names if name not in probe]:
            raise InvalidInputError.of(f"probes.{number}", f"lacks {', '.join(missing)}", "repeat the calibration")
    ranges = {name: range_of(name, [probe[name] for probe in probes], margin) for name in names}
    longest_s = _held(deadline_s(claims_s, "claims_s")) if len(claims_s) == len(solve_s) else None
    return Calibration(_held(deadline_s(solve_s)), longest_s, ranges)


def _held(limit_s: float) -> float:
    return max(limit_s, LEAST_DEADLINE_S)


def deadline_s(taken_s: Sequence[float], name: str = "solve_s") -> float:
    """The 95th percentile, between its neighbours as a straight line, × 1.2; InvalidInputError for too few times."""
    times = _positive(name, taken_s)
    if len(times) < FEWEST_RUNS:
        fault = f"has {len(times)} times; the slowest of few runs says little"
        raise InvalidInputError.of(name, fault, f"let the trusted executor solve at least {FEWEST_RUNS} workloads")
    return statistics.quantiles(times, n=20, method="inclusive")[-1] * LEEWAY


def range_of(name: str, figures: Sequence[float], margin: float = MARGIN) -> Range:
    """From the least figure less `margin` (a part from 0 to below 1) to the greatest and as much; InvalidInputError."""
    if not 0 <= margin < 1:
        raise InvalidInputError.of("margin", f"is {margin:g}", "give a part from 0 to below 1, such as 0.15")
    values = _positive(name, figures)
    return Range(min(values) * (1 - margin), max(values) * (1 + margin))


def _positive(name: str, figures: Sequence[float]) -> Sequence[float]:
    if wrong := [figure for figure in figures if not (math.isfinite(figure) and figure > 0)]:
        raise InvalidInputError.of(name, f"has a figure of {wrong[0]:g}, not of more than 0", "repeat the calibration")
    if not figures:
        raise InvalidInputError.of(name, "has no figures", "repeat the calibration")
    return figures
