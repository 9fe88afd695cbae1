"""The plots of a run's report, as SVG that takes its ink from the page around it.

`plot_style` has the colours and markers of the strategies.
"""

# matplotlib and pandas have few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportArgumentType=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportOptionalOperand=false
import html
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuyard.studies.load_plot import draw_load
from gpuyard.studies.plot_style import (
    is_missing,
    legend,
    place_labels,
    plot_names,
    plotted,
    styles,
    words,
)
from gpuyard.studies.run_table import RunTable
from gpuyard.studies.tradeoff_plots import draw_knee, draw_pareto

_INK = "#123456"
_FAINT = "#123457"
"""Stand-ins in the drawing for the page's text and lines: the SVG has `currentColor`
and a variable in their place.
"""
_INCH_PER_BAR = 0.32
_MOST_POINTS = 6000
"""Of all strategies of a plot together: each takes about 100 bytes of the page."""
_PARTS = (("computing", 1.0, ""), ("communicating", 0.45, "////"), ("else", 0.12, ""))
"""What the time of generation is split into, how strong each is drawn and with which
hatching.
"""
_STYLE = {
    "svg.fonttype": "none",
    # Names may have dollar signs.
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "path.simplify": True,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing as SVG.

    `name` is for programs; `title` and `alt` (what the drawing shows) are for people.
    """

    name: str
    title: str
    alt: str
    svg: str


@dataclass(frozen=True, slots=True)
class _Sketch:
    """How a plot is drawn on axes.

    `draw` returns what it shows in words, or nothing where there are no data.
    """

    title: str
    draw: Callable[[RunTable, Any], str]
    by_row: bool = False


def build_plots(summary: RunTable) -> list[Plot]:
    """Draw every plot. A plot without data says so."""
    import matplotlib as mpl

    plots: list[Plot] = []
    for name, sketch in _SKETCHES.items():
        if name == "load" and not summary.loads:
            continue
        with (
            mpl.rc_context({**_STYLE, "svg.hashsalt": name}),
            warnings.catch_warnings(),
        ):
            # The reader's own fonts show the letters that Matplotlib's have not.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            plots.append(_draw(summary, name, sketch))
    return plots


def _draw(summary: RunTable, name: str, sketch: _Sketch) -> Plot:
    figure, alt = _figure_of(summary, sketch)
    return Plot(name, sketch.title, alt, _svg(figure, name, sketch.title, alt))


def _figure_of(summary: RunTable, sketch: _Sketch) -> tuple[Any, str]:
    """Draw a plot, and return it with what it shows in words."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count = len(plotted(summary))
    height = 3.6 + 0.1 * count
    if sketch.by_row:
        height = max(2.2, 1.4 + _INCH_PER_BAR * count)
    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1)
    figure = Figure(figsize=(5.4, height), layout=layout)
    axes = figure.subplots()
    alt = sketch.draw(summary, axes)
    if not alt:
        alt = "There are no data for this plot."
        axes.clear()
        axes.set_axis_off()
        axes.text(0.5, 0.5, alt, ha="center", va="center", transform=axes.transAxes)
    return figure, alt


def _svg(figure: Any, name: str, title: str, alt: str) -> str:
    """Return the drawing as SVG for a page.

    What only a file needs is removed. Ids carry the plot's name, so that several plots
    can be in one page.
    """
    file = io.StringIO()
    figure.savefig(
        file,
        format="svg",
        metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
    )
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(_INK, "currentColor").replace(_FAINT, "var(--line, #999)")
    svg = svg.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif")
    box = re.search(r'viewBox="[^"]+"', svg)
    label = f"<title>{html.escape(title)}</title><desc>{html.escape(alt)}</desc>"
    spaces = (
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    )
    opening = f'<svg {spaces} role="img" {box[0] if box else ""}>'
    return opening + label + svg[svg.index(">") + 1 :].strip()


# --- the plots ---


def _latency_correctness(summary: RunTable, axes: Any) -> str:
    name = summary.primary
    names = plot_names(summary)
    told = []
    look = styles([row["strategy_id"] for row in plotted(summary)])
    for row in plotted(summary):
        x = row["latency_ms_p50"]
        y = row.get(name)
        if is_missing(x) or is_missing(y):
            continue
        colour, marker = look[row["strategy_id"]]
        low = row.get(f"{name}_low")
        high = row.get(f"{name}_high")
        if not is_missing(low) and not is_missing(high):
            axes.errorbar(
                x, y, [[y - low], [high - y]], color=colour, capsize=3, linewidth=1.2
            )
        axes.plot(
            x,
            y,
            marker,
            color=colour,
            markersize=9,
            label=names[row["strategy_id"]],
            linestyle="none",
        )
        told.append(f"{row['label']}: {x:,.0f} ms, {y:.2f}")
    if told:
        reference = (
            "the smallest layout's answers"
            if name.startswith("peer")
            else "the reference"
        )
        axes.set(xlabel="median latency, ms", ylabel=f"agreement with {reference}")
        axes.set_xlim(0, axes.get_xlim()[1] * 1.05)
        low = min(axes.get_ylim()[0], 0.9)
        axes.set_ylim(max(0.0, low), 1.02)
        legend(axes, len(told))
    return words("Agreement and median latency of each strategy", told)


def _throughput_length(summary: RunTable, axes: Any) -> str:
    told: list[str] = []
    names = plot_names(summary)
    look = styles([row["strategy_id"] for row in plotted(summary)])
    for strategy_id, rows in _answers(summary):
        length = (
            rows["prompt_tokens"]
            if rows["prompt_tokens"].notna().any()
            else rows.get("token_budget")
        )
        pace = rows["tokens_generated"] / (rows["cluster_latency_ms"] / 1000)
        if length is None:
            continue
        points = np.column_stack([length.to_numpy(float), pace.to_numpy(float)])
        points = _thin(points[np.isfinite(points).all(axis=1)], len(look))
        if not len(points):
            continue
        colour, marker = look[strategy_id]
        axes.plot(
            *points.T,
            marker,
            color=colour,
            alpha=0.55,
            markersize=5,
            label=names[strategy_id],
            linestyle="none",
        )
        told.append(
            f"{summary.label(strategy_id)}: median"
            f" {np.median(points[:, 1]):,.1f} tokens/s"
        )
    if told:
        axes.set(xlabel="tokens of the prompt", ylabel="tokens/s of one answer")
        axes.set_ylim(bottom=0)
        legend(axes, len(told))
    return words("Tokens per second of each answer by the length of its prompt", told)


def _latency_distribution(summary: RunTable, axes: Any) -> str:
    told: list[str] = []
    names = [row["strategy_id"] for row in plotted(summary)]
    look = styles(names)
    found = dict(_answers(summary))
    for place, name in enumerate(names):
        values = (
            found[name]["cluster_latency_ms"].dropna().to_numpy(float)
            if name in found
            else np.empty(0)
        )
        if not len(values):
            axes.text(0, place, " no answers", va="center", fontsize=9)
            continue
        colour, _ = look[name]
        axes.boxplot(
            values,
            positions=[place],
            orientation="horizontal",
            widths=0.6,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": colour, "alpha": 0.35, "edgecolor": colour},
            medianprops={"color": colour, "linewidth": 2.5},
            whiskerprops={"color": colour},
            capprops={"color": colour},
        )
        some = _thin(values, len(names))
        spread = place + (np.arange(len(some)) * 0.618 % 1 - 0.5) * 0.4
        axes.plot(some, spread, "o", color=colour, markersize=2.5, alpha=0.7)
        told.append(
            f"{summary.label(name)}: half within {np.median(values):,.0f} ms,"
            f" 90 % within {np.percentile(values, 90):,.0f} ms"
        )
    _rows(axes, summary, names)
    axes.set_xlabel("latency, ms\n(box: quartiles; whiskers: 5 % and 95 %)")
    axes.set_xlim(left=0)
    return words("Latency of the answers of each strategy", told)


def _memory(summary: RunTable, axes: Any) -> str:
    told: list[str] = []
    names = [row["strategy_id"] for row in plotted(summary)]
    look = styles(names)
    for place, name in enumerate(names):
        ranks = summary.metrics[summary.metrics["strategy_id"] == name]
        values = ranks["peak_memory_bytes"].dropna().to_numpy(float) / 2**30
        if not len(values):
            axes.text(0, place, " not measured", va="center", fontsize=9)
            continue
        colour, marker = look[name]
        axes.plot(
            [0, values.max()],
            [place, place],
            color=colour,
            linewidth=7,
            alpha=0.25,
            solid_capstyle="butt",
        )
        some = _thin(np.sort(values), len(names))
        axes.plot(
            some,
            np.full(len(some), place),
            marker,
            color=colour,
            alpha=0.8,
            linestyle="none",
        )
        told.append(
            f"{summary.label(name)}: {values.min():.2f} to {values.max():.2f} GiB,"
            f" {len(values)} ranks measured"
        )
    _rows(axes, summary, names)
    axes.set_xlabel("most memory in use, GiB; one mark per rank")
    axes.set_xlim(left=0)
    return words("Peak memory of each rank", told)


def _time_split(summary: RunTable, axes: Any) -> str:
    from matplotlib.patches import Patch

    told: list[str] = []
    names = [row["strategy_id"] for row in plotted(summary)]
    look = styles(names)
    for place, name in enumerate(names):
        ranks = summary.metrics[summary.metrics["strategy_id"] == name]
        parts = [ranks[column].mean() for column in ("compute_s", "communication_s")]
        if any(is_missing(part) for part in parts):
            axes.text(0, place, " not measured", va="center", fontsize=9)
            continue
        total = ranks["generate_s"].mean()
        parts.append(max(0.0, (0 if is_missing(total) else total) - sum(parts)))
        left = 0.0
        colour = look[name][0]
        for part, (_, alpha, hatch) in zip(parts, _PARTS, strict=True):
            axes.barh(
                place,
                part,
                left=left,
                color=colour,
                alpha=alpha,
                hatch=hatch,
                height=0.6,
                edgecolor=colour,
            )
            left += part
        told.append(
            f"{summary.label(name)}: {parts[0]:.1f} s computing,"
            f" {parts[1]:.1f} s communicating, {parts[2]:.1f} s else"
        )
    _rows(axes, summary, names)
    axes.set_xlabel("seconds of generation, mean of ranks")
    if told:
        blank = {"facecolor": _INK, "edgecolor": _INK}
        keys = [
            Patch(**blank, alpha=alpha, hatch=hatch, label=label)
            for label, alpha, hatch in _PARTS
        ]
        axes.legend(
            handles=keys, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3
        )
    return words("Time of generation split", told)


def _scaling(summary: RunTable, axes: Any) -> str:
    told: list[str] = []
    names = plot_names(summary)
    notes: dict[tuple[int, float], str] = {}
    rows = [row for row in plotted(summary) if not is_missing(row.get("speed_up"))]
    look = styles([row["strategy_id"] for row in plotted(summary)])
    for row in rows:
        colour, marker = look[row["strategy_id"]]
        axes.plot(
            row["gpus"],
            row["speed_up"],
            marker,
            color=colour,
            markersize=9,
            label=names[row["strategy_id"]],
            linestyle="none",
        )
        notes[row["gpus"], round(row["speed_up"], 1)] = f"{row['efficiency']:.0%}"
        told.append(
            f"{row['label']}: {row['speed_up']:.2f} times with GPUs:"
            f" {row['gpus']}, {row['efficiency']:.0%}"
        )
    if rows:
        sizes = sorted({row["gpus"] for row in rows})
        axes.plot(
            sizes,
            [size / sizes[0] for size in sizes],
            "--",
            color=_FAINT,
            label="ideal",
            zorder=0,
        )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.set(
            xlabel="GPUs",
            ylabel="speed-up, with parallel efficiency",
            xticks=_ticks(sizes),
        )
        axes.minorticks_off()
        axes.margins(0.08, 0.15)
        legend(axes, len(rows) + 1)
        marks = [(row["gpus"], row["speed_up"]) for row in rows]
        place_labels(axes, [(*at, note) for at, note in notes.items()], marks)
    return words("Speed-up over the smallest layout, with parallel efficiency", told)


_SKETCHES: Mapping[str, _Sketch] = {
    "latency-correctness": _Sketch("Latency against correctness", _latency_correctness),
    "throughput-length": _Sketch("Throughput against token length", _throughput_length),
    "latency-distribution": _Sketch(
        "Distribution of latency", _latency_distribution, by_row=True
    ),
    "memory": _Sketch("Memory per rank", _memory, by_row=True),
    "time": _Sketch("Computing and communicating", _time_split, by_row=True),
    "scaling": _Sketch("Scaling", _scaling),
    "pareto": _Sketch("Cost against latency", draw_pareto),
    "knee": _Sketch("Latency against throughput", draw_knee),
    "load": _Sketch("Goodput against load", draw_load),
}


def _answers(summary: RunTable) -> list[tuple[str, Any]]:
    names = [row["strategy_id"] for row in plotted(summary)]
    results = summary.results
    ok = results[(results["status"] == "ok") & results["strategy_id"].isin(names)]
    return [(str(name), rows) for name, rows in ok.groupby("strategy_id", sort=False)]


def _rows(axes: Any, summary: RunTable, names: Sequence[str]) -> None:
    """Write the names of strategies at their rows."""
    if not names:
        return
    called = plot_names(summary)
    axes.set_yticks(range(len(names)), [called[name] for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _thin(points: np.ndarray, strategies: int) -> np.ndarray:
    """Pick a strategy's share of _MOST_POINTS points evenly, for a small page."""
    step = -(-len(points) * max(1, strategies) // _MOST_POINTS)
    return points[::step] if step > 1 else points


def _ticks(sizes: Sequence[int]) -> list[int]:
    """Pick sizes so far apart on a logarithmic axis that their labels are, too."""
    apart = math.log2(sizes[-1] / sizes[0]) / 8
    picked = [sizes[0]]
    for size in sizes[1:]:
        if math.log2(size / picked[-1]) >= apart:
            picked.append(size)
    return picked
