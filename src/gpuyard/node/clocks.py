"""The boot clock: seconds since the boot of this host, also while it was suspended.

Nobody sets it, and all processes until the next boot read the same.
"""

import os
import time

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def boot_clock_s() -> float:
    """The boot clock now."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_of(start_ticks: int) -> float:
    """When a process started, on the boot clock, to a hundredth of a second.

    `start_ticks` is its start in /proc: clock ticks since the boot.
    """
    return start_ticks / _TICKS_PER_S
