"""A ledger with a year of history, and a month of simulated days in which retention
keeps its size, its memory and the latency of commits flat.

`python -m tests.soak.history --jobs 1000000 --days 30 --daily 33000` builds the ledger
by bulk inserts, then lives through the days: each adds a day's jobs in commits and
removes what is too old beside them.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings
from gpuyard.controller.core import Core
from gpuyard.controller.retention import Retention
from gpuyard.controller.submissions import Submissions
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.row_images import import_rows
from gpuyard.ledger.side_tables import points
from gpuyard.ledger.tables import attempts, events, jobs, specs
from gpuyard.providers.configured import Providers
from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.contents import folder_stores

DAY_S = 86_400.0
_START = 1_700_000_000.0
_BULK = 5000
_GROUP = 20
_POINTS = 2


@dataclass(slots=True)
class DayReport:
    """What one simulated day did; latencies in ms, sizes in bytes."""

    removed: dict[str, int]
    before_ms: list[float] = field(default_factory=list[float])
    beside_ms: list[float] = field(default_factory=list[float])
    # For how long each slice of retention had the writer. Commits wait no longer for it.
    slices_ms: list[float] = field(default_factory=list[float])
    largest_wal: int = 0
    file_size: int = 0
    job_rows: int = 0
    pass_s: float = 0.0


def _rows(number: int, at: float) -> Iterator[tuple[Table, str, dict[str, Any]]]:
    """The rows of a job that was completed at the time `at`."""
    job_id = f"job_{int(at * 1000):012x}7{number:019x}"
    attempt_id = f"attempt_{int(at * 1000):012x}7{number:019x}"
    shape = {"gpus": 1, "nodes": 1, "cpus": 1.0, "memory_gb": 4.0}
    yield (
        Table.JOBS,
        job_id,
        {
            "name": f"train-{number % 50}",
            "kind": "command",
            "state": "completed",
            "exit_code": 0,
            "priority": 0,
            "project": "default",
            "labels": {"n": str(number)},
            "shape": shape,
            "created_at": at,
            "started_at": at,
            "ended_at": at + 60,
            "preemptible": False,
            "depends_on": [],
            "retry_count": 0,
            "failures": 0,
            "attempts": 1,
            "attempt_id": attempt_id,
            "cancel_requested": False,
            "tier": "GPU_SMALL",
            "idempotency_key": f"key-{number}",
            "warnings": [],
        },
    )
    command = ["python3", "train.py", "--seed", str(number)]
    yield Table.SPECS, job_id, {"body": {"command": command, "resources": shape}}
    yield (
        Table.ATTEMPTS,
        attempt_id,
        {
            "job_id": job_id,
            "number": 1,
            "state": "ended",
            "token": 1,
            "epoch": 1,
            "provider": "local",
            "provider_ref": attempt_id,
            "placements": [{"node_id": "node_1", "gpu_uuids": [f"GPU-{number % 8}"]}],
            "created_at": at,
            "started_at": at,
            "ended_at": at + 60,
            "exit_code": 0,
            "price_per_hour": "1.2",
            "currency": "USD",
            "basis": "list",
            "cost": "0.02",
        },
    )


def job_events(number: int, at: float) -> list[Event]:
    """The life of one job in five events."""
    rows = list(_rows(number, at))
    job_id = rows[0][1]
    (_, attempt, values) = rows[2]
    first = tuple(Change(*row) for row in rows[:2])
    moves = ("sent", "running", "ended")
    return [
        Event(EventKind.JOB_SUBMITTED, at, first, job_id),
        Event(
            EventKind.ATTEMPT_INTENDED,
            at,
            (Change(Table.ATTEMPTS, attempt, values),),
            job_id,
        ),
        *(
            Event(
                EventKind.ATTEMPT_STARTED,
                at,
                (
                    Change(Table.ATTEMPTS, attempt, {"state": state}),
                    Change(Table.JOBS, job_id, {"started_at": at}),
                ),
                job_id,
            )
            for state in moves
        ),
    ]


def build(ledger: Ledger, count: int, days: float) -> None:
    """Fill the tables with `count` jobs of the `days` before the start, their newest
    event as the journal, by bulk inserts.
    """
    step = days * DAY_S / count
    for first in range(0, count, _BULK):
        by_table: dict[Table, list[dict[str, Any]]] = {}
        series: list[dict[str, Any]] = []
        for number in range(first, min(first + _BULK, count)):
            at = _START - (count - number) * step
            for table, key, values in _rows(number, at):
                name = "job_id" if table is Table.SPECS else "id"
                by_table.setdefault(table, []).append({name: key, **values})
                if table is Table.ATTEMPTS:
                    series += _points(key, values["job_id"], at)
        with ledger.engine.begin() as tx:
            for name, table in (
                (Table.JOBS, jobs),
                (Table.SPECS, specs),
                (Table.ATTEMPTS, attempts),
            ):
                tx.execute(table.insert(), by_table[name])
                import_rows(tx, name, by_table[name])
            tx.execute(points.insert(), series)
    with ledger.engine.begin() as tx:
        made = {"kind": "node.changed", "changes": [], "info": {}, "at": _START}
        tx.execute(events.insert().values(seq=1, **made))


def _points(attempt_id: str, job_id: str, at: float) -> list[dict[str, Any]]:
    row = {"attempt_id": attempt_id, "job_id": job_id, "step": 1, "value": 1.0}
    names = ("loss", "system/memory_mb")
    return [
        {**row, "name": name, "n": n, "at": at}
        for name in names
        for n in range(_POINTS)
    ]


class SimulatedInstance:
    """A core and its retention over a ledger, on a clock of its own."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.now = _START
        self.path = folder / "ledger.db"
        self.ledger = Ledger.open(self.path)
        self.core = Core(self.ledger, settings, lambda: self.now)
        blobs = BlobStore(Home(folder).blobs)
        stores = folder_stores(folder)
        submissions = Submissions(Home(folder), settings.jobs, stores)
        self.retention = Retention(
            self.core, Providers(), blobs, folder / "logs" / "attempts", submissions
        )
        self.number = 10_000_000
        self._slices_ms: list[float] = []
        self._run_slice = self.core.writer._maintain
        self.core.writer._maintain = self._timed_slice

    def _timed_slice(self, work: Callable[[sa.Connection], Any]) -> Any:
        began = time.perf_counter()
        try:
            return self._run_slice(work)
        finally:
            self._slices_ms.append((time.perf_counter() - began) * 1000)

    async def commit_jobs(self, count: int, at: float) -> float:
        """Write the life of so many jobs; returns how long the commit took, in ms."""
        found = [
            event
            for number in range(self.number, self.number + count)
            for event in job_events(number, at)
        ]
        self.number += count
        began = time.perf_counter()
        self.core.writer.add_events(found)
        await self.core.writer.committed()
        return (time.perf_counter() - began) * 1000

    async def day(self, daily: int, *, chatty: bool) -> DayReport:
        """A day's jobs; the last third of them beside a pass of retention. If that
        takes longer and `chatty` is set, small commits go on.
        """
        report = DayReport({})
        groups = max(daily // _GROUP, 3)
        step = DAY_S / groups
        for _ in range(groups * 2 // 3):
            self.now += step
            report.before_ms.append(await self.commit_jobs(_GROUP, self.now))
        began = time.perf_counter()
        passing = asyncio.create_task(self.retention.run())
        left = groups - groups * 2 // 3
        while not passing.done() or left > 0:
            if left > 0:
                self.now += step
                left -= 1
                report.beside_ms.append(await self.commit_jobs(_GROUP, self.now))
            elif chatty:
                report.beside_ms.append(await self.commit_jobs(1, self.now))
            await asyncio.sleep(0.01)
            report.largest_wal = max(report.largest_wal, self._wal())
        report.removed = dict(await passing)
        report.slices_ms = self._slices_ms
        self._slices_ms = []
        report.pass_s = time.perf_counter() - began
        report.largest_wal = max(report.largest_wal, self._wal())
        report.file_size = self.path.stat().st_size
        report.job_rows = sum(self.ledger.queries.job_counts().values())
        return report

    def _wal(self) -> int:
        return self.path.with_name("ledger.db-wal").stat().st_size


@contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """Watches this process; the function returns its largest resident MB so far."""
    process = psutil.Process()
    peak = [0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            peak[0] = max(peak[0], process.memory_info().rss)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: peak[0] / 1e6
    finally:
        ended.set()
        thread.join()


def settings_for(keep_jobs: int, keep_days: float, keep_events: int) -> Settings:
    """Settings that keep so much."""
    limits = {
        "jobs_days": keep_days,
        "jobs": keep_jobs,
        "keys_days": 1,
        "series_days": min(10, keep_days),
        "usage_days": min(3, keep_days),
        "events_days": min(10, keep_days),
    }
    return Settings.model_validate(
        {"retention": limits, "ledger": {"keep_events": keep_events}}
    )


async def live_through(
    instance: SimulatedInstance,
    days: int,
    daily: int,
    note: Callable[[DayReport], None] = lambda _: None,
    *,
    chatty: bool = True,
) -> list[DayReport]:
    """So many days; `note` is called after each."""
    instance.core.start()
    reports: list[DayReport] = []
    for _ in range(days):
        reports.append(await instance.day(daily, chatty=chatty))
        note(reports[-1])
    await instance.core.close()
    return reports


def summary(report: DayReport, peak_mb: float) -> str:
    """One line of JSON."""
    before = sorted(report.before_ms)
    beside = sorted(report.beside_ms)
    slices = sorted(report.slices_ms)
    return json.dumps(
        {
            "before_p50_ms": round(before[len(before) // 2], 1),
            "before_max_ms": round(before[-1], 1),
            "beside_p50_ms": round(beside[len(beside) // 2], 1),
            "beside_p99_ms": round(beside[len(beside) * 99 // 100], 1),
            "beside_max_ms": round(beside[-1], 1),
            "slices_p99_ms": round(slices[len(slices) * 99 // 100], 1),
            "slices_max_ms": round(slices[-1], 1),
            "pass_s": round(report.pass_s, 1),
            "peak_rss_mb": round(peak_mb),
            "wal_mb": round(report.largest_wal / 1e6, 1),
            "file_mb": round(report.file_size / 1e6),
            "jobs": report.job_rows,
            "removed": report.removed,
        }
    )


def main() -> None:
    """Build the ledger, and live through the days."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.history")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--daily", type=int, default=33_000)
    parser.add_argument("--ledger", type=Path, help="where to keep the ledger")
    options = parser.parse_args()
    keep_days = options.jobs / options.daily
    with tempfile.TemporaryDirectory(prefix="gpuyard-history-") as name:
        folder = options.ledger.parent if options.ledger else Path(name)
        settings = settings_for(options.jobs, keep_days, 5 * options.daily)
        folder.mkdir(exist_ok=True)
        instance = SimulatedInstance(folder, settings)
        if instance.ledger.queries.last_seq() == 0:
            began = time.monotonic()
            build(instance.ledger, options.jobs, keep_days)
            sys.stdout.write(f"built in {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
        with peak_memory() as peak:

            def note(report: DayReport) -> None:
                sys.stdout.write(summary(report, peak()) + "\n")
                sys.stdout.flush()

            asyncio.run(live_through(instance, options.days, options.daily, note))
        instance.ledger.close()


if __name__ == "__main__":
    main()
