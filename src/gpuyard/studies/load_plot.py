"""The plot of a run under load: how many requests are answered in time."""

# matplotlib has few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from typing import Any

from gpuyard.studies.plot_style import legend, plot_names, plotted, styles, words
from gpuyard.studies.run_table import RunTable


def draw_load(summary: RunTable, axes: Any) -> str:
    """Draw goodput against the rate at which requests come."""
    told: list[str] = []
    names = plot_names(summary)
    look = styles([row["strategy_id"] for row in plotted(summary)])
    rates: set[float] = set()
    for row in plotted(summary):
        figures = summary.loads.get(row["strategy_id"], [])
        points = [(one["rate"], one["goodput"]) for one in figures]
        if not points:
            continue
        colour, marker = look[row["strategy_id"]]
        axes.plot(
            *zip(*points, strict=True),
            marker=marker,
            color=colour,
            label=names[row["strategy_id"]],
        )
        rates.update(rate for rate, _ in points)
        most = max(goodput for _, goodput in points)
        told.append(f"{row['label']}: at most {most:.2f} requests/s")
    if told:
        ideal = sorted(rates)
        axes.plot(ideal, ideal, ":", color="#888888", label="all in time")
        axes.set(
            xlabel="requests/s that come", ylabel="requests/s answered within limits"
        )
        axes.set_ylim(bottom=0)
        legend(axes, len(told) + 1)
    return words("Goodput by the rate of requests", told)
