"""Benchmarks from completed runs."""

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from gpuyard.billing.benchmarks import Benchmarks, CompletedRun, Size
from gpuyard.domain.benchmarks import BenchmarkReport

SIZE = Size("a10g", 1, "GPU_LARGE", "USD")
RUN = CompletedRun(
    program="train.py",
    user="ana",
    size=SIZE,
    seconds=100.0,
    cost=Decimal(2),
    gpu_used=0.5,
    steps_per_s=10.0,
    samples_per_s=None,
    tokens_per_s=None,
    epochs=None,
)


def report(*runs: CompletedRun) -> BenchmarkReport:
    found = Benchmarks()
    for run in runs:
        found.add(run)
    return found.report(0.0, 1.0)


def on(gpus: int, **values: Any) -> CompletedRun:
    return replace(RUN, size=replace(SIZE, gpus=gpus), **values)


def test_figures_are_medians() -> None:
    runs = [
        replace(RUN, seconds=seconds, cost=Decimal(cost))
        for seconds, cost in ((10, 1), (20, 2), (900, 9))
    ]
    (line,) = report(*runs, replace(RUN, seconds=0.2)).programs
    assert (line.runs, line.seconds, line.cost) == (3, 20, Decimal(2))
    assert (line.steps_per_s, line.samples_per_s, line.gpu_used) == (10, None, 0.5)
    assert line.speedup is None


def test_a_size_has_all_programs_that_ran_on_it() -> None:
    cpu = replace(RUN, size=Size("", 0, "CPU_LARGE", "USD"), gpu_used=None)
    found = report(RUN, replace(RUN, program="b.py", cost=Decimal(4)), cpu)
    (first, second) = found.sizes
    assert (first.gpu, first.runs, first.gpu_used) == ("", 1, None)
    assert (second.runs, second.programs, second.cost) == (2, 2, Decimal(3))
    assert found.runs == 3
    assert report().sizes == []


@pytest.mark.parametrize(
    ("before", "after", "speedup", "by"),
    [
        ({"samples_per_s": 100.0}, {"samples_per_s": 180.0}, 1.8, "samples"),
        ({"tokens_per_s": 100.0}, {"tokens_per_s": 150.0}, 1.5, "tokens"),
        ({"epochs": 2.0}, {"epochs": 4.0, "seconds": 160.0}, 1.25, "epochs"),
        ({"samples_per_s": 9.0}, {"seconds": 50.0}, 2.0, "run time"),
    ],
)
def test_scaling_is_read_off_the_surest_figure(
    before: dict[str, Any], after: dict[str, Any], speedup: float, by: str
) -> None:
    other = replace(RUN, size=Size("t4", 4, "GPU_SMALL", "USD"))
    (one, two, alone) = report(on(2, **after), other, on(1, **before)).programs
    assert (one.gpus, two.gpus, alone.gpu) == (1, 2, "t4")
    assert (two.speedup, two.efficiency) == (speedup, round(speedup / 2, 2))
    assert two.compared_by == by
    assert alone.speedup is None


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("train_samples_per_second", "samples_per_s"),
        ("images/s", "samples_per_s"),
        ("perf/tokens_per_sec", "tokens_per_s"),
        ("tok/s", "tokens_per_s"),
        ("loss", None),
        ("samples_seen", None),
    ],
)
def test_rates_are_found_under_their_usual_names(name: str, field: str | None) -> None:
    progress = f'{{"rate": 2.5, "epochs": 3, "metrics": {{"{name}": 7.0}}}}'
    row = {
        "name": "train.py",
        "owner": None,
        "gpu": "t4",
        "gpus": 1,
        "tier": None,
        "currency": "USD",
        "cost": "1.5",
        "started_at": 10.0,
        "ended_at": 70.0,
        "ran_s": None,
        "gpu_used": None,
        "progress": progress,
    }
    run = CompletedRun.of_row(row)
    assert (run.user, run.seconds, run.cost) == ("owner", 60.0, Decimal("1.5"))
    assert (run.steps_per_s, run.epochs) == (2.5, 3)
    found = {name for name in ("samples_per_s", "tokens_per_s") if getattr(run, name)}
    assert found == ({field} if field else set())
    bare = CompletedRun.of_row({**row, "progress": '{"step": 120}'})
    assert bare.steps_per_s == 2
    assert CompletedRun.of_row({**row, "progress": None}).steps_per_s is None


@pytest.mark.parametrize(
    "progress",
    [
        {"epoch": 1e-300, "rate": 1e300, "metrics": {"samples_per_s": "many"}},
        {"epochs": "x", "metrics": [], "step": True},
    ],
)
def test_figures_that_cannot_be_break_no_report(progress: dict[str, Any]) -> None:
    row = {
        **dict.fromkeys(("name", "owner", "gpu", "gpu_used", "ran_s")),
        "started_at": 0.0,
        "ended_at": 100.0,
        "gpus": 1,
        "tier": "GPU_LARGE",
        "currency": "USD",
        "cost": "2",
        "progress": json.dumps(progress),
    }
    run = CompletedRun.of_row(row)
    assert (run.steps_per_s, run.samples_per_s, run.epochs) == (None, None, None)
    assert report(run).runs == 1
