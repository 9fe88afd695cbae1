"""How a sweep is shown: a table that is redrawn on a terminal, else a line for each run
that ends.
"""

import math
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpuyard.cli.output import console, say

if TYPE_CHECKING:
    from rich.table import Table

    from gpuyard.sweeps.sweep import Run, Sweep

_SHOWN = 15
"""Runs in the table of a terminal, besides those that run."""
_FIGURES = 6


def run_rows(sweep: "Sweep") -> list[tuple[Any, ...]]:
    """A row of cells for each run: those with a value first, the best at the top."""
    return [_cells(run) for run in _ranked(sweep)]


def _ranked(sweep: "Sweep") -> list["Run"]:
    sign = 1 if sweep.spec.goal == "minimize" else -1

    def rank(run: "Run") -> tuple[float, int]:
        if run.outcome != "completed" or run.value is None:
            return (math.inf, run.number)
        return (sign * run.value, run.number)

    return sorted(sweep.runs, key=rank)


def _cells(run: "Run") -> tuple[Any, ...]:
    value = None if run.value is None else f"{run.value:.{_FIGURES}g}"
    return (str(run.number), run.job.name, run.outcome, value, _values(run))


def _values(run: "Run") -> str:
    return " ".join(f"{name}={_short(text)}" for name, text in run.parameters.items())


def _short(text: str) -> str:
    """A number with few digits: drawn ones have seventeen."""
    try:
        return f"{float(text):.{_FIGURES}g}"
    except ValueError:
        return text


@contextmanager
def watching(
    sweep: "Sweep", *, quiet: bool
) -> Generator[Callable[["Sweep"], None], None, None]:
    """What shows a sweep each time it is called: nothing if `quiet`, a live table on a
    terminal, else lines.
    """
    if quiet:
        yield lambda _: None
    elif sys.stdout.isatty():
        from rich.live import Live

        with Live(_table(sweep), console=console(), auto_refresh=False) as live:
            yield lambda now: live.update(_table(now), refresh=True)
    else:
        said: set[int] = {run.number for run in sweep.runs if run.is_over}
        yield lambda now: _say_ended(now, said)


def _say_ended(sweep: "Sweep", said: set[int]) -> None:
    """A line for each run that has ended since; `said`: those that had before."""
    for run in sweep.runs:
        if run.is_over and run.number not in said:
            said.add(run.number)
            best = sweep.best
            mark = "  (best so far)" if best and best.number == run.number else ""
            shown = "-" if run.value is None else f"{run.value:.{_FIGURES}g}"
            metric = sweep.spec.metric
            say(
                f"{run.job.name}: {run.outcome}  {metric} {shown}  {_values(run)}{mark}"
            )


def _table(sweep: "Sweep") -> "Table":
    """The best runs, and those that run."""
    from rich.table import Table

    over = [run for run in sweep.runs if run.is_over]
    title = f"{sweep.spec.name}: {len(over)} of {sweep.spec.count()} runs are over"
    table = Table(title=title, box=None, title_justify="left")
    for column in ("RUN", "STATE", sweep.spec.metric, "PARAMETERS"):
        table.add_column(column)
    ranked = _ranked(sweep)
    best = sweep.best
    finished = [run for run in ranked if run.is_over][:_SHOWN]
    for run in finished + [run for run in ranked if not run.is_over]:
        (_, name, state, value, values) = _cells(run)
        style = "bold green" if best and run.number == best.number else ""
        table.add_row(name, state, value or "-", values, style=style)
    return table
