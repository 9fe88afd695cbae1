import pytest

from gpuyard.domain.gpus import GPUClass
from gpuyard.domain.shape import Placement
from gpuyard.scheduler.nodes import Device, Node


@pytest.mark.parametrize(
    ("name", "memory_mb", "counts_as", "gpu_class"),
    [
        ("Tesla T4", 15360, 16, GPUClass.T4),
        ("Tesla T4", 16127, 16, GPUClass.T4),
        ("NVIDIA H200", 143771, 141, GPUClass.H200),
        ("Some Card", 24 * 1024, 24.0, None),
        ("Some Card", 24 * 1024 - 300, 24.0, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, 5.0, None),
        ("", 0, 0.0, None),
    ],
)
def test_a_device_counts_as_its_class_or_rounded_up(
    name, memory_mb, counts_as, gpu_class
):
    device = Device("GPU-1", "n", 0, name, memory_mb)
    assert device.memory_gb == counts_as
    assert device.gpu_class == gpu_class


@pytest.mark.parametrize("state", ["idle", "llm_ready", "script_busy"])
def test_states_in_which_a_device_may_be_given(state):
    assert Device("GPU-1", state=state).usable


@pytest.mark.parametrize("state", ["draining", "offline", "quarantined"])
def test_states_in_which_it_may_not(state):
    assert not Device("GPU-1", state=state).usable


def test_why_a_device_is_not_usable():
    assert (
        Device("GPU-1", state="quarantined", problem="ECC errors").why_not
        == "quarantined: ECC errors"
    )
    assert Device("GPU-1", state="offline").why_not == "offline"
    assert Device("GPU-1").why_not == ""


def test_many_small_bookings_leave_no_rounding_behind():
    node = Node("n", cpus=1.0)
    node.rebuild()
    for number in range(10):
        node.book(f"a{number}", Placement("n", (), 0.1, 0.0))
    assert node.free.cpus == 0.0
    for number in (3, 1, 9, 0, 2, 8, 4, 7, 5, 6):
        node.unbook(f"a{number}")
        node.unbook(f"a{number}")
    assert node.free.cpus == 1.0


def test_a_node_that_shrank_below_its_bookings_has_nothing_left():
    node = Node("n", cpus=8.0)
    node.book("a", Placement("n", (), 6.0, 0.0))
    node.cpus = 4.0
    node.rebuild()
    assert node.free.cpus == 0.0
