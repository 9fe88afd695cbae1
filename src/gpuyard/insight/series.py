"""Reduces a long series for a plot and keeps its peaks."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Valued(Protocol):
    """A point of a series."""

    @property
    def value(self) -> float:
        """Finite."""
        ...


Point = TypeVar("Point", bound=Valued)


class SeriesSummary(Generic[Point]):
    """A series that grows, of which a long one keeps only the lowest and the highest
    point of each run of `RUN` points.

    So what is drawn of a million points needs a look at few of them.
    """

    RUN = 32
    """A drawing of so many points at most has the extremes of each of its own runs, if
    these have more than `RUN` points."""
    MOST_WHOLE = 16_384

    def __init__(self) -> None:
        self.count = 0
        self._first: Point | None = None
        self._last: Point | None = None
        self._whole: list[Point] = []
        self._kept: list[Point] = []
        self._rest: list[Point] = []

    @property
    def size(self) -> int:
        """How many points it holds in memory."""
        return len(self._whole) + len(self._kept) + len(self._rest)

    def extend(self, points: Sequence[Point]) -> None:
        """Take the next points."""
        if not points:
            return
        self.count += len(points)
        self._first = self._first or points[0]
        self._last = points[-1]
        coming = [*self._rest, *points]
        whole_runs = len(coming) // self.RUN
        for run in range(whole_runs):
            part = coming[run * self.RUN : (run + 1) * self.RUN]
            places = _extremes([point.value for point in part])
            self._kept += [part[place] for place in places]
        self._rest = coming[whole_runs * self.RUN :]
        if self.count <= self.MOST_WHOLE:
            self._whole += points
        else:
            self._whole = []

    def drawn(self, limit: int) -> list[Point] | None:
        """At most `limit` points, as of `downsample`; None if so many need the whole
        series, which it does not have. ValueError if `limit` is below 4.
        """
        if self.count <= self.MOST_WHOLE:
            return downsample(self._whole, limit)
        if self.count < limit * self.RUN:
            return None
        points = [*self._kept, *self._rest]
        if self._first is not None and points[0] is not self._first:
            points.insert(0, self._first)
        if self._last is not None and points[-1] is not self._last:
            points.append(self._last)
        return downsample(points, limit)


def downsample(points: Sequence[Point], limit: int) -> list[Point]:
    """At most `limit` of `points`, in order: the first, the last, and the lowest and
    highest of each run between them. The runs have equal numbers of points. ValueError
    if `limit` is below 4, which is too few for one run.
    """
    values = [point.value for point in points]
    return [points[place] for place in _places(values, limit)]


def _places(values: Sequence[float], limit: int) -> Sequence[int]:
    """Where the points stand that `downsample` keeps, given their values."""
    if limit < 4:
        raise ValueError(
            f"limit is {limit}; it must be at least 4: the first, the last, a lowest"
            " and a highest point"
        )
    if len(values) <= limit:
        return range(len(values))
    kept = [0]
    runs = (limit - 2) // 2
    between = len(values) - 2
    for run in range(runs):
        begin = 1 + run * between // runs
        end = 1 + (run + 1) * between // runs
        kept += [begin + place for place in _extremes(values[begin:end])]
    kept.append(len(values) - 1)
    return kept


def _extremes(values: Sequence[float]) -> list[int]:
    """Where the lowest and the highest value of a run stand, in order; one place if
    they are the same.
    """
    lowest = values.index(min(values))
    highest = values.index(max(values))
    return sorted({lowest, highest})
