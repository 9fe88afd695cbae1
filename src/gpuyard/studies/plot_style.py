"""What all plots of a report share: colours, markers, legends and labels.

Each strategy has one colour and one marker in all plots. The first colours are Okabe's
and Ito's, which people who see colours differently can tell apart.
"""

# matplotlib has few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuyard.studies.run_table import RunTable

MOST = 60
"""How many strategies a plot shows."""
LONGEST_NAME = 28
"""Columns of text; two such names fit beside each other below a plot."""
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


def plot_names(summary: RunTable) -> dict[str, str]:
    """Return what plots call each strategy: short names, of which no two are the same.

    The table has the whole names.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for number, row in enumerate(summary.strategies, 1):
        name = short_name(row["label"])
        if name in taken:
            end = f" ({number})"
            name = short_name(row["label"], LONGEST_NAME - len(end)) + end
        taken.add(name)
        found[row["strategy_id"]] = name
    return found


def short_name(name: str, most: int = LONGEST_NAME) -> str:
    """Cut the middle out of a name that has more than `most` columns.

    Matplotlib leaves what begins with an underscore out of legends, so a blank comes
    before it.
    """
    if name.startswith("_"):
        name = f" {name}"
    if _columns(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{_first(name, half)}…{_first(name[::-1], half)[::-1]}"


def _columns(text: str) -> int:
    """How wide a text is; letters of Chinese, say, have two columns."""
    return sum(1 + (unicodedata.east_asian_width(one) in "WF") for one in text)


def _first(text: str, most: int) -> str:
    """The beginning of a text, of at most so many columns."""
    width = 0
    for place, letter in enumerate(text):
        width += _columns(letter)
        if width > most:
            return text[:place]
    return text


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


def place_labels(
    axes: Any,
    labels: Sequence[tuple[float, float, str]],
    marks: Sequence[tuple[float, float]] = (),
) -> int:
    """Label points without overlaps; return how many labels there was room for.

    A label that would cover another label, a point or one of `marks` is left out: the
    legend has it.
    """
    if not labels:
        return 0
    axes.figure.draw_without_rendering()
    points = axes.transData.transform([(x, y) for x, y, _ in labels])
    every = [*points, *axes.transData.transform(marks)] if len(marks) else [*points]
    taken: list[Any] = []
    for (x, y, text), own in zip(labels, points, strict=True):
        others = [point for point in every if not np.array_equal(point, own)]
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
