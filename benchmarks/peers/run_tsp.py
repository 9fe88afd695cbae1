"""task-spooler: a queue in the memory of its server, one client process per
submission.
"""

import os
import subprocess
from itertools import count

from common import FOLDER, PROGRAM, SLOTS, report

ENVIRONMENT = {
    **os.environ,
    "TS_SOCKET": str(FOLDER / "tsp"),
    "TMPDIR": str(FOLDER),
    "TS_SLOTS": str(SLOTS),
    "TS_MAXFINISHED": "10",
}


def tsp(*words: str) -> None:
    """`tsp WORDS`."""
    subprocess.run(["tsp", *words], env=ENVIRONMENT, check=True)


numbers = count()


def work(jobs: int) -> None:
    """Queue them one by one, as tsp offers it, and wait for the last of each slot: they
    start in order.
    """
    last: list[int] = []
    for _ in range(jobs):
        tsp("-n", PROGRAM)
        last = [*last, next(numbers)][-SLOTS:]
    for job in last:
        tsp("-w", str(job))


if __name__ == "__main__":
    try:
        report(work)
    finally:
        tsp("-K")
