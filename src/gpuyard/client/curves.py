"""Draws curves: as letters for a terminal, and as a page of HTML with SVG.

The page needs nothing else: no script, no font, no other file.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

_WIDTH = 72
_HEIGHT = 16
_PICTURE = (760, 300)
_EDGE = 46
# Okabe's and Ito's colours, which people who see colours differently can tell apart.
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C6BB1",
)
_STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:800px;margin:2em auto;"
    "color:CanvasText;background:Canvas;color-scheme:light dark}"
    "svg{width:100%;height:auto}text{fill:currentColor;font-size:12px}"
    "line{stroke:currentColor;opacity:.3}polyline{fill:none;stroke-width:1.8}"
    "td,th{padding:.1em .8em;text-align:right}td:first-child,th:first-child"
    "{text-align:left}"
)
# The part of it for curves in a page of somebody else.
_INNER_STYLE = (
    ".gpuyard svg{width:100%;max-width:760px;height:auto}"
    ".gpuyard text{fill:currentColor;font-size:12px}"
    ".gpuyard line{stroke:currentColor;opacity:.3}"
    ".gpuyard polyline{fill:none;stroke-width:1.8}"
)


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric of a job: `values` at `steps`, both of at least one point. `mark` is the
    letter of the job.
    """

    mark: str
    job_name: str
    job_id: str
    steps: list[float]
    values: list[float]

    @classmethod
    def of(
        cls, mark: str, name: str, job_id: str, points: Sequence[Mapping[str, Any]]
    ) -> "Curve":
        """From the points of the API; where one has no step, they are counted."""
        counted = any(point["step"] is None for point in points)
        steps = [
            float(number if counted else point["step"])
            for number, point in enumerate(points)
        ]
        return cls(mark, name, job_id, steps, [point["value"] for point in points])


@dataclass(frozen=True, slots=True)
class _PlotArea:
    """What part of the plane curves take."""

    left: float
    right: float
    low: float
    high: float

    @classmethod
    def around(cls, curves: Sequence[Curve]) -> "_PlotArea":
        steps = [step for curve in curves for step in curve.steps]
        values = [value for curve in curves for value in curve.values]
        return cls(min(steps), max(steps), min(values), max(values))

    def across(self, step: float) -> float:
        """From 0 on the left to 1 on the right."""
        width = self.right - self.left
        return (step - self.left) / width if width else 0.5

    def down(self, value: float) -> float:
        """From 0 at the top to 1 at the bottom."""
        # Halves, because the difference of two large values may be infinite.
        height = self.high / 2 - self.low / 2
        return (self.high / 2 - value / 2) / height if height else 0.5


def drawn(curves: Sequence[Curve]) -> list[str]:
    """The curves as lines of text; each point is the letter of its job, and `*` stands
    where two meet.
    """
    frame = _PlotArea.around(curves)
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for curve in curves:
        for column, row in _cells(curve, frame):
            taken = grid[row][column]
            grid[row][column] = curve.mark if taken in (" ", curve.mark) else "*"
    high = f"{frame.high:.4g}"
    low = f"{frame.low:.4g}"
    margin = max(len(high), len(low))
    labels = {0: high, _HEIGHT - 1: low}
    lines = [
        f"{labels.get(number, ''):>{margin}} │{''.join(row)}".rstrip()
        for number, row in enumerate(grid)
    ]
    left = f"{frame.left:g}"
    right = f"{frame.right:g}"
    foot = f"{left}{right:>{_WIDTH - len(left)}}"
    legend = "  ".join(f"{curve.mark} {curve.job_name}" for curve in curves)
    indent = " " * (margin + 2)
    axis = f"{' ' * margin} └{'─' * _WIDTH}"
    return [*lines, axis, f"{indent}{foot}", f"{indent}{legend}"]


def _cells(curve: Curve, frame: _PlotArea) -> set[tuple[int, int]]:
    """The cells of the grid that a curve goes through; columns between two points are
    on the straight line.
    """
    places = [
        (frame.across(step) * (_WIDTH - 1), frame.down(value) * (_HEIGHT - 1))
        for step, value in zip(curve.steps, curve.values, strict=True)
    ]
    cells = {(round(x), round(y)) for x, y in places}
    for (x, y), (next_x, next_y) in itertools.pairwise(places):
        for column in range(round(x) + 1, round(next_x)):
            part = (column - x) / (next_x - x)
            cells.add((column, round(y + part * (next_y - y))))
    return cells


def page(metrics: Mapping[str, Sequence[Curve]]) -> str:
    """A page with the curves of each metric, and their values."""
    names = {
        curve.mark: curve.job_name for curves in metrics.values() for curve in curves
    }
    title = f"Compared: {', '.join(names[mark] for mark in sorted(names))}"
    return whole_page(title, parts_of(metrics))


def whole_page(title: str, content: str) -> str:
    """A page of its own with this `content`, which is HTML; the title is text."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>\n{content}</body></html>\n"
    )


def sections(metrics: Mapping[str, Sequence[Curve]]) -> str:
    """The curves of each metric and their values, to stand in another page."""
    style = f"<style>{_INNER_STYLE}</style>"
    return f'<div class="gpuyard">{style}{parts_of(metrics)}</div>'


def parts_of(metrics: Mapping[str, Sequence[Curve]]) -> str:
    """The same without a style, to stand in a `whole_page`."""
    return "".join(_section(name, curves) for name, curves in metrics.items())


def _section(name: str, curves: Sequence[Curve]) -> str:
    frame = _PlotArea.around(curves)
    lines = "".join(_polyline(curve, frame) for curve in curves)
    rows = "".join(
        f'<tr><td><span style="color:{_colour(curve)}">■</span>'
        f" {escape(curve.job_name)}</td><td>{curve.values[-1]:.6g}</td>"
        f"<td>{min(curve.values):.6g}</td><td>{max(curve.values):.6g}</td></tr>"
        for curve in curves
    )
    return (
        f"<h2>{escape(name)}</h2>{_picture(frame, lines)}"
        "<table><tr><th>Job</th><th>Last</th><th>Least</th><th>Greatest</th></tr>"
        f"{rows}</table>\n"
    )


def _picture(frame: _PlotArea, lines: str) -> str:
    width, height = _PICTURE
    bottom = height - 24
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img">'
        f'<line x1="{_EDGE}" y1="8" x2="{_EDGE}" y2="{bottom}"/>'
        f'<line x1="{_EDGE}" y1="{bottom}" x2="{width - 8}" y2="{bottom}"/>'
        f'<text x="0" y="16">{frame.high:.4g}</text>'
        f'<text x="0" y="{bottom}">{frame.low:.4g}</text>'
        f'<text x="{_EDGE}" y="{height - 6}">{frame.left:g}</text>'
        f'<text x="{width - 8}" y="{height - 6}" text-anchor="end">'
        f"{frame.right:g}</text>{lines}</svg>"
    )


def _polyline(curve: Curve, frame: _PlotArea) -> str:
    width, height = _PICTURE
    across = width - 8 - _EDGE
    down = height - 24 - 8
    points = " ".join(
        f"{_EDGE + frame.across(step) * across:.1f},{8 + frame.down(value) * down:.1f}"
        for step, value in zip(curve.steps, curve.values, strict=True)
    )
    title = f"<title>{escape(curve.job_name)}</title>"
    return f'<polyline points="{points}" stroke="{_colour(curve)}">{title}</polyline>'


def _colour(curve: Curve) -> str:
    return _COLOURS[(ord(curve.mark) - ord("A")) % len(_COLOURS)]
