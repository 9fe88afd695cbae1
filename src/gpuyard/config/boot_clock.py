"""The boot clock: seconds since the boot of this host, also while it was suspended.

Nobody sets it, and all processes until the next boot read the same.
"""

import time
from functools import cache
from pathlib import Path


def boot_clock_s() -> float:
    """The boot clock now."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    """Of which boot of this host it is the clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
