"""What the peers' runs share.

Standard library only: each runs in the peers' environment.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

# Not the command line: some of these systems start workers with one of their own.
PROGRAM = os.environ["PEER_PROGRAM"]
COUNT = int(os.environ["PEER_COUNT"])
FOLDER = Path(os.environ["PEER_FOLDER"])
SLOTS = 2


def spawn() -> int:
    """Start the no-op and wait for it, the quickest way Python has."""
    return os.waitstatus_to_exitcode(
        os.waitpid(os.posix_spawn(PROGRAM, [PROGRAM], os.environ), 0)[1]
    )


def report(work: Callable[[int], None]) -> None:
    """Warm up, then print the seconds in which `work(count)` has run so many and knows
    that they are over.
    """
    work(2 * SLOTS)
    began = time.perf_counter()
    work(COUNT)
    print(json.dumps({"seconds": time.perf_counter() - began}))
