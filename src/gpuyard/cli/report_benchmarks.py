"""Prints what an instance's own runs measured."""

import csv
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from gpuyard.cli.output import clock, print_table, say
from gpuyard.cli.report_advice import money
from gpuyard.domain.units import format_duration

if TYPE_CHECKING:
    from gpuyard.domain.benchmarks import (
        BenchmarkedProgram,
        BenchmarkReport,
        MeasuredSize,
    )

_CENT = Decimal("0.01")
_SIZES = ("GPU", "GPUS", "TIER", "RUNS", "PROGRAMS", "TIME", "COST", "GPU BUSY")
_PROGRAMS = (
    "PROGRAM",
    "USER",
    "GPU",
    "GPUS",
    "TIER",
    "RUNS",
    "TIME",
    "PER SECOND",
    "COST",
    "PER EPOCH",
    "SPEEDUP",
)


def print_benchmarks(found: "BenchmarkReport") -> None:
    """A table of sizes, one of programs, and what they rest on."""
    print_table(_SIZES, [_size_row(line) for line in found.sizes], empty="No runs.")
    if not found.runs:
        return
    say()
    rows = [_program_row(line) for line in found.programs]
    print_table(_PROGRAMS, rows, empty="")
    say()
    period = f"from {clock(found.begin)} to {clock(found.end)}"
    jobs = "1 job" if found.runs == 1 else f"{found.runs} jobs"
    say(f"Medians of {jobs} that completed {period}.")


def print_benchmarks_csv(found: "BenchmarkReport") -> None:
    """A line for each program on each size, with exact figures."""
    from gpuyard.domain.benchmarks import BenchmarkedProgram

    names = list(BenchmarkedProgram.model_fields)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for line in found.programs:
        writer.writerow([getattr(line, name) for name in names])


def _size_row(line: "MeasuredSize") -> Sequence[str | None]:
    busy = None if line.gpu_used is None else f"{100 * line.gpu_used:.0f} %"
    return (
        line.gpu or "no GPU",
        str(line.gpus),
        line.tier,
        str(line.runs),
        str(line.programs),
        format_duration(line.seconds),
        _amount(line.cost, line.currency),
        busy,
    )


def _program_row(line: "BenchmarkedProgram") -> Sequence[str | None]:
    per_epoch = line.cost_per_epoch
    return (
        line.program,
        line.user,
        line.gpu or "no GPU",
        str(line.gpus),
        line.tier,
        str(line.runs),
        format_duration(line.seconds),
        _rates(line) or None,
        _amount(line.cost, line.currency),
        None if per_epoch is None else _amount(per_epoch, line.currency),
        _speedup(line),
    )


def _rates(line: "BenchmarkedProgram") -> str:
    rates = {
        "samples": line.samples_per_s,
        "tokens": line.tokens_per_s,
        "steps": line.steps_per_s,
    }
    known = [f"{rate:.4g} {name}" for name, rate in rates.items() if rate is not None]
    return ", ".join(known)


def _speedup(line: "BenchmarkedProgram") -> str | None:
    if line.speedup is None or line.efficiency is None:
        return None
    share = f"{100 * line.efficiency:.0f} % each"
    return f"{line.speedup:g} ({share}, by {line.compared_by})"


def _amount(amount: Decimal, currency: str) -> str:
    return money(amount, currency, 2 if amount >= _CENT or not amount else 6)
