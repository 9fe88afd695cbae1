"""When processes started, on the boot clock (`config/boot_clock.py`)."""

import os

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def start_of(start_ticks: int) -> float:
    """When a process started, on the boot clock, to a hundredth of a second.

    `start_ticks` is its start in /proc: clock ticks since the boot.
    """
    return start_ticks / _TICKS_PER_S
