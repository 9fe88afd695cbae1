"""The series of a log's metrics, with one point per step however often a program shows
it.
"""

from dataclasses import dataclass
from math import isfinite

# The most metrics of one log, so that a program that makes up names cannot fill memory.
MAX_NAMES = 256


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of a metric. `n` counts the points of its name from 0, and is the same
    each time the same log is read.

    `at` is when the value was read, in UTC seconds.
    """

    name: str
    n: int
    step: int | None
    value: float
    at: float


@dataclass(slots=True)
class _Curve:
    name: str
    count: int = 0
    step: int | None = None  # of the last point
    # Step, value and time of a point that is held back.
    held: tuple[int | None, float, float] | None = None

    def has(self, step: int | None) -> bool:
        return self.count > 0 and self.step == step

    def point(self, step: int | None, value: float, at: float) -> MetricPoint:
        self.step = step
        self.count = self.count + 1
        self.held = None
        return MetricPoint(self.name, self.count - 1, step, value, at)


class Curves:
    """Turns the values in lines into points.

    `last` holds each metric's last finite value.
    """

    def __init__(self) -> None:
        self.last: dict[str, float] = {}
        self._curves: dict[str, _Curve] = {}

    def show(
        self,
        name: str,
        step: int | None,
        value: float,
        at: float,
        *,
        drawn: bool,
        stepped: bool,
    ) -> list[MetricPoint]:
        """The points that are complete now that a line shows `value` at `step`.

        A line that states its step (`stepped`), as every bar does, adds no second point
        to that step: bars are redrawn, and a program may print one value in two forms.
        A bar (`drawn`) shows its last value until it gets a new one, often after it was
        drawn at the new step. So a repeated value is held back until its step has
        passed without another value.
        """
        is_full = len(self._curves) >= MAX_NAMES
        if not isfinite(value) or (is_full and name not in self._curves):
            return []
        curve = self._curves.setdefault(name, _Curve(name))
        repeated = self.last.get(name) == value
        self.last[name] = value
        if (drawn or stepped) and curve.has(step):
            return []
        points: list[MetricPoint] = []
        if curve.held and curve.held[0] != step:
            points.append(curve.point(*curve.held))
        if not (drawn and repeated):
            points.append(curve.point(step, value, at))
        elif curve.held is None:
            curve.held = (step, value, at)
        return points

    def flush(self) -> list[MetricPoint]:
        """The points that are still held back at the end of the output."""
        return [
            curve.point(*curve.held) for curve in self._curves.values() if curve.held
        ]
