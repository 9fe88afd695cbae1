"""What one reading says against a GPU."""

from dataclasses import replace

import pytest

from gpuyard.devices.gpu import GpuReading
from gpuyard.devices.health import fault_of, xid_text

WELL = GpuReading(
    "GPU-a", 0, "NVIDIA A100", 40960, 40000, "8.0", "550", 40, 0.0, 50.0, (), mig=False
)


@pytest.mark.parametrize(
    ("trouble", "state", "said"),
    [
        ({"remap_failed": True}, "quarantined", "replaced"),
        ({"remap_pending": True}, "quarantined", "reset"),
        ({"recovery": "reboot the host"}, "quarantined", "asks to reboot the host"),
        ({"ecc_uncorrected": 1}, "quarantined", "1 uncorrected memory error since"),
        ({"ecc_uncorrected": 3}, "quarantined", "3 uncorrected memory errors since"),
        ({"temperature_c": 90}, "cooling", "below 85 °C"),
        ({"temperature_c": 87, "slowdown_c": 87}, "cooling", "below 82 °C"),
    ],
)
def test_trouble_has_a_state_and_a_reason(trouble, state, said):
    fault = fault_of(replace(WELL, **trouble))
    assert fault is not None
    assert (fault.state, said in fault.reason) == (state, True)


@pytest.mark.parametrize(
    "fine", [{}, {"temperature_c": 89}, {"temperature_c": None}, {"ecc_uncorrected": 0}]
)
def test_a_well_gpu_has_none(fine):
    assert fault_of(replace(WELL, **fine)) is None


def test_what_was_too_hot_has_to_cool_down_a_little_more():
    assert fault_of(replace(WELL, temperature_c=87), was_hot=True) is not None
    assert fault_of(replace(WELL, temperature_c=84), was_hot=True) is None


def test_an_xid_is_named_where_its_meaning_is_known():
    assert xid_text(79) == "Xid 79 (the GPU has fallen off the bus)"
    assert xid_text(31) == "Xid 31 (GPU memory page fault)"
    assert xid_text(999) == "Xid 999"
