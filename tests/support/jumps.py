"""A wall clock that is set by an hour while jobs with a time limit run."""

from collections.abc import Callable

from tests.support.faults import Faults
from tests.support.instance import TestInstance


def check_time_limits(
    instance: TestInstance, faults: Faults, submit: Callable[..., str]
) -> None:
    """No job ends early when the clock jumps forward, or late when it jumps back."""
    patient = submit("sleep", "4", timeout_s=600)
    instance.wait(patient, "running")
    faults.clock_is_off(3600)
    assert instance.wait(patient).state == "completed"
    limited = submit("sleep", "600", timeout_s=3)
    instance.wait(limited, "running")
    faults.clock_is_off(0)
    assert instance.wait(limited).state == "timed_out"
