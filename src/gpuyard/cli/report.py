"""`gpuyard report`: what jobs cost in a period, as a table, as CSV or JSON, or as a
bill for other programs.
"""

import csv
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import clock, print_json, print_table, say
from gpuyard.cli.report_advice import money, print_advice
from gpuyard.cli.report_benchmarks import print_benchmarks, print_benchmarks_csv
from gpuyard.cli.report_period import report_period
from gpuyard.cli.session import connect
from gpuyard.domain.cost_keys import CostBy
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.rounding import in_places

if TYPE_CHECKING:
    from gpuyard.domain.benchmarks import BenchmarkReport
    from gpuyard.domain.costs import CostLine, CostReport

_CENTS = 2
_ALL_PLACES = 6
# Of what rented machines cost: those of `domain.bills`, which takes long to import.
_MACHINE = "machine"
_PARTS = (_MACHINE, "disk", "address", "traffic")
_TITLES = {CostBy.GPU: "GPU"}
_NO_RATE = "no rate"


By = Annotated[CostBy, typer.Option(help="What to add costs up by.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="From then on: a date such as 2026-11-01, or '7 days ago'. The first"
        " of this month.",
    ),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help="Until before then. Now."),
]
Month = Annotated[
    str | None,
    typer.Option(metavar="MONTH", help="A whole month, such as 2026-10."),
]
Timezone = Annotated[
    str | None,
    typer.Option(
        metavar="ZONE",
        help="Whose days, weeks and months, such as Europe/Berlin. This machine's.",
    ),
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV, with exact amounts.")]
Focus = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Save what each attempt cost as CSV in the columns of FOCUS 1.1.",
    ),
]
Advice = Annotated[
    bool,
    typer.Option(
        "--advice", help="Say what could have cost less, as far as it was measured."
    ),
]
Benchmarks = Annotated[
    bool,
    typer.Option(
        "--benchmarks",
        help="Show how fast programs ran on each size, what that cost, and how"
        " they scale: from the jobs that completed.",
    ),
]
# Options of which only one may be given; the first of the two is refused.
_CONFLICTS = (
    ("--csv", "--json"),
    ("--advice", "--csv"),
    ("--advice", "--focus"),
    ("--benchmarks", "--advice"),
    ("--benchmarks", "--focus"),
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    by: By = CostBy.PROJECT,
    from_: From = None,
    to: To = None,
    month: Month = None,
    timezone: Timezone = None,
    as_csv: AsCsv = False,
    as_json: AsJson = False,
    focus: Focus = None,
    advice: Advice = False,
    benchmarks: Benchmarks = False,
) -> None:
    """Show what jobs cost: by user, project, tier, provider, GPU, day, week or
    month.
    """
    _refuse_conflicts(
        {
            "--csv": as_csv,
            "--json": as_json,
            "--focus": focus is not None,
            "--advice": advice,
            "--benchmarks": benchmarks,
        }
    )
    begin, end = report_period(from_, to, month, timezone)
    with connect() as client:
        if benchmarks:
            measured = client.benchmarks(begin=begin, end=end)
            _print_benchmarks(measured, as_csv=as_csv, as_json=as_json)
        elif advice:
            advised = client.cost_advice(begin=begin, end=end)
            print_json(advised) if as_json else print_advice(advised)
        elif focus:
            saved = client.export_costs(focus, begin=begin, end=end, timezone=timezone)
            typer.echo(f"Saved {saved}.")
        else:
            found = client.costs(by.value, begin=begin, end=end, timezone=timezone)
            _print_costs(found, as_csv=as_csv, as_json=as_json)


def _refuse_conflicts(given: Mapping[str, bool]) -> None:
    """InvalidInputError if two options were given that exclude each other."""
    for option, other in _CONFLICTS:
        if given[option] and given[other]:
            fault = f"does not go with {other}"
            raise InvalidInputError.of(option, fault, "give one")


def _print_benchmarks(found: "BenchmarkReport", *, as_csv: bool, as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif as_csv:
        print_benchmarks_csv(found)
    else:
        print_benchmarks(found)


def _print_costs(found: "CostReport", *, as_csv: bool, as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif as_csv:
        _print_csv(found)
    else:
        _print_table(found)


def _print_csv(found: "CostReport") -> None:
    """A row for each line. The first column is what costs are added up by, the last are
    what was paid for the parts of rented machines.
    """
    from gpuyard.domain.costs import CostLine

    fields = [name for name in CostLine.model_fields if name not in ("key", "parts")]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([found.by.value, *fields, *_PARTS])
    for line in found.items:
        values = [getattr(line, name) for name in fields]
        parts = [line.parts.get(name, Decimal(0)) for name in _PARTS]
        writer.writerow([line.key, *values, *parts])


def _print_table(found: "CostReport") -> None:
    title = _TITLES.get(found.by, found.by.value.upper())
    columns = [title, "COST", "STILL RUNNING", "ATTEMPTS", "GPU HOURS", "CPU HOURS"]
    has_others = any(sum_.currency != found.currency for sum_ in found.sums)
    if has_others:
        columns.append(f"IN {found.currency}")
    rows: list[Sequence[str]] = []
    for sum_ in found.sums:
        lines = [line for line in found.items if line.currency == sum_.currency]
        converted = _converted(lines, sum_) if has_others else []
        rows += _rows(lines, sum_, converted)
    print_table(columns, rows, empty="No attempt ran in this time.")
    say()
    say(f"From {clock(found.begin)} to {clock(found.end)} ({found.timezone}).")
    if has_others:
        say(_total(found))


def _converted(lines: Sequence["CostLine"], sum_: "CostLine") -> list[str]:
    """What the lines of a currency, and then their sum, are in that of the report. The
    amounts are rounded so that they add up.
    """
    known = [line.converted for line in lines if line.converted is not None]
    rounded = iter(in_places(known, _CENTS))
    texts = [
        _NO_RATE if line.converted is None else str(next(rounded)) for line in lines
    ]
    total = sum_.converted
    return [*texts, _NO_RATE if total is None else str(round(total, _CENTS))]


def _rows(
    lines: Sequence["CostLine"], sum_: "CostLine", converted: Sequence[str]
) -> list[Sequence[str]]:
    """The lines of a currency, their sum, and what of that was waste or idle. The
    amounts are rounded so that they add up. `converted` goes into a last column.
    """
    places = _CENTS if sum_.amount >= 1 else _ALL_PLACES
    shown = in_places([line.amount for line in lines], places)
    rows: list[Sequence[str]] = [
        _row(line.key, amount, line, places)
        for line, amount in zip(lines, shown, strict=True)
    ]
    rows.append(_row("TOTAL", round(sum_.amount, places), sum_, places))
    rows += _remarks(sum_, places)
    if not converted:
        return rows
    pairs = zip_longest(rows, converted, fillvalue="")
    return [[*row, text] for row, text in pairs]


def _remarks(sum_: "CostLine", places: int) -> list[Sequence[str]]:
    """What of a sum was waste, idle, or for parts of machines; and reserved GPUs that
    nobody used, which are no part of it.
    """

    def remark(title: str, amount: Decimal, hours: str = "") -> Sequence[str]:
        return title, money(amount, sum_.currency, places), "", "", hours, ""

    rows: list[Sequence[str]] = []
    if sum_.waste_gpu_hours or sum_.waste:
        hours = _hours(sum_.waste_gpu_hours)
        rows.append(remark("  of it waste", sum_.waste, hours))
    if sum_.measured_gpu_hours:
        rows.append(remark("  of it idle", sum_.idle, _hours(sum_.idle_gpu_hours)))
    # What is left is for machines.
    others = [name for name in _PARTS if name != _MACHINE and sum_.parts.get(name)]
    rows += [remark(f"  of it {name}", sum_.parts[name]) for name in others]
    if sum_.unused_gpu_hours:
        hours = _hours(sum_.unused_gpu_hours)
        rows.append(remark("RESERVED, UNUSED", sum_.unused, hours))
    return rows


def _row(name: str, amount: Decimal, line: "CostLine", places: int) -> Sequence[str]:
    running = ""
    if line.running_attempts:
        running = f"{money(line.running, line.currency, places)} so far"
    return (
        name,
        money(amount, line.currency, places),
        running,
        str(line.attempts),
        _hours(line.gpu_hours),
        _hours(line.cpu_hours),
    )


def _hours(hours: float) -> str:
    return f"{hours:.2f}"


def _total(found: "CostReport") -> str:
    """What all of it is in one currency, or why that is not known."""
    if found.total is not None:
        return f"In all {money(found.total, found.currency, _CENTS)}."
    missing = ", ".join(str(each) for each in found.missing_rates)
    return (
        f"There is no sum in {found.currency}: gpuyard knows no rate of {missing}. Set"
        " it in [billing] rates."
    )
