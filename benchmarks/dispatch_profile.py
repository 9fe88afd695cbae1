"""`python -m benchmarks.dispatch_profile [--write]`: where server and agent spend their
time while they run no-op jobs.

py-spy looks at both, a hundred times a second each, so the jobs run slower than in the
benchmark: the shares count, and not the times.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.bench import EventListener, noop, scratch, serving
from benchmarks.figures import Rows, markdown_table
from benchmarks.page import measured_by, store_table
from tests.support.instance import TestInstance

PROCESSES = ("server", "agent")
COUNT = 4000
FUNCTIONS = 12
"""The table has so many of each process."""
WAITING = "_worker (concurrent/futures/thread.py)"
"""A thread of a pool that has nothing to do; py-spy knows other ways to wait itself."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dispatch_profile", description=__doc__
    )
    parser.add_argument("--count", type=int, default=COUNT, help="how many jobs")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    if not shutil.which("py-spy"):
        sys.exit("benchmarks: py-spy is missing; install it (pip install py-spy)")
    command = f"python -m benchmarks.dispatch_profile --count {arguments.count}"
    measured = measured_by(command)
    rows = table(arguments.count)
    print(markdown_table(rows))
    if arguments.write:
        store_table("profile", measured, rows)


def table(count: int) -> Rows:
    """The functions that take most, for each process."""
    rows = [["process", "processor time of a job", "share", "function"]]
    with serving() as (instance, web), scratch() as folder:
        listener = EventListener(instance.address())
        before = {name: _cpu_s(instance, name) for name in PROCESSES}
        job = {"name": "noop", "command": [noop()], "workdir": str(instance.work)}
        body = json.dumps([job] * count).encode()
        with profiling(instance, folder):
            web.send("POST", "/api/v1/jobs", body)
            listener.wait_for_ends(count)
        for name in PROCESSES:
            spent_ms = (_cpu_s(instance, name) - before[name]) / count * 1000
            for share, function in shares((folder / name).read_text()):
                rows.append([name, f"{spent_ms:.2f} ms", f"{share:.1%}", function])
    return rows


@contextmanager
def profiling(instance: TestInstance, folder: Path) -> Iterator[None]:
    """Let py-spy look at each process, and write what it saw to `folder`."""
    watchers = [
        subprocess.Popen(
            [
                "py-spy",
                "record",
                "--format=raw",
                f"--output={folder / name}",
                f"--pid={instance.pid(name)}",
                "--duration=600",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in PROCESSES
    ]
    yield
    for watcher in watchers:
        watcher.send_signal(signal.SIGINT)
        watcher.wait()


def shares(stacks: str) -> list[tuple[float, str]]:
    """The share of each function's own code, the greatest first.

    A line is a stack from the outside in, `;` between its frames `NAME (FILE:LINE)`,
    and how often it was seen.
    """
    seen: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, times = line.rpartition(" ")
        frame = stack.rsplit(";", 1)[-1]
        function = frame.rpartition(":")[0] + ")"
        if function != WAITING:
            seen[function] += int(times)
    return [
        (times / seen.total(), f"`{function}`")
        for function, times in seen.most_common(FUNCTIONS)
    ]


def _cpu_s(instance: TestInstance, name: str) -> float:
    times = psutil.Process(instance.pid(name)).cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
