"""huey on SQLite with every commit synced; two worker processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

from common import FOLDER, SLOTS, open_ends, report, spawn, tell_end, wait_for_ends
from huey import SqliteHuey

huey = SqliteHuey(filename=str(FOLDER / "huey.db"), fsync=True)
ends = open_ends()


@huey.task()
def noop() -> int:
    """One no-op."""
    code = spawn()
    tell_end(ends)
    return code


def work(count: int) -> None:
    """Queue them, and wait until each has a result."""
    before = huey.result_count()
    for _ in range(count):
        noop()
    wait_for_ends(ends, count)
    while huey.result_count() < before + count:
        time.sleep(0.001)


if __name__ == "__main__":
    consumer = str(Path(sys.executable).with_name("huey_consumer"))
    command = [
        consumer,
        "run_huey.huey",
        "-q",
        "-w",
        str(SLOTS),
        "-k",
        "process",
        "-d",
        "0.001",
        "-m",
        "0.01",
    ]
    with subprocess.Popen(
        command, cwd=Path(__file__).parent, env={**os.environ, "PYTHONPATH": "."}
    ) as process:
        try:
            import run_huey  # under the name by which the consumer knows the task

            report(run_huey.work)
        finally:
            process.terminate()
