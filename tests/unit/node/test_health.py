"""Quarantine and trust: what an agent remembers of its GPUs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.domain import wire
from gpuyard.node.health import FIRST_TRIAL_S, FORGIVEN, LONGEST_TRIAL_S, GpuHealth

GPU = wire.GpuStatus("GPU-a", 0, "NVIDIA A100", 40960)
LOST = replace(GPU, state="offline", problem="GPU is lost")


@pytest.fixture
def health(tmp_path: Path) -> GpuHealth:
    return GpuHealth(tmp_path / "quarantine.json", "boot-1")


def states(health: GpuHealth, gpus: list[tuple[float, wire.GpuStatus]]) -> list[str]:
    return [health.judge(gpu, at).state for at, gpu in gpus]


def test_a_fatal_xid_quarantines_until_it_is_released(health, tmp_path):
    assert not health.xid("GPU-a", 79)
    judged = health.judge(GPU, 0.0)
    assert judged.state == "quarantined"
    assert "fallen off the bus" in judged.problem
    assert "gpuyard gpus --release" in judged.problem
    assert (
        GpuHealth(tmp_path / "quarantine.json", "boot-1").judge(GPU, 0.0).state
        == "quarantined"
    )
    health.release(["GPU-a"])
    assert health.judge(GPU, 1.0) == GPU
    assert GpuHealth(tmp_path / "quarantine.json", "boot-1").judge(GPU, 0.0) == GPU


def test_a_new_boot_ends_a_quarantine(health, tmp_path):
    health.xid("GPU-a", 79)
    assert GpuHealth(tmp_path / "quarantine.json", "boot-2").judge(GPU, 0.0) == GPU


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109])
def test_what_a_program_does_wrong_is_not_held_against_the_gpu(health, number):
    assert health.xid("GPU-a", number)
    assert health.judge(GPU, 0.0) == GPU


def test_a_gpu_whose_events_cannot_be_heard_is_offline_until_they_can(health):
    health.unwatched("GPU-a", "Unknown Error")
    assert health.judge(GPU, 0.0).state == "offline"
    health.unwatched("GPU-a", None)
    assert health.judge(GPU, 1.0).state == "idle"


def test_the_first_falls_are_forgiven_at_once_and_the_next_only_after_a_while(health):
    for fall in range(FORGIVEN):
        assert states(health, [(fall * 10, LOST), (fall * 10 + 5, GPU)]) == [
            "offline",
            "idle",
        ]
    assert states(health, [(50, LOST), (55, GPU)]) == ["offline", "cooling"]
    assert "3 times" in health.judge(GPU, 60.0).problem
    assert health.judge(GPU, 55 + FIRST_TRIAL_S).state == "idle"


def test_falls_of_an_hour_ago_do_not_count(health):
    for at in (0, 10, 20):
        states(health, [(at, LOST), (at + 5, GPU)])
    assert states(health, [(5000, LOST), (5001, GPU)]) == ["offline", "idle"]


@given(st.lists(st.tuples(st.floats(0.1, 400), st.booleans()), max_size=60))
def test_a_gpu_that_stays_well_is_always_used_again_in_the_end(steps):
    health = GpuHealth(Path("/nonexistent/quarantine.json"), "boot")
    now = 0.0
    for seconds, well in steps:
        now += seconds
        judged = health.judge(GPU if well else LOST, now)
        assert judged.state in (("idle", "cooling") if well else ("offline",))
    health.judge(GPU, now)
    assert health.judge(GPU, now + LONGEST_TRIAL_S).state == "idle"
