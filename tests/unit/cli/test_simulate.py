"""`gpuyard simulate` on workload files: what it prints, and what it says of a wrong
one.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuyard.cli.workload import read_workload
from gpuyard.domain.errors import InvalidInputError
from gpuyard.residency.simulation import play

DATA = Path(__file__).parents[3] / "benchmarks" / "data" / "workloads"
GOOD: dict[str, Any] = {
    "gpus": [{"uuid": "GPU-0", "memory_gb": 24}],
    "models": {"m": {"boot_s": 10, "wake_s": None, "unload_s": 1, "memory_gb": 20}},
    "scripts": {"s": {"boot_s": 1, "exit_s": 1, "memory_gb": 8}},
    "arrivals": [
        {"t": 0, "class": "llm", "model": "m", "duration_s": 5, "priority": 3}
    ],
}


def read(tmp_path: Path, body: Any) -> Any:
    path = tmp_path / "work.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return read_workload(path)


def test_a_workload_is_read_whole(tmp_path):
    work = read(
        tmp_path,
        {
            **GOOD,
            "batches": [{"t": 3, "script": "s", "items": [1, 2], "exclusive": True}],
            "initial": {"GPU-0": "m"},
            "serial_loads": True,
        },
    )
    assert work.gpus == {"GPU-0": 24}
    assert work.models["m"].wake_s is None
    assert work.batches[0].items == (1, 2)
    assert work.initial == {"GPU-0": "m"}
    assert work.serial_loads
    assert play(work, "cost").unfinished == 0


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem
)
def test_the_committed_workloads_can_be_read(path):
    assert read_workload(path).gpus


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"gpus": []}, "gpus", "at least one"),
        ({"gpus": [{"uuid": "GPU-0", "memory_gb": 24}] * 2}, "gpus", "twice"),
        (
            {"gpus": [{"uuid": "GPU-0", "memory_gb": "many"}]},
            "gpus[0].memory_gb",
            "Expected `float`",
        ),
        ({"gpus": [{"uuid": "GPU-0"}]}, "gpus[0]", "memory_gb"),
        (
            {"models": {"m": {"boot_s": -1, "unload_s": 1, "memory_gb": 20}}},
            "models.m.boot_s",
            "at least 0",
        ),
        (
            {"models": {"m": {"boot_s": 1, "unload_s": 1, "memory_gb": 80}}},
            "models.m.memory_gb",
            "largest GPU has 24",
        ),
        (
            {"scripts": {"s": {"boot_s": 1, "exit_s": 1, "memory_gb": 25}}},
            "scripts.s.memory_gb",
            "larger GPU",
        ),
        (
            {"arrivals": [{"t": 0, "class": "llm", "model": "x", "duration_s": 1}]},
            "arrivals[0].model",
            "use one of: m",
        ),
        (
            {"arrivals": [{"t": 0, "class": "script", "duration_s": 1}]},
            "arrivals[0].script",
            "is missing",
        ),
        (
            {"arrivals": [{"t": 0, "class": "game", "duration_s": 1}]},
            "arrivals[0].class",
            "llm or script",
        ),
        (
            {"arrivals": [{"t": -1, "class": "llm", "model": "m", "duration_s": 1}]},
            "arrivals[0]",
            "at least 0",
        ),
        (
            {"batches": [{"t": 0, "script": "x", "items": [1]}]},
            "batches[0].script",
            "use one of: s",
        ),
        (
            {"batches": [{"t": 0, "script": "s", "items": []}]},
            "batches[0].items",
            "at least one item",
        ),
        ({"initial": {"GPU-9": "m"}}, "initial", "GPU-0"),
        ({"initial": {"GPU-0": "x"}}, "initial.GPU-0", "use one of: m"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(
    tmp_path, change, field, words
):
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, {**GOOD, **change})
    assert f"work.json: {field}" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1, 2]", "\udcff", '{"gpus": [{"uuid": "GPU-0", "memory_gb": NaN}]}'],
)
def test_what_is_no_workload_at_all_is_refused(tmp_path, text):
    path = tmp_path / "work.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidInputError):
        read_workload(path)
    with pytest.raises(InvalidInputError):
        read_workload(tmp_path / "absent.json")


def test_ten_faults_are_told_and_not_a_thousand(tmp_path):
    wrong = {"t": 0, "class": "llm", "model": "x", "duration_s": 1}
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, {**GOOD, "arrivals": [wrong] * 1000})
    assert len(caught.value.faults) == 10
