"""What the groups share: built programs, clocks, SQLite as the ledger opens it, an instance
and plain HTTP to it.
"""

import asyncio
import gc
import http.client
import json
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gpuyard.client.connection import Address, running_server
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.shape import Shape
from gpuyard.ledger.ledger import Ledger
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
PROGRAMS = Path(__file__).with_name("programs")
BUILT = Path(__file__).with_name(".built")
# Tests, whose figures mean nothing, name one that starts at once.
SERVERS_PYTHON = os.environ.get("BENCHMARKS_SERVERS_PYTHON", sys.executable)


def built(name: str, *flags: str) -> Path:
    """A program of `programs/`, compiled by gcc once for this checkout."""
    source = PROGRAMS / f"{name}.c"
    target = BUILT / name
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        if not shutil.which("gcc"):
            sys.exit("benchmarks: gcc is missing; install it (Debian: gcc libc6-dev)")
        BUILT.mkdir(exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        subprocess.run(
            ["gcc", "-O2", *flags, "-o", partial, source, "-ldl"], check=True
        )
        partial.rename(target)
    return target


def noop() -> str:
    """A static program that does nothing."""
    return str(built("noop", "-static"))


def stamp() -> str:
    """A static program that writes the time at which it runs into a file."""
    return str(built("stamp", "-static"))


def slow_sync() -> str:
    """The library that makes every sync take 4 ms, for LD_PRELOAD."""
    return str(built("slow_sync", "-shared", "-fPIC"))


# --- clocks ---


def timed(work: Callable[[], object]) -> float:
    """How long `work` takes, in seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median_ms(work: Callable[[], object], times: int) -> float:
    """The median of `times` runs, in ms."""
    return statistics.median(timed(work) for _ in range(max(times, 3))) * 1000


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def scaled(count: int, scale: float, least: int = 1) -> int:
    """So many at this scale."""
    return max(round(count * scale), least)


# --- rows and disks ---


def spec_body(number: int, *, distinct: bool) -> dict[str, Any]:
    """A job of 20 shapes in turn, or of a shape and a runtime of its own."""
    memory_gb = 1 + number * 1e-5 if distinct else 1 + number % 20 / 4
    timeout_s = 3600 + (number if distinct else 0)
    return {
        "name": f"train-{number % 50}",
        "command": ["/bin/sleep", str(1000 + number)],
        "workdir": "/tmp",
        "resources": {"cpus": 1, "memory_gb": memory_gb},
        "timeout_s": timeout_s,
        "project": f"team-{number % 10}",
    }


def job_event(body: dict[str, Any]) -> Event:
    """The event of a submission, as the controller makes it."""
    spec = JobSpec.model_validate(body)
    job_id = new_id("job")
    now = time.time()
    row: dict[str, Any] = {
        "name": spec.name,
        "kind": spec.kind.value,
        "state": "queued",
        "reason": None,
        "exit_code": None,
        "priority": spec.priority,
        "project": spec.project,
        "labels": {},
        "shape": Shape.of(spec).to_row(),
        "created_at": now,
        "started_at": None,
        "ended_at": None,
        "not_before": None,
        "timeout_s": spec.timeout_s,
        "estimated_duration_s": None,
        "preemptible": False,
        "depends_on": [],
        "retry_count": 0,
        "failures": 0,
        "attempts": 0,
        "attempt_id": None,
        "cancel_requested": False,
        "resume_from": None,
        "tier": None,
        "idempotency_key": None,
        "warnings": [],
    }
    changes = (
        Change(Table.JOBS, job_id, row),
        Change(Table.SPECS, job_id, {"body": body}),
    )
    return Event(
        EventKind.JOB_SUBMITTED,
        now,
        changes,
        job_id,
        {"state": "queued", "name": spec.name},
    )


def job_events(count: int, *, distinct: bool = False) -> list[Event]:
    """The events of `count` submissions."""
    return [job_event(spec_body(number, distinct=distinct)) for number in range(count)]


async def write(ledger: Ledger, events: Sequence[Event]) -> float:
    """Seconds until `events`, put at once, are committed."""
    writer = ledger.writer()
    writer.start()
    gc.collect()
    began = time.perf_counter()
    writer.add_events(events)
    await writer.committed()
    taken = time.perf_counter() - began
    await writer.close()
    return taken


TABLES = ("events", "jobs", "specs")
Rows = dict[str, list[tuple[Any, ...]]]


def rows_of(events: Sequence[Event], folder: Path) -> Rows:
    """The rows that the ledger writes for `events`, by table, in its own columns'
    order.
    """
    path = folder / "rows.db"
    path.unlink(missing_ok=True)
    ledger = Ledger.open(path)
    asyncio.run(write(ledger, events))
    ledger.close()
    connection = sqlite3.connect(path)
    found = {
        table: connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
        for table in TABLES
    }
    connection.close()
    return found


def raw_connection(path: Path) -> sqlite3.Connection:
    """Bare sqlite3 on a new ledger's file: its tables, indexes and pragmas, and nothing
    of gpuyard in between.
    """
    ledger = Ledger.open(path)
    names = ("journal_mode", "synchronous", "cache_size", "mmap_size", "temp_store")
    with ledger.engine.connect() as ours:
        pragmas = {
            name: ours.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names
        }
    ledger.close()
    connection = sqlite3.connect(path, isolation_level=None)
    for name, value in pragmas.items():
        connection.execute(f"PRAGMA {name}={value}")
    return connection


def raw_insert(connection: sqlite3.Connection, rows: Rows) -> None:
    """Insert rows and commit, with nothing in between."""
    connection.execute("BEGIN IMMEDIATE")
    for table, values in rows.items():
        marks = ",".join("?" * len(values[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    connection.execute("COMMIT")


def sliced(rows: Rows, start: int, stop: int) -> Rows:
    """Some of the rows of each table."""
    return {table: values[start:stop] for table, values in rows.items()}


def fdatasync_ms(folder: Path, times: int = 100) -> float:
    """The disk's own time for 4 kB appended and synced."""
    file = os.open(folder / "sync", os.O_WRONLY | os.O_CREAT)

    def once() -> None:
        os.write(file, b"x" * 4096)
        os.fdatasync(file)

    try:
        return median_ms(once, times)
    finally:
        os.close(file)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the disk that instances use too."""
    with tempfile.TemporaryDirectory(prefix="gy-bench-") as folder:
        yield Path(folder)


# --- an instance ---


class Web:
    """One kept connection to an instance's server; nothing is decoded unless asked for."""

    def __init__(self, address: Address) -> None:
        self._connection = http.client.HTTPConnection(
            address.url.removeprefix("http://"), timeout=300
        )
        self._headers = {
            "Authorization": f"Bearer {address.token}",
            "Content-Type": "application/json",
        }

    def send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The body of the answer, which must be a success."""
        try:
            self._connection.request(method, path, body, self._headers)
            answer = self._connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            # A server closes a connection that was silent for some seconds.
            self._connection.close()
            self._connection.request(method, path, body, self._headers)
            answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 400:
            raise RuntimeError(
                f"{method} {path}:"
                f" {answer.status} {content[:300].decode(errors='replace')}"
            )
        return content

    def get(self, path: str) -> Any:
        """The JSON at `path`."""
        return json.loads(self.send("GET", path))

    def submit(self, bodies: Sequence[dict[str, Any]] | dict[str, Any]) -> Any:
        """Submit and decode."""
        return json.loads(
            self.send("POST", "/api/v1/jobs", json.dumps(bodies).encode())
        )

    def cancel_queued(self) -> None:
        """End all jobs that wait."""
        self.send("POST", "/api/v1/jobs:cancel", b'{"state": ["queued"]}')

    def close(self) -> None:
        """Let go."""
        self._connection.close()


class EventListener:
    """Hears from the event stream that jobs end; nothing is decoded.

    A server that is asked again and again has less time for what is measured.
    """

    _COMPLETED = b"event: job.completed\n"
    _OTHER_ENDS = re.compile(b"event: job.(failed|cancelled|timed_out|unknown)\n")

    def __init__(self, address: Address) -> None:
        self._connection = http.client.HTTPConnection(
            address.url.removeprefix("http://"), timeout=300
        )
        headers = {
            "Authorization": f"Bearer {address.token}",
            "Accept": "text/event-stream",
        }
        self._connection.request("GET", "/api/v1/events", headers=headers)
        self._stream = self._connection.getresponse()
        self._rest = b""
        # The first part says from which event on the stream tells.
        self._stream.read1()

    def wait_for_ends(self, count: int) -> None:
        """Wait until so many more jobs have completed."""
        while count > 0:
            part = self._stream.read1()
            events, _, self._rest = (self._rest + part).rpartition(b"\n\n")
            if other := self._OTHER_ENDS.search(events):
                raise RuntimeError(f"a job has ended otherwise: {other[1].decode()}")
            if not part:
                raise RuntimeError("the server has ended its event stream")
            count -= events.count(self._COMPLETED)

    def close(self) -> None:
        """Let go."""
        self._connection.close()


@contextmanager
def serving(module: str = "gpuyard.server") -> Iterator[tuple[TestInstance, Web]]:
    """An instance whose server is `python -m MODULE` and whose node has joined, and a
    connection to it.
    """
    with make_instance() as instance:
        instance.home.create()
        start_server(instance, module)
        web = Web(instance.address())
        wait_until(lambda: web.get("/api/v1/nodes")["items"], what="the node to join")
        try:
            yield instance, web
        finally:
            web.close()
            # Not asked to cancel what it has: that may be a hundred thousand jobs.
            instance.kill("keeper", "agent", "server")


def start_server(instance: TestInstance, module: str = "gpuyard.server") -> None:
    """Start the instance's server and wait until it serves."""
    command = [SERVERS_PYTHON, "-m", module, "--home", str(instance.home.root)]
    with (instance.home.logs / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=instance.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    wait_until(
        lambda: process.poll() is not None or running_server(instance.home),
        what="the server to serve",
    )
    if process.poll() is not None:
        sys.exit((instance.home.logs / "server.log").read_text()[-2000:])


def whole_node(web: Web) -> float:
    """How many cores the instance's node has."""
    return float(web.get("/api/v1/nodes")["items"][0]["cpus"])


def block(instance: TestInstance, web: Web) -> None:
    """Take the whole node with a job that runs until the work folder is gone."""
    wait_until_running(web, submit_blocker(instance, web, instance.work / "go"))


def submit_blocker(instance: TestInstance, web: Web, go: Path) -> str:
    """Queue a job for the whole node that runs until `go` is there, or the work folder
    is gone; its id.
    """
    script = f"while [ -d {instance.work} ] && [ ! -e {go} ]; do sleep 0.01; done"
    body = {
        "name": "blocker",
        "command": ["/bin/sh", "-c", script],
        "workdir": str(instance.work),
        "priority": 5,
        "resources": {"cpus": whole_node(web)},
    }
    return str(web.submit(body)["id"])


def wait_until_running(web: Web, job_id: str) -> None:
    """Wait until the job runs."""
    wait_until(
        lambda: web.get(f"/api/v1/jobs/{job_id}")["state"] == "running",
        what=f"job {job_id} to run",
    )
