"""Plots of what one pays for speed: the Pareto front, and the knee of batch sizes."""

# matplotlib has few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuyard.studies.plot_style import (
    LONGEST_NAME,
    is_missing,
    legend,
    place_labels,
    plot_names,
    plotted,
    short_name,
    styles,
    words,
)
from gpuyard.studies.run_table import RunTable

_LAYOUT = ("num_nodes", "gpus_per_node", "tp_size", "pp_size", "dp_size")
_NOT_RIGHT = " (not right)"
_DRAWN = (
    "tokens_per_s",
    "latency_ms_p50",
    "batch_size",
    "tp_size",
    "pp_size",
    "dp_size",
)
_CURVE = (*_LAYOUT, "engine", "precision", "quantization")
"""What jobs must have in common, to differ in the size of their batches alone."""


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the points that no other beats in both figures, by the first figure.

    Less is better in both.
    """
    order = sorted(range(len(points)), key=lambda at: points[at])
    front: list[int] = []
    for at in order:
        if not front or points[at][1] < points[front[-1]][1]:
            front.append(at)
    return front


def knee(points: Sequence[tuple[float, float]]) -> int | None:
    """Return the point farthest below the line from the first to the last.

    `points` are throughput and latency, by the size of the batch. Beyond the knee more
    throughput costs more latency than before it. None for fewer than three points, and
    where throughput and latency do not both rise.
    """
    if len(points) < 3:
        return None
    values = np.array(points, float)
    spans = np.ptp(values, axis=0)
    if not (values[-1] > values[0]).all():
        return None
    scaled = (values - values.min(axis=0)) / spans
    start = scaled[0]
    end = scaled[-1]
    rise = (end[1] - start[1]) / (end[0] - start[0])
    below = start[1] + rise * (scaled[:, 0] - start[0]) - scaled[:, 1]
    at = int(below.argmax())
    return at if below[at] > 1e-9 else None


def draw_pareto(summary: RunTable, axes: Any) -> str:
    """Draw cost against latency; the front joins the right strategies on it."""
    names = plot_names(summary)
    look = styles([row["strategy_id"] for row in plotted(summary)])
    wrong = {name for name, _ in summary.ranking.wrong}
    rows = [
        row
        for row in plotted(summary)
        if not is_missing(row.get("gpu_hours_per_million"))
        and not is_missing(row["latency_ms_p50"])
    ]
    for row in rows:
        colour, marker = look[row["strategy_id"]]
        is_wrong = row["strategy_id"] in wrong
        name = names[row["strategy_id"]]
        if is_wrong:
            name = short_name(name, LONGEST_NAME - len(_NOT_RIGHT)) + _NOT_RIGHT
        axes.plot(
            row["latency_ms_p50"],
            row["gpu_hours_per_million"],
            marker,
            color=colour,
            markerfacecolor="none" if is_wrong else colour,
            markersize=8,
            label=name,
            linestyle="none",
        )
    right = [row for row in rows if row["strategy_id"] not in wrong]
    points = [(row["latency_ms_p50"], row["gpu_hours_per_million"]) for row in right]
    front = pareto_front(points)
    if not rows:
        return ""
    if len(front) > 1:
        axes.plot(*zip(*(points[at] for at in front), strict=True), "-", zorder=0)
    axes.set(xlabel="median latency, ms", ylabel="GPU-hours per million tokens")
    axes.margins(0.15, 0.15)
    legend(axes, len(rows))
    place_labels(
        axes,
        [(*points[at], names[right[at]["strategy_id"]]) for at in front],
        [(row["latency_ms_p50"], row["gpu_hours_per_million"]) for row in rows],
    )
    best = ", ".join(right[at]["label"] for at in front) or "none"
    told = [
        f"{row['label']}: {row['latency_ms_p50']:,.0f} ms,"
        f" {row['gpu_hours_per_million']:,.2f} GPU-hours"
        for row in rows
    ]
    return words(
        f"Cost and median latency; on the front, where none is better in both: {best}",
        told,
    )


def draw_knee(summary: RunTable, axes: Any) -> str:
    """Draw latency against throughput for each layout with several batch sizes."""
    told: list[str] = []
    curves = list(_layouts(summary).values())
    look = styles([rows[0]["strategy_id"] for rows in curves])
    called = _curve_names(summary, curves)
    notes: list[tuple[float, float, str]] = []
    for rows, name in zip(curves, called, strict=True):
        colour, marker = look[rows[0]["strategy_id"]]
        points = [(row["tokens_per_s"], row["latency_ms_p50"]) for row in rows]
        axes.plot(*zip(*points, strict=True), marker=marker, color=colour, label=name)
        notes += [
            (*point, str(row["batch_size"]))
            for point, row in zip(points, rows, strict=True)
        ]
        at = knee(points)
        where = (
            "no knee" if at is None else f"knee at batch size {rows[at]['batch_size']}"
        )
        told.append(f"{name}: {where}")
        if at is not None:
            axes.plot(*points[at], "o", color=colour, markersize=16, fillstyle="none")
    if curves:
        axes.set(
            xlabel="tokens/s; numbers are batch sizes", ylabel="median latency, ms"
        )
        axes.margins(0.12, 0.15)
        legend(axes, len(curves))
        place_labels(axes, notes)
    return words("Latency against throughput by batch size; circles are knees", told)


def _layouts(summary: RunTable) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """Return rows of strategies with several batch sizes by layout, smallest first."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    wrong = {name for name, _ in summary.ranking.wrong}
    for row in plotted(summary):
        figures = [row.get(name) for name in _DRAWN]
        if not any(map(is_missing, figures)) and row["strategy_id"] not in wrong:
            found.setdefault(tuple(row.get(name) for name in _CURVE), []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row["batch_size"])
    return {
        layout: rows
        for layout, rows in found.items()
        if len({row["batch_size"] for row in rows}) > 1
    }


def _curve_names(
    summary: RunTable, curves: Sequence[Sequence[Mapping[str, Any]]]
) -> list[str]:
    """Name each curve: as its study does, or else by its layout and engine."""
    engines = {rows[0].get("engine") for rows in curves}
    found: list[str] = []
    for rows in curves:
        given = {summary.given_name(row["strategy_id"]) for row in rows}
        first = rows[0]
        name = given.pop() if len(given) == 1 else ""
        if not name:
            sizes = [f"{kind} {first[f'{kind}_size']:g}" for kind in ("tp", "pp", "dp")]
            engine = [str(first.get("engine"))] if len(engines) > 1 else []
            rounded = [first["quantization"]] if first.get("quantization") else []
            name = ", ".join([*sizes, *engine, *rounded])
        found.append(short_name(name))
    return found
