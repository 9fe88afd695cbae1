"""What is wrong with a node of a pool."""

from dataclasses import replace

import pytest

from gpuyard.config.pools import PoolSettings
from gpuyard.controller.pool_health import why_lost, why_not_coming, why_sick
from gpuyard.controller.pool_rows import PoolRow
from gpuyard.domain.drivers import why_too_old
from gpuyard.providers.pool_hands import PoolMachine
from gpuyard.scheduler.nodes import Device, Node

SETTINGS = PoolSettings(provider="aws", boot_timeout=900, silence=300)
ROW = PoolRow.new("warm", "aws", "g5.xlarge", 0.0)
MACHINE = PoolMachine(ROW.id, "i-1", live=True, began_at=100.0)


def node(**device) -> Node:
    made = Node("node_1", "warm-1", "local", state="online")
    made.devices["GPU-1"] = Device("GPU-1", "node_1", 0, "NVIDIA L4", 23034, **device)
    made.rebuild()
    return made


def sick(node: Node, machine=MACHINE, driver="", cudas=(), now=1000.0) -> str:
    return why_sick(node, machine, {"GPU-1": driver}, cudas, now)


def test_a_node_with_nothing_wrong_is_kept():
    assert sick(node()) == ""
    assert sick(node(), machine=None) == ""
    assert why_lost(node(), 0.0, SETTINGS) == ""


def test_a_broken_or_distrusted_gpu_makes_it_sick():
    broken = node(state="quarantined", problem="XID 79")
    assert sick(broken) == "its GPU 0 is quarantined: XID 79"
    assert sick(node(state="offline")) == "its GPU 0 is offline"
    distrusted = node(quarantine="wrong answers")
    assert sick(distrusted) == "its GPU 0 is in quarantine: wrong answers"
    # A person drains a GPU, or it cools: that passes.
    assert sick(node(state="cooling")) == ""
    barred = node()
    barred.barred = {"local": "wrong answers"}
    assert sick(barred) == "it is in quarantine: wrong answers"


def test_a_machine_that_is_taken_back_or_nearly_over_is_replaced_in_time():
    leaving = replace(MACHINE, leaving=True, why="spot notice")
    assert sick(node(), leaving) == "its provider takes it back: spot notice"
    ends = replace(MACHINE, ends_at=1299.0)
    assert sick(node(), ends) == "its time at the provider is nearly over"
    assert sick(node(), ends, now=900.0) == ""


@pytest.mark.parametrize(
    ("driver", "cuda", "is_old"),
    [
        ("535.104.05", "12.8", False),
        ("525.60.13", "12.8", False),
        ("515.105.01", "12.8", True),
        ("470.57.02", "12.1", True),
        ("470.57.02", "11.8", False),
        ("570.86.10", "13.0", True),
        ("580.65.06", "13.0", False),
        # What is not known is no fault.
        ("", "12.8", False),
        ("535.104.05", "99.1", False),
    ],
)
def test_a_driver_too_old_for_the_cuda_of_an_image_that_waits(driver, cuda, is_old):
    assert bool(why_too_old(driver, cuda)) == is_old
    fault = sick(node(), driver=driver, cudas=[cuda])
    assert (f"its driver {driver} is too old for CUDA {cuda}" in fault) == is_old


def test_a_machine_that_does_not_join_counts_from_its_start():
    pending = replace(MACHINE, began_at=None)
    assert why_not_coming(ROW, pending, SETTINGS, 1e6) == ""
    assert why_not_coming(ROW, MACHINE, SETTINGS, 999.0) == ""
    said = why_not_coming(ROW, MACHINE, SETTINGS, 1000.0)
    assert said == "it has not joined 15m00s after its start"
    leaving = replace(MACHINE, leaving=True)
    assert why_not_coming(ROW, leaving, SETTINGS, 101.0) == "aws takes it back"


def test_a_node_that_is_silent_or_removed_is_lost():
    assert why_lost(node(), 300.0, SETTINGS) == "it was silent for 5m00s"
    removed = node()
    removed.state = "removed"
    assert why_lost(removed, 0.0, SETTINGS) == "it was removed from the instance"
