"""The pace of the spine on this machine: each figure beside a floor measured in the same run, and their ratio.

Run: `make bench`, or `python benchmarks/spine.py [--json]`. Prints figures and asserts nothing.
"""

import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpuyard.client.sync import Client
from tests.support.wait import wait_until
from tests.support.yard import TestYard, make_yard

NOOP = {"command": ["/bin/true"], "workdir": "/tmp", "resources": {"cpus": 0.25}}
JOBS = 500


@dataclass(frozen=True)
class Figure:
    """A figure and its floor, in `unit`; `ratio` is figure / floor."""

    name: str
    figure: float
    floor_name: str
    floor: float
    unit: str

    @property
    def ratio(self) -> float:
        """How many times the floor."""
        return self.figure / self.floor


def median_ms(work: Callable[[], object], times: int) -> float:
    """The median of `times` runs, in ms."""
    taken: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def commit_ms(folder: Path) -> float:
    """One synced SQLite commit on the disk that holds `folder`."""
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE t (x)")
    return median_ms(lambda: connection.execute("INSERT INTO t VALUES (1)"), 50)


def spawn_ms(argv: list[str], times: int) -> float:
    """A bare process, started and waited for."""
    return median_ms(lambda: os.waitpid(os.posix_spawn(argv[0], argv, os.environ), 0), times)


def cold_run(_: Path) -> Figure:
    """From no server to the output of the first job."""

    def once() -> None:
        with make_yard() as yard:
            began = time.perf_counter()
            yard.ok("run", "--", sys.executable, "-c", "print(1)")
            taken.append(time.perf_counter() - began)

    taken: list[float] = []
    for _ in range(3):
        once()
    floor = median_ms(lambda: subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True), 5)
    return Figure("gpuyard run from nothing to its output", statistics.median(taken) * 1000, "python -c", floor, "ms")


def idle(yard: TestYard, client: Client, folder: Path) -> list[Figure]:
    """Submit to an idle yard: until the answer, until the process runs."""
    answers: list[float] = []
    starts: list[float] = []
    for _ in range(40):
        began = time.time()
        job = client.run(NOOP)
        answers.append(time.time() - began)
        started = wait_until(lambda job=job: job.refresh().started_at, what="the start")
        starts.append(started - began)
        job.wait(10)
    floor = commit_ms(folder)
    return [
        Figure("submit until acknowledged", statistics.median(answers) * 1000, "one synced commit", floor, "ms"),
        Figure("submit until the process runs", statistics.median(starts) * 1000, "one synced commit", floor, "ms"),
    ]


def rate(client: Client) -> Figure:
    """No-op jobs, one after the other and side by side, until all are durable ends."""
    began = time.perf_counter()
    last = client.submit_many([NOOP] * JOBS)
    while any(client.jobs(state=["queued", "assigned", "running"], limit=1)):
        time.sleep(0.02)
    taken = (time.perf_counter() - began) / len(last) * 1000
    return Figure(f"a no-op job, of {JOBS}", taken, "bare spawn", spawn_ms(["/bin/true"], 200), "ms")


def body(client: Client) -> Figure:
    """A body of 1,000 jobs that wait for one that never runs, so that only taking them in is measured."""
    blocker = client.run({**NOOP, "command": ["/bin/sleep", "600"]})
    jobs = [{**NOOP, "depends_on": [blocker.id]}] * 1000
    began = time.perf_counter()
    client.submit_many(jobs)
    taken = (time.perf_counter() - began) * 1000
    blocker.cancel()
    rows = [(f"job_{n}", json.dumps(jobs[0])) for n in range(1000)]
    return Figure("a body of 1,000 jobs", taken, "their rows in bare SQLite", _bulk_ms(rows), "ms")


def _bulk_ms(rows: list[tuple[str, str]]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder) / "bulk.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        for table in ("events", "jobs", "specs"):
            connection.execute(f"CREATE TABLE {table} (id TEXT PRIMARY KEY, body TEXT)")
        began = time.perf_counter()
        connection.execute("BEGIN")
        for table in ("events", "jobs", "specs"):
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
        connection.execute("COMMIT")
        return (time.perf_counter() - began) * 1000


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        figures = [cold_run(Path(folder))]
        with make_yard() as yard, yard.client() as client:
            figures += idle(yard, client, Path(folder))
            figures += [rate(client), body(client)]
    if "--json" in sys.argv:
        print(json.dumps([{**asdict(figure), "ratio": figure.ratio} for figure in figures]))
        return
    print(f"{'figure':<40} {'measured':>12} {'floor':>12}  {'ratio':>7}  floor is")
    for f in figures:
        print(f"{f.name:<40} {f.figure:>9.2f} {f.unit} {f.floor:>9.2f} {f.unit} {f.ratio:>7.1f}  {f.floor_name}")


if __name__ == "__main__":
    main()
