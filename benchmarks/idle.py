"""An idle instance: from the submission until the process runs, told by the process
itself.
"""

import itertools
import json
import os
import time
from collections.abc import Iterator
from functools import partial
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
from benchmarks.figures import Figure, alternate, in_rounds
from tests.support.wait import wait_until

GROUP = "idle"
TARGETS = {"as-is": (2.5, 5), "4ms": (1.5, 2)}


def measure(scale: float) -> Iterator[Figure]:
    """p50 and p99 of each round, against the sum of what cannot be left out; all take
    turns.
    """
    rounds = scaled(3, scale)
    times = scaled(200, scale, 3)
    program = stamp()
    with scratch() as folder, serving() as (instance, web):
        rows = rows_of(job_events(rounds * times), folder)
        raw = raw_connection(folder / "raw.db")
        targets = (instance.work / f"{number}" for number in itertools.count())
        places = itertools.count()

        def floor() -> list[float]:
            place = next(places)
            row = sliced(rows, place, place + 1)
            return [
                timed(lambda: web.send("GET", "/healthz")),
                timed(lambda: raw_insert(raw, row)),
                spawned(program, folder / f"{place}"),
            ]

        starts, parts = alternate(
            rounds * times, lambda: submitted_ms(web, program, next(targets)), floor
        )
        raw.close()
    medians = [in_rounds(part, rounds) for part in zip(*parts, strict=True)]
    floors = [sum(part) * 1000 for part in zip(*medians, strict=True)]
    half, most = TARGETS[os.environ.get("GPUYARD_BENCH_DISK", "as-is")]
    for share, target in ((0.5, half), (0.99, most)):
        yield Figure(
            GROUP,
            f"submit until the process runs, p{share * 100:.0f}",
            in_rounds(starts, rounds, partial(percentile, share=share)),
            "ms",
            target,
            floors,
            "an empty request + a raw commit + a spawn",
        )


def submitted_ms(web: Web, program: str, target: Path) -> float:
    """From before the request until the process of the job ran; returns when the job is
    over.
    """
    job = {"name": "stamp", "command": [program, str(target)], "workdir": "/tmp"}
    body = json.dumps(job).encode()
    began = time.time()
    job_id = json.loads(web.send("POST", "/api/v1/jobs", body))["id"]
    # The server is left alone until the process has run.
    wait_until(
        lambda: target.exists() and target.read_text().endswith("\n"),
        what="the process to run",
    )
    wait_until(
        lambda: web.get(f"/api/v1/jobs/{job_id}")["state"] == "completed",
        what="the job to complete",
    )
    return (float(target.read_text()) - began) * 1000


def spawned(program: str, target: Path) -> float:
    """Seconds until a process that Python starts with nothing in between runs."""
    began = time.time()
    os.waitpid(
        os.posix_spawn(program, [program, str(target)], os.environ, setsid=True), 0
    )
    return float(target.read_text()) - began
