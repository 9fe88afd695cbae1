"""The benchmarks, at a scale at which their figures mean nothing: each group runs and
says what it should. `make soak` runs those that take longer, too.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fresh
from tests.support.forkserver import fast_python
from tests.support.programs import run_program

ROOT = Path(__file__).parents[2]
# The group `ledger` is measured on a slow disk below.
GROUPS = {
    "costs": 4,
    "scheduler": 8,
    "server": 18,
    "verification": 8,
    "logs": 7,
}
# Each starts a server of its own, so `make soak` runs them.
if "GPUYARD_EVERY_GROUP" in os.environ:
    GROUPS |= {"http": 6, "jobs": 2, "idle": 2, "commands": 2, "web": 10}


def bench(*words: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks", *words, "--scale", "0.001", "--json"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "BENCHMARKS_SERVERS_PYTHON": fast_python()},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(600)
def test_each_group_runs_and_says_each_time_with_its_floor() -> None:
    figures = bench(*GROUPS, "--disk", "as-is")
    assert {
        group: sum(f["group"] == group for f in figures) for group in GROUPS
    } == GROUPS
    check_floors(figures)
    (errors,) = (f for f in figures if f["name"].startswith("errors of"))
    assert errors["value"] == 0


def check_floors(figures: list[dict[str, Any]]) -> None:
    """Each time stands beside its floor."""
    for figure in figures:
        assert figure["value"] >= 0, figure
        if figure["unit"] in ("s", "ms", "jobs/s") and figure["group"] != "web":
            assert len(figure["floors"]) == len(figure["values"]) > 0, figure
            assert figure["floor_name"]
        assert (figure["met"] is None) == (figure["target"] is None)


@pytest.mark.timeout(600)
def test_simulated_nodes_run_what_the_server_sends_them() -> None:
    figures = {figure["name"]: figure for figure in bench("scale", "--disk", "as-is")}
    # 24 GPUs are taken, by jobs with one to four each.
    assert 6 <= figures["attempts that run then"]["value"] <= 24
    assert figures["ends a second at most"]["value"] > 0


@pytest.mark.timeout(600)
def test_the_slow_disk_takes_4_ms_for_each_sync() -> None:
    figures = bench("ledger", "--disk", "4ms")
    assert len(figures) == 4
    check_floors(figures)
    commit = figures[0]
    assert (commit["disk"], commit["unit"], commit["floor_name"]) == (
        "4ms",
        "ms",
        "raw commit",
    )
    assert commit["value"] > commit["floor"] * 0.5 >= 2


def refusal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    *words: str,
) -> str:
    """What a program says that refuses these words."""
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"{module}.__main__").main()
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "noun", "words"),
    [
        ("benchmarks", "group", ["--scale", "0.1"]),
        ("benchmarks.peers", "peer", ["--count", "500"]),
    ],
)
def test_what_cannot_be_is_refused(
    module: str,
    noun: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = refusal(capsys, monkeypatch, module, "nosuch")
    assert f"there is no {noun} nosuch" in said
    # Only full counts go into the page.
    said = refusal(capsys, monkeypatch, module, *words, "--write")
    assert f"leave out {words[0]}" in said


def test_cost_is_near_the_best_there_is_on_small_instances() -> None:
    command = [sys.executable, "-m", "benchmarks.optimum", "40"]
    told = run_program(command, cwd=ROOT, timeout=500).stdout
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in told.splitlines()[2:]
    ]
    mine = {row[0]: (float(row[2]), float(row[3])) for row in rows if row[1] == "cost"}
    assert {name: mean <= 1.10 for name, (mean, _) in mine.items()} == {
        "40 batches": True,
        "40 mixes": True,
    }
    assert 1 <= mine["40 batches"][1] <= 1.25


def test_the_seeds_of_the_fresh_workloads_stay_as_they_were_fixed() -> None:
    found = [seed for kind in fresh.KINDS for seed in fresh.seeds(kind)]
    assert len(set(found)) == 24
    assert (found[0], found[12]) == (
        3_552_054_571_667_037_039,
        13_276_712_549_191_828_556,
    )
