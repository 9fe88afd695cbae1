"""AMD's GPUs through a fake of its package, found on a path as ROCm's is: each reading
in a process of its own.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.amd import BUSY, PLAIN, environment
from tests.support.programs import run_program

PRINT = "import json; from dataclasses import asdict; from gpuyard.devices.discovery import discover; print(json.dumps(asdict(discover())))"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "amd.json"


def read(state: Path, *gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    state.write_text(json.dumps({"gpus": gpus, **more}))
    told = run_program(
        [sys.executable, "-c", PRINT], env=os.environ | environment(state), timeout=60
    )
    return json.loads(told.stdout)


def test_what_a_card_tells_is_read(state: Path) -> None:
    found = read(state, BUSY)
    assert (found["source"], found["problem"]) == ("amdsmi", None)
    (gpu,) = found["gpus"]
    expected = {
        "uuid": "GPU-00aa11bb22cc33dd",
        "index": 0,
        "name": "AMD Instinct MI210",
        "memory_total_mb": 65536,
        "memory_free_mb": 64512,
        "driver_version": "6.10.5",
        "temperature_c": 61,
        "utilization": 0.4,
        "power_w": 210,
        "processes": [{"pid": 77, "memory_mb": 512}],
        "ecc_uncorrected": 0,
        "slowdown_c": 100,
        "mig": False,
        "drm": [129, 1],
    }
    assert {name: gpu[name] for name in expected} == expected


def test_a_card_that_tells_little_is_named_by_its_number(state: Path) -> None:
    found = read(state, PLAIN, {"total": 1, "used": 0}, {"error": 30})
    (gpu,) = found["gpus"]
    assert (gpu["uuid"], gpu["temperature_c"], gpu["utilization"]) == (
        "GPU-c6f220c172dc76bb",
        40,
        None,
    )
    nameless, failing = found["lost"]
    assert (nameless["index"], "unique number" in nameless["reason"]) == (1, True)
    assert (failing["index"], "30" in failing["reason"]) == (2, True)


def test_a_library_that_fails_says_what_to_do(state: Path) -> None:
    found = read(state, init=34)
    assert (found["gpus"], found["source"]) == ([], "none")
    assert "AMD SMI fails: Error code: 34; run `amd-smi list`" in found["problem"]


def test_a_host_without_the_package_has_no_gpus(tmp_path: Path) -> None:
    told = run_program([sys.executable, "-c", PRINT], timeout=60)
    assert json.loads(told.stdout) == {
        "gpus": [],
        "lost": [],
        "source": "none",
        "problem": None,
    }
