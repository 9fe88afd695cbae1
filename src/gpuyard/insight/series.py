"""Reduces a long series for a plot and keeps its peaks."""

from collections.abc import Sequence

XY = tuple[float, float]


def downsample(points: Sequence[XY], limit: int) -> list[XY]:
    """At most `limit` of `points`, in order: the first, the last, and the lowest and
    highest of each run between them.

    The runs have equal numbers of points. `points` are (x, y) in the order of x; y is
    finite. ValueError if `limit` is below 4, which is too few for one run.
    """
    if limit < 4:
        raise ValueError(
            f"limit is {limit}; it must be at least 4: the first, the last, a lowest"
            " and a highest point"
        )
    if len(points) <= limit:
        return list(points)
    kept = [points[0]]
    runs = (limit - 2) // 2
    between = len(points) - 2
    for run in range(runs):
        indices = range(1 + run * between // runs, 1 + (run + 1) * between // runs)
        lowest = min(indices, key=lambda i: points[i][1])
        highest = max(indices, key=lambda i: points[i][1])
        kept += [points[i] for i in sorted({lowest, highest})]
    kept.append(points[-1])
    return kept
