"""What all plots of a report share: colours, markers, legends and labels.

Each strategy has one colour and one marker in all plots. The first colours are Okabe's
and Ito's, which people who see colours differently can tell apart.
"""

# matplotlib has few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuyard.studies.run_table import RunTable

MOST = 60
"""How many strategies a plot shows."""
PALETTE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#8C6BB1",
    "#999933",
    "#CC6677",
    "#44AA99",
    "#A6761D",
    "#AA4499",
    "#7A8B99",
)
_MARKERS = "osD^vPX*<>phH8d."
# Where a label may stand beside its point: right, left, above, below, in points.
_PLACES = (
    (8, 0, "left", "center"),
    (-8, 0, "right", "center"),
    (0, 9, "center", "bottom"),
    (0, -9, "center", "top"),
    (8, 9, "left", "bottom"),
    (-8, 9, "right", "bottom"),
    (8, -9, "left", "top"),
    (-8, -9, "right", "top"),
)


def styles(strategies: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return each strategy's colour and marker, by its position in the run.

    No two of the first 208 are the same.
    """
    return {
        name: (PALETTE[at % len(PALETTE)], _MARKERS[at % len(_MARKERS)])
        for at, name in enumerate(strategies)
    }


def plotted(summary: RunTable) -> list[dict[str, Any]]:
    """Return the rows of the strategies that plots show, in the order of the run.

    Nobody can tell hundreds of curves apart, so these are at most MOST, the best.
    """
    rows = summary.strategies
    if len(rows) <= MOST:
        return rows
    best = [name for name, _ in summary.ranking.order]
    others = [row["strategy_id"] for row in rows if row["strategy_id"] not in best]
    shown = set([*best, *others][:MOST])
    return [row for row in rows if row["strategy_id"] in shown]


def legend(axes: Any, entries: int) -> None:
    """Put a legend below the axes."""
    axes.figure.legend(
        loc="outside lower center", ncols=2 if entries > 1 else 1, handletextpad=0.3
    )


def words(what: str, told: Sequence[str]) -> str:
    """Say what a plot shows; nothing where it has no data."""
    return f"{what}. {'; '.join(told)}." if told else ""


def is_missing(value: Any) -> bool:
    """Whether a figure is not there."""
    return value is None or not np.isfinite(value)


def place_labels(axes: Any, labels: Sequence[tuple[float, float, str]]) -> int:
    """Label points without overlaps; return how many labels there was room for.

    A label that would cover another label or a point is left out: the legend has it.
    """
    axes.figure.draw_without_rendering()
    points = axes.transData.transform([(x, y) for x, y, _ in labels])
    taken: list[Any] = []
    for (x, y, text), own in zip(labels, points, strict=True):
        others = [point for point in points if not np.array_equal(point, own)]
        for right, up, horizontal, vertical in _PLACES:
            note = axes.annotate(
                text,
                (x, y),
                (right, up),
                textcoords="offset points",
                fontsize=8,
                ha=horizontal,
                va=vertical,
            )
            box = note.get_window_extent()
            is_inside = axes.bbox.contains(box.x0, box.y0) and axes.bbox.contains(
                box.x1, box.y1
            )
            covers = any(box.contains(*point) for point in others)
            if is_inside and not covers and not box.count_overlaps(taken):
                taken.append(box)
                break
            note.remove()
    return len(taken)
