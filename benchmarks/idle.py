"""An idle instance: from the submission until the process runs, told by the process
itself.
"""

import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import (
    Web,
    job_events,
    percentile,
    raw_connection,
    raw_insert,
    rows_of,
    scaled,
    scratch,
    serving,
    sliced,
    stamp,
    timed,
)
from benchmarks.figures import Figure
from tests.support.wait import wait_until

GROUP = "idle"
TARGETS = {"as-is": (2.5, 5), "4ms": (1.5, 2)}


def measure(scale: float) -> Iterator[Figure]:
    """p50 and p99 of one distribution, against the sum of what cannot be left out; all
    take turns.
    """
    times = scaled(300, scale, 5)
    program = stamp()
    with scratch() as folder, serving() as (instance, web):
        rows = rows_of(job_events(times), folder)
        raw = raw_connection(folder / "raw.db")
        starts: list[float] = []
        floors: dict[str, list[float]] = {"request": [], "commit": [], "spawn": []}
        for number in range(times):
            target = instance.work / f"{number}"
            starts.append(submitted(web, program, target))
            floors["request"].append(timed(lambda: web.send("GET", "/healthz")))
            floors["commit"].append(
                timed(lambda n=number: raw_insert(raw, sliced(rows, n, n + 1)))
            )
            floors["spawn"].append(spawned(program, folder / f"{number}"))
        raw.close()
    floor = sum(statistics.median(values) for values in floors.values()) * 1000
    half, most = TARGETS[os.environ.get("GPUYARD_BENCH_DISK", "as-is")]
    name = "an empty request + a raw commit + a spawn"
    yield Figure(
        GROUP,
        "submit until the process runs, p50",
        statistics.median(starts) * 1000,
        "ms",
        half,
        floor,
        name,
    )
    yield Figure(
        GROUP,
        "submit until the process runs, p99",
        percentile(starts, 0.99) * 1000,
        "ms",
        most,
        floor,
        name,
    )


def submitted(web: Web, program: str, target: Path) -> float:
    """Seconds from before the request until the process of the job ran; returns when
    the job is over.
    """
    job = {"name": "stamp", "command": [program, str(target)], "workdir": "/tmp"}
    body = json.dumps(job).encode()
    began = time.time()
    job_id = json.loads(web.send("POST", "/api/v1/jobs", body))["id"]
    wait_until(
        lambda: web.get(f"/api/v1/jobs/{job_id}")["state"] == "completed",
        30,
        "the job to complete",
    )
    return float(target.read_text()) - began


def spawned(program: str, target: Path) -> float:
    """Seconds until a process that Python starts with nothing in between runs."""
    began = time.time()
    os.waitpid(
        os.posix_spawn(program, [program, str(target)], os.environ, setsid=True), 0
    )
    return float(target.read_text()) - began
