"""What commands print: tables for people, one JSON document for programs.

`NO_COLOR` turns colours off.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gpuyard.cli.columns import width_of
from gpuyard.cli.narrow import (
    GAP,
    as_records,
    layout,
    natural_widths,
    without_empty,
)
from gpuyard.domain.run_time import run_time_s
from gpuyard.domain.units import format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as ProgressBar

    from gpuyard.cli.listed_job import ListedCost, ListedJob, ListedProgress
    from gpuyard.domain.jobs import Cost, Job, Progress

STATE_COLOURS = {
    "queued": "yellow",
    "assigned": "cyan",
    "running": "green",
    "unknown": "magenta",
    "completed": "bold green",
    "failed": "bold red",
    "cancelled": "dim",
    "timed_out": "red",
}


def console(*, stderr: bool = False) -> "Console":
    """A console on stdout or stderr."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    # What goes into a pipe or a file is not folded at the 80 columns of a terminal that
    # is not there.
    width = None if terminal else _PIPE_WIDTH
    # A job's output and names are shown as they are: `:x:` is no cross, and `[red]` no
    # colour.
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
        width=width,
    )


def transfer_bar() -> "ProgressBar":
    """A bar on stderr for bytes that are sent or received, with their speed. It goes
    when it is done.
    """
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    columns = (
        *Progress.get_default_columns(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    return Progress(*columns, console=console(stderr=True), transient=True)


def say(text: str = "") -> None:
    """One line on stdout, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def print_json(document: Any) -> None:
    """One JSON document on stdout; a model in it is written as the API writes it."""

    def plain(value: Any) -> Any:
        if hasattr(value, "model_dump"):
            return value.model_dump(mode="json")
        raise TypeError(f"{type(value).__name__} has no JSON form")

    say(json.dumps(document, default=plain, indent=2 if sys.stdout.isatty() else None))


def print_page(items: Sequence[Any], next_cursor: str | None = None) -> None:
    """A listing as the API shapes it."""
    print_json({"items": list(items), "next": next_cursor})


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str
) -> None:
    """A table without lines; `empty` is said when there are no rows.

    A state is coloured on a terminal.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        say(empty)
        return
    terminal = sys.stdout.isatty()
    below: dict[int, list[str]] = {}
    widths = natural_widths(columns, cells)
    room = shutil.get_terminal_size().columns
    if terminal and sum(widths) + GAP * (len(widths) - 1) > room:
        columns, cells = without_empty(columns, cells)
        narrow = layout(columns, cells, room)
        if narrow is None:
            say("\n".join(as_records(columns, cells, room)))
            return
        columns = narrow.columns
        widths = narrow.widths
        cells = narrow.lines
        below = narrow.below
    coloured = terminal and not os.environ.get("NO_COLOR")
    lines = [
        _line(columns, columns, widths, dict.fromkeys(columns, "1") if coloured else {})
    ]
    for number, row in enumerate(cells):
        lines.append(_line(columns, row, widths, _CODES if coloured else {}))
        lines += below.get(number, [])
    say("\n".join(lines))


def _line(
    columns: Sequence[str],
    row: Sequence[str],
    widths: Sequence[int],
    codes: Mapping[str, str],
) -> str:
    """One line; `codes` are escape codes of words that are coloured."""
    parts: list[str] = []
    for column, text, width in zip(columns, row, widths, strict=True):
        blank = " " * (width - width_of(text))
        shown = f"\x1b[{codes[text]}m{text}\x1b[0m" if text in codes else text
        parts.append(blank + shown if column in _NUMERIC else shown + blank)
    return "  ".join(parts).rstrip()


_PIPE_WIDTH = 240
_PLACES = 8
_LOSSES = ("loss", "train_loss", "val_loss", "valid_loss", "eval_loss", "test_loss")
_SETTINGS = frozenset({"lr", "learning_rate", "epsilon", "grad_norm", "batch_size"})
_TELLING = 2
_NUMERIC = frozenset(
    {
        "PRIO",
        "COST",
        "SIZE",
        "STEP",
        "CPU",
        "MEMORY",
        "PER HOUR",
        "MAX TIME",
        "FREE",
        "STILL RUNNING",
        "ATTEMPTS",
        "GPU HOURS",
        "CPU HOURS",
        "AMOUNT",
        "SPENT",
        "RESERVED",
        "FORECAST",
        "WAITING",
    }
)


# The same colours as escape codes, for tables that need no Rich.
_WORDS = {
    "dim": "2",
    "bold": "1",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
}
_CODES = {
    state: ";".join(_WORDS[word] for word in style.split())
    for state, style in STATE_COLOURS.items()
}


def one_line(value: Any) -> str:
    """A text of others, such as of a node, as one line that moves no cursor."""
    text = str(value)
    return "".join(letter if letter.isprintable() else " " for letter in text)


def say_lines(text: str) -> None:
    """A text of others as it is; on a terminal without what would control that."""
    if sys.stdout.isatty():
        text = "\n".join(one_line(line.expandtabs()) for line in text.split("\n"))
    sys.stdout.write(text)
    sys.stdout.flush()


def _cell(value: Any) -> str:
    """A value as one line of printable text."""
    return "-" if value is None or value == "" else one_line(value)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Name and value, each in one line; empty ones are left out."""
    shown = {
        name: value for name, value in fields.items() if value not in (None, "", [], {})
    }
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        say(f"{name:<{width}}  {one_line(value)}")


def short_id(job_id: str) -> str:
    """The end of an id: ids of one moment differ there, and every command takes it."""
    return job_id[-8:]


def task_name(array_id: str | None, index: int | None) -> str:
    """What to call the task of an array: `1a2b3c4d_7`; empty for other jobs."""
    return "" if array_id is None else f"{short_id(array_id)}_{index}"


def ago(at: float | None) -> str:
    """How long ago a time was."""
    return "-" if at is None else f"{format_duration(max(time.time() - at, 0))} ago"


def clock(at: float | None) -> str:
    """A time of day with its date, in local time."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def size(count: int) -> str:
    """Bytes for people."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def money(cost: "Cost | ListedCost") -> str:
    """An amount: cents where there are any, else two digits that mean something."""
    if cost.currency != "USD":
        return f"{_amount(cost.amount)} {cost.currency}"
    return f"${_amount(cost.amount)}"


def cost_parts(cost: "Cost") -> str:
    """What of a cost was not for the rented machine itself: `disk 0.02, address
    0.01`.
    """
    others = {name: spent for name, spent in cost.parts.items() if name != "machine"}
    return ", ".join(f"{name} {_amount(spent)}" for name, spent in others.items())


def _amount(amount: Decimal) -> str:
    if amount >= 1 or not amount:
        return f"{amount:.2f}"
    places = min(1 - amount.adjusted(), _PLACES)
    return f"{amount:.{places}f}"


def progress_words(progress: "Progress | ListedProgress") -> list[str]:
    """How far: step of total, epoch, loss, ETA; only what is known."""
    words: list[str] = []
    if progress.step is not None:
        words.append(
            f"step {progress.step}" + (f"/{progress.total}" if progress.total else "")
        )
    if progress.epoch is not None:
        words.append(
            f"epoch {round(progress.epoch, 2):g}"
            + (f"/{progress.epochs}" if progress.epochs else "")
        )
    words += [
        f"{name} {progress.metrics[name]:.4g}" for name in telling(progress.metrics)
    ]
    if progress.eta_s:
        words.append(f"ETA {format_duration(progress.eta_s)}")
    return words


def telling(metrics: Mapping[str, float]) -> list[str]:
    """The names of the metrics that say most: the losses; without any, the first two
    that are no settings of the training, such as a reward.
    """
    losses = [name for name in _LOSSES if name in metrics]
    results = [name for name in metrics if name not in _SETTINGS]
    return losses or results[:_TELLING]


def duration_of(job: "Job | ListedJob") -> str:
    """How long the job has run, all attempts together."""
    now = time.time()
    spans = [
        run_time_s(attempt.started_at, attempt.ended_at or now, attempt.ran_s)
        for attempt in job.attempts
        if attempt.started_at
    ]
    return format_duration(sum(spans)) if spans else "-"


def count(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
