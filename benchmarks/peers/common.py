"""What the peers' runs share.

Standard library only: each runs in the peers' environment.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
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


def open_ends() -> int:
    """The pipe of ends, the same in all processes of a run.

    A system that cannot wait for many tasks would have to be asked again and again, and
    would have less time for them.
    """
    path = FOLDER / "ends"
    with suppress(FileExistsError):
        os.mkfifo(path)
    return os.open(path, os.O_RDWR)


def tell_end(ends: int) -> None:
    """A task says that its program has ended."""
    os.write(ends, b".")


def wait_for_ends(ends: int, count: int) -> None:
    """Wait until so many tasks have said so; the system may still have to note it."""
    while count > 0:
        count -= len(os.read(ends, count))


def report(work: Callable[[int], None]) -> None:
    """Warm up, then print the seconds in which `work(count)` has run so many and knows
    that they are over.
    """
    work(2 * SLOTS)
    began = time.perf_counter()
    work(COUNT)
    print(json.dumps({"seconds": time.perf_counter() - began}))
