"""The series of a log's metrics, with one point for each step however often a program shows it."""

from dataclasses import dataclass
from math import isfinite

MAX_NAMES = 256  # metrics of one log; a program that makes up names without end must not fill memory


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric. `n` counts the points of its name from 0, the same each time the same log is read.

    `at` is when the value was read, UTC seconds.
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
    held: tuple[int | None, float, float] | None = None  # step, value and time of what may become a point

    def has(self, step: int | None) -> bool:
        return self.count > 0 and self.step == step

    def point(self, step: int | None, value: float, at: float) -> Point:
        self.step, self.count, self.held = step, self.count + 1, None
        return Point(self.name, self.count - 1, step, value, at)


class Curves:
    """Turns the values that lines show into points. `last` holds each metric's last value, none that is not finite."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}
        self._curves: dict[str, _Curve] = {}

    def show(self, name: str, step: int | None, value: float, at: float, *, drawn: bool, stepped: bool) -> list[Point]:
        """The points that are due now that a line shows `value` at `step`.

        A line that states its step (`stepped`), as every bar does, gives that step no second point: bars are redrawn,
        and a program may tell one value in two forms. A bar (`drawn`) goes on showing its last value until it is told a
        new one, often after it was drawn at the new step; so a repeated value is held back until its step has passed
        without another.
        """
        if not isfinite(value) or (name not in self._curves and len(self._curves) >= MAX_NAMES):
            return []
        curve = self._curves.setdefault(name, _Curve(name))
        repeated, self.last[name] = self.last.get(name) == value, value
        if (drawn or stepped) and curve.has(step):
            return []
        passed = [curve.point(*curve.held)] if curve.held and curve.held[0] != step else []
        if drawn and repeated:
            curve.held = curve.held or (step, value, at)
            return passed
        return [*passed, curve.point(step, value, at)]

    def flush(self) -> list[Point]:
        """The points still held back when the output ends."""
        return [curve.point(*curve.held) for curve in self._curves.values() if curve.held]
