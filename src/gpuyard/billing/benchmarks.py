"""Benchmarks from an instance's own runs: how fast programs ran on each size, and
what that cost. Pure; what no run measured is left out.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from statistics import fmean, median
from typing import Any, cast

import msgspec

from gpuyard.domain.benchmarks import BenchmarkedProgram, BenchmarkReport, MeasuredSize
from gpuyard.domain.cost_keys import INSTANCE_OWNER
from gpuyard.domain.run_time import run_time_s

# A shorter run is mostly its start.
LEAST_S = 1.0
# So many runs of a program on a size are enough, the newest.
_MOST_RUNS = 200
_MOST_PROGRAMS = 5_000
# Such as `train_samples_per_second` and `images/s`.
_PER_SECOND = r"(?i)(?:.*[/_ ])?(?:{})_?(?:/|per_?)(?:s|sec|second)"
_SAMPLES = re.compile(_PER_SECOND.format("samples|examples|images|imgs"))
_TOKENS = re.compile(_PER_SECOND.format("tokens|tok"))
_MICRO = Decimal("0.000001")
# Programs tell what they like: nothing is computed with figures beyond these.
_LEAST = 1e-6
_MOST = 1e15


@dataclass(frozen=True, slots=True)
class Size:
    """What a run had: GPUs of a class, in a tier, paid in a currency."""

    gpu: str
    gpus: int
    tier: str | None
    currency: str


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """A job that completed in one go. None: its output did not say it."""

    program: str
    user: str
    size: Size
    seconds: float
    cost: Decimal
    gpu_used: float | None
    steps_per_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    epochs: float | None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "CompletedRun":
        """Of a row of the ledger (`CostUseQueries.completed_runs`)."""
        seconds = run_time_s(row["started_at"], row["ended_at"], row["ran_s"])
        said: dict[str, Any] = msgspec.json.decode(row["progress"] or "null") or {}
        given: Any = said.get("metrics")
        metrics = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        steps = _figure(said.get("rate"))
        step = _figure(said.get("step"))
        if not steps and step and seconds:
            steps = step / seconds
        return cls(
            program=row["name"] or "",
            user=row["owner"] or INSTANCE_OWNER,
            size=Size(row["gpu"] or "", row["gpus"], row["tier"], row["currency"]),
            seconds=seconds,
            cost=Decimal(row["cost"] or 0),
            gpu_used=row["gpu_used"],
            steps_per_s=steps,
            samples_per_s=_rate(metrics, _SAMPLES),
            tokens_per_s=_rate(metrics, _TOKENS),
            epochs=_figure(said.get("epochs")) or _figure(said.get("epoch")),
        )


def _figure(value: Any) -> float | None:
    """A figure that a program has told; None for what cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if _LEAST <= value <= _MOST else None


def _rate(metrics: Mapping[str, Any], name: re.Pattern[str]) -> float | None:
    found = [value for key, value in metrics.items() if name.fullmatch(key)]
    return _figure(found[0]) if found else None


Runs = Sequence[CompletedRun]
_Key = tuple[str, str, Size]
_Line = tuple[BenchmarkedProgram, Runs]


class Benchmarks:
    """Takes runs, and makes the report."""

    def __init__(self) -> None:
        self._runs = 0
        self._by_program: dict[_Key, list[CompletedRun]] = defaultdict(list)

    def add(self, run: CompletedRun) -> None:
        """Take the next run."""
        if run.seconds < LEAST_S:
            return
        self._runs += 1
        key = (run.program, run.user, run.size)
        if key not in self._by_program and len(self._by_program) >= _MOST_PROGRAMS:
            return
        runs = self._by_program[key]
        runs.append(run)
        del runs[:-_MOST_RUNS]

    def report(self, begin: float, end: float) -> BenchmarkReport:
        """What was measured, the sizes and programs with the most runs first."""
        return BenchmarkReport(
            begin=begin,
            end=end,
            runs=self._runs,
            sizes=self._sizes(),
            programs=self._programs(),
        )

    def _sizes(self) -> list[MeasuredSize]:
        by_size: dict[Size, list[Runs]] = defaultdict(list)
        for (_, _, size), runs in self._by_program.items():
            by_size[size].append(runs)
        found = [_size_line(size, programs) for size, programs in by_size.items()]
        return sorted(found, key=lambda line: (line.gpu, line.gpus, line.tier or ""))

    def _programs(self) -> list[BenchmarkedProgram]:
        lines = [
            (_program_line(*key, runs), runs) for key, runs in self._by_program.items()
        ]
        lines.sort(
            key=lambda pair: (*_compared(pair), pair[0].gpus, pair[0].tier or "")
        )
        found: list[BenchmarkedProgram] = []
        for _, group in groupby(lines, key=_compared):
            found += _with_scaling(list(group))
        return found


def _compared(line: _Line) -> tuple[str, str, str]:
    """What lines have in common that are compared."""
    return line[0].program, line[0].user, line[0].gpu


def _size_line(size: Size, programs: Sequence[Runs]) -> MeasuredSize:
    runs = [run for of_program in programs for run in of_program]
    return MeasuredSize(
        gpu=size.gpu,
        gpus=size.gpus,
        tier=size.tier,
        currency=size.currency,
        runs=len(runs),
        programs=len(programs),
        seconds=round(median(run.seconds for run in runs), 3),
        cost=median(run.cost for run in runs).quantize(_MICRO),
        gpu_used=_mean(run.gpu_used for run in runs),
    )


def _program_line(
    program: str, user: str, size: Size, runs: Runs
) -> BenchmarkedProgram:
    per_epoch = [run.cost / Decimal(str(run.epochs)) for run in runs if run.epochs]
    return BenchmarkedProgram(
        program=program,
        user=user,
        gpu=size.gpu,
        gpus=size.gpus,
        tier=size.tier,
        currency=size.currency,
        runs=len(runs),
        seconds=round(median(run.seconds for run in runs), 3),
        cost=median(run.cost for run in runs).quantize(_MICRO),
        steps_per_s=_median(run.steps_per_s for run in runs),
        samples_per_s=_median(run.samples_per_s for run in runs),
        tokens_per_s=_median(run.tokens_per_s for run in runs),
        cost_per_epoch=median(per_epoch).quantize(_MICRO) if per_epoch else None,
        gpu_used=_mean(run.gpu_used for run in runs),
    )


# --- scaling ---


def _epochs_per_s(runs: Runs) -> float | None:
    return _median(run.epochs / run.seconds if run.epochs else None for run in runs)


# What a speed is read off, the surest first. Steps are not: on more GPUs, a step has
# more examples.
_SPEEDS: tuple[tuple[str, Callable[[Runs], float | None]], ...] = (
    ("samples", lambda runs: _median(run.samples_per_s for run in runs)),
    ("tokens", lambda runs: _median(run.tokens_per_s for run in runs)),
    ("epochs", _epochs_per_s),
    ("run time", lambda runs: 1 / median(run.seconds for run in runs)),
)


def _with_scaling(lines: Sequence[_Line]) -> list[BenchmarkedProgram]:
    """The lines of a program on one class of GPU, with the fewest GPUs first."""
    (least, base) = lines[0]
    found = [least]
    for line, runs in lines[1:]:
        if not least.gpus or line.gpus == least.gpus:
            found.append(line)
            continue
        (name, speedup) = _speedup(base, runs)
        efficiency = speedup * least.gpus / line.gpus
        scaled = {"speedup": round(speedup, 2), "efficiency": round(efficiency, 2)}
        found.append(line.model_copy(update={**scaled, "compared_by": name}))
    return found


def _speedup(base: Runs, runs: Runs) -> tuple[str, float]:
    for name, speed in _SPEEDS:
        before = speed(base)
        after = speed(runs)
        if before and after:
            return name, after / before
    raise AssertionError("every run has a time")


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(f"{median(known):.6g}") if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 3) if known else None
