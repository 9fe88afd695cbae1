"""SkyPilot's words as gpuyard's, and what `[providers.skypilot]` may say."""

import os
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass
from gpuyard.providers.instances.api import (
    CAPACITY,
    CREDENTIALS,
    QUOTA,
    Instance,
    InstanceState,
)
from gpuyard.providers.instances.markets import offer_of
from gpuyard.providers.skypilot.bridge import tidy
from gpuyard.providers.skypilot.client import code_of
from gpuyard.providers.skypilot.config import SkyPilotConfig
from gpuyard.providers.skypilot.launches import AcceptedLaunches
from gpuyard.providers.skypilot.machines import (
    cluster_name,
    machine_type,
    markets_of,
    owner_of,
)

ROW: dict[str, Any] = {
    "cloud": "GCP",
    "instance_type": "a2-highgpu-2g",
    "accelerator_name": "A100",
    "accelerator_count": 2.0,
    "cpu_count": 24.0,
    "device_memory": 40.0,
    "memory": 170.0,
    "price": 7.35,
    "spot_price": float("nan"),
    "region": "us-central1",
}
# As SkyPilot 0.14 writes them.
SKYPILOT_NAMES = {
    "A10": GPUClass.A10,
    "A10G": GPUClass.A10G,
    "A100": GPUClass.A100_40GB,
    "A100-80GB": GPUClass.A100_80GB,
    "H100": GPUClass.H100_80GB,
    "H200": GPUClass.H200,
    "L4": GPUClass.L4,
    "L40S": GPUClass.L40S,
    "RTX4090": GPUClass.RTX_4090,
    "RTXA6000": GPUClass.A6000,
    "RTX6000-Ada": GPUClass.RTX_6000_ADA,
    "T4": GPUClass.T4,
    "V100-32GB": GPUClass.V100_32GB,
}


@pytest.mark.parametrize("name", SKYPILOT_NAMES)
def test_each_gpu_has_its_class(name: str) -> None:
    wanted = SKYPILOT_NAMES[name]
    memory_gb = float(GPU_CLASSES[wanted].memory_gb)
    row = {
        **ROW,
        "accelerator_name": name,
        "accelerator_count": 1.0,
        "device_memory": memory_gb,
    }
    (market,) = markets_of([row], with_spot=True, read_on="2026-11-29")
    assert offer_of("skypilot", market).classes == {wanted}


def test_a_row_without_a_spot_price_is_on_demand_alone() -> None:
    (market,) = markets_of([ROW], with_spot=True, read_on="2026-11-29")
    assert (market.zone, market.spot) == ("gcp/us-central1", False)
    assert market.price_per_hour == Decimal("7.35")
    assert market.price_source == "SkyPilot's catalogue, read on 2026-11-29"
    assert (market.type.gpus, market.type.gpu_memory_gb) == (2, 40.0)


@pytest.mark.parametrize(
    "change",
    [
        {"instance_type": None},
        {"instance_type": "(attachable)"},
        {"accelerator_count": 0.5},
    ],
)
def test_what_is_no_whole_machine_is_not_offered(change: dict[str, Any]) -> None:
    assert machine_type({**ROW, **change}) is None


def test_a_cluster_says_whose_it_is() -> None:
    owner = "attempt_01a0c45083457004a65c992d2db46b4e"
    name = cluster_name(owner, "instance_01a0c4508345")
    assert name == "gpuyard-c4508345-attempt-01a0c45083457004a65c992d2db46b4e"
    assert owner_of(name, "instance_01a0c4508345") == owner


def test_faults_have_our_codes() -> None:
    unavailable = "ResourcesUnavailableError"
    assert code_of(unavailable, "Failed to acquire resources in all zones") == CAPACITY
    assert code_of(unavailable, "VcpuLimitExceeded: quota of 0") == QUOTA
    assert code_of("NoCloudAccessError", "No cloud access is set up") == CREDENTIALS
    down = "Failed to start SkyPilot API server at http://127.0.0.1:46580"
    assert code_of("RuntimeError", down) == "NOT_CONNECTED"
    assert code_of("TypeError", "launch() got an unexpected argument") == "SKYPILOT"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ("python", "is missing")),
        ({"python": "python3"}, ("python", "no absolute path")),
        ({"python": "/p", "clouds": ["k8s"]}, ("clouds", "rents no machines")),
        ({"python": "/p", "cloud": "gcp"}, ("cloud", "clouds")),
    ],
)
def test_a_wrong_setting_is_named(
    values: dict[str, Any], words: tuple[str, str]
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        SkyPilotConfig.read(values)
    for word in words:
        assert word in str(caught.value)


# --- launches ---

ASKED = Instance(
    "gpuyard-lab-attempt-1",
    "skypilot",
    "gcp/us-central1",
    "a2-highgpu-2g",
    True,
    InstanceState.PENDING,
    "attempt_1",
)
CLUSTER: dict[str, Any] = {
    "name": ASKED.id,
    "status": "INIT",
    "launched_at": 1_795_737_600,
    "cloud": "",
    "region": "",
    "type": "",
    "spot": False,
    "why": "",
}
SOLD_OUT = {"kind": "ResourcesUnavailableError", "message": "none left"}


def answer(**parts: Any) -> dict[str, Any]:
    return {"clusters": [], "launching": [], "failed": {}, **parts}


def launched() -> AcceptedLaunches:
    launches = AcceptedLaunches()
    launches.add(ASKED)
    return launches


def told(launches: AcceptedLaunches, **parts: Any) -> list[Instance]:
    return launches.machines_in(answer(**parts), "lab", launches.names)


def test_a_cluster_that_is_being_made_is_what_was_asked_for() -> None:
    launches = launched()
    assert told(launches, launching=[ASKED.id]) == [ASKED]
    (found,) = told(launches, clusters=[CLUSTER], launching=[ASKED.id])
    assert (found.zone, found.type, found.spot) == (ASKED.zone, ASKED.type, True)
    assert found.launched_at == CLUSTER["launched_at"]


@pytest.mark.parametrize(
    ("clusters", "state"), [([], InstanceState.GONE), ([CLUSTER], InstanceState.ENDING)]
)
def test_a_launch_that_failed_is_told_of_and_its_market_left_alone(
    clusters: list[dict[str, Any]], state: InstanceState
) -> None:
    launches = launched()
    (found,) = told(launches, clusters=clusters, failed={ASKED.id: SOLD_OUT})
    assert (found.state, found.why) == (state, "none left")
    markets = markets_of([ROW, {**ROW, "spot_price": 2.2}], with_spot=True, read_on="")
    problems = {(one.spot, launches.with_problem(one).problem) for one in markets}
    assert problems == {(False, ""), (True, "none left")}


def test_a_launch_of_which_skypilot_tells_no_more_is_forgotten() -> None:
    launches = launched()
    names_before = launches.names
    launches.add(replace(ASKED, id="gpuyard-lab-attempt-2"))
    # The second was accepted after SkyPilot was asked.
    assert launches.machines_in(answer(), "lab", names_before) == []
    assert launches.names == {"gpuyard-lab-attempt-2"}


def test_the_secrets_of_launches_that_were_cut_off_do_not_stay(tmp_path: Path) -> None:
    folder = tmp_path / "launches"
    tidy(str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700
    for name, hours in (("old", 2), ("new", 0)):
        (folder / name).mkdir()
        (folder / name / "0").write_text("the code by which a machine joins")
        then = time.time() - hours * 3600
        os.utime(folder / name, (then, then))
    tidy(str(folder))
    # SkyPilot may still read those of a process that ended a moment ago.
    assert [left.name for left in folder.iterdir()] == ["new"]
