"""The server idle, under a thousand commands at once, and with a long queue: memory,
lists, its way back after kill.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.authorised import authorised
from benchmarks.bench import (
    Web,
    scaled,
    serving,
    stamp,
    start_server,
    submit_blocker,
    timed,
    wait_until_running,
    whole_node,
)
from benchmarks.commands import GPUYARD
from benchmarks.figures import Figure, alternate, in_rounds
from gpuyard.client.connection import running_server
from tests.support.instance import TestInstance
from tests.support.wait import wait_until

GROUP = "server"
MB = 1e6
READ_QUEUE = """
import sqlite3, sys
ledger = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
ledger.execute("SELECT * FROM jobs WHERE state = 'queued'").fetchall()
"""


def measure(scale: float) -> Iterator[Figure]:
    """First an idle server, then the same one under more and more."""
    with serving() as (instance, web):
        yield from idle(instance, max(10 * scale, 0.5))
        yield from commands(instance, scaled(1000, scale, 10))
        yield from queue(instance, web, scaled(100_000, scale, 200), scale)


def idle(instance: TestInstance, seconds: float) -> Iterator[Figure]:
    """Resident memory and the share of one core, of the server and of its node's agent
    and keeper.
    """
    names = ("server", "agent", "keeper")
    processes = {
        name: psutil.Process(pid) for name in names if (pid := instance.pid(name))
    }
    before = {name: _cpu_s(process) for name, process in processes.items()}
    began = time.monotonic()
    time.sleep(seconds)
    spent = time.monotonic() - began
    for name, process in processes.items():
        target = {"server": (100.0, 0.5)}.get(name, (None, None))
        yield Figure(
            GROUP,
            f"idle {name}, resident",
            [process.memory_info().rss / MB],
            "MB",
            target[0],
        )
        share = 100 * (_cpu_s(process) - before[name]) / spent
        yield Figure(GROUP, f"idle {name}, of a core", [share], "%", target[1])


def _cpu_s(process: psutil.Process) -> float:
    """Seconds of processor time, to the nanosecond: ticks of 10 ms are too coarse for
    an idle process.
    """
    tasks = Path(f"/proc/{process.pid}/task")
    return (
        sum(
            int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()
        )
        / 1e9
    )


def commands(instance: TestInstance, count: int) -> Iterator[Figure]:
    """`gpuyard jobs`, so many at the same moment."""
    _reset_peak(instance)
    command = [GPUYARD, "jobs"]
    started = [
        subprocess.Popen(
            command,
            env=instance.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(count)
    ]
    # Some say on stderr that they wait: so many interpreters take over ten seconds.
    failed = sum(process.wait() != 0 for process in started)
    yield Figure(GROUP, f"errors of {count:,} `gpuyard jobs` at once", [failed], "", 0)
    yield Figure(
        GROUP, "the server's most memory meanwhile", [_peak_mb(instance)], "MB", 300
    )


def queue(
    instance: TestInstance, web: Web, count: int, scale: float
) -> Iterator[Figure]:
    """Many jobs in one request; what they weigh; lists among them; and kills -9 among
    them.
    """
    go = instance.work / "go"
    wait_until_running(web, submit_blocker(instance, web, go))
    cpus = whole_node(web)
    jobs = [
        {
            "name": f"train-{n % 50}",
            "command": ["/bin/sleep", "20", str(n % 20)],
            "workdir": str(instance.work),
            "project": f"team-{n % 10}",
            "resources": {"cpus": cpus, "memory_gb": 0.1 + n % 20 / 100},
        }
        for n in range(count)
    ]
    body = json.dumps(jobs).encode()
    before = _rss_mb(instance)
    _reset_peak(instance)
    web.send("POST", "/api/v1/jobs", body)
    # What arrived is let go of in the moments after the answer.
    settled = min(_settle(instance) for _ in range(5))
    grown = settled - before
    yield Figure(GROUP, f"memory over empty, {count:,} queued", [grown], "MB", 60)
    peak = _peak_mb(instance)
    yield Figure(GROUP, "peak memory while they arrive", [peak], "MB", 200)
    rounds = scaled(5, scale)
    yield from lists(web, rounds, scaled(20, scale, 2))
    yield from authorised(GROUP, instance, web, rounds, scaled(100, scale, 5))
    yield restarts(instance, go, scaled(3, scale))


def lists(web: Web, rounds: int, reads: int) -> Iterator[Figure]:
    """Listing and filtering, a page of 100 each, in turns with an empty request."""
    for words in (
        "",
        "?state=queued",
        "?name=train-7",
        "?project=team-3&state=queued",
        "?state=running",
    ):
        values, floors = alternate(
            rounds * reads,
            lambda w=words: timed(lambda: web.send("GET", f"/api/v1/jobs{w}")) * 1000,
            lambda: timed(lambda: web.send("GET", "/healthz")) * 1000,
        )
        yield Figure(
            GROUP,
            f"GET /jobs{words}, p50",
            in_rounds(values, rounds),
            "ms",
            15,
            in_rounds(floors, rounds),
            "an empty request",
            absolute=True,
        )


def restarts(instance: TestInstance, go: Path, rounds: int) -> Figure:
    """The floor loads what no server can do without: Python, and the rows of the
    queue.
    """
    blockers = [go, *(instance.work / f"go-{number}" for number in range(rounds))]
    ends = iter(blockers)
    following = iter(blockers[1:])
    bare = [sys.executable, "-c", READ_QUEUE, str(instance.home.ledger)]
    values, floors = alternate(
        rounds,
        lambda: restart(instance, next(ends), next(following)),
        lambda: timed(lambda: subprocess.run(bare, check=True)),
    )
    return Figure(
        GROUP,
        "from kill -9 to scheduling again",
        values,
        "s",
        2,
        floors,
        "bare Python that reads the rows of the queue",
        absolute=True,
    )


def restart(instance: TestInstance, go: Path, following: Path) -> float:
    """Seconds from kill -9 until the next job's process runs.

    What blocks the node until `go` is there ends while no server runs; after the next
    job another one blocks it until `following` is there.
    """
    target = go.with_name(f"ran-{go.name}")
    web = Web(instance.address())
    web.submit(
        {
            "name": "next",
            "command": [stamp(), str(target)],
            "workdir": "/tmp",
            "priority": 5,
            "resources": {"cpus": whole_node(web)},
        }
    )
    blocker = submit_blocker(instance, web, following)
    killed = time.time()
    os.kill(instance.pid("server") or 0, 9)
    go.touch()
    wait_until(lambda: not _listening(instance), what="the server to be gone")
    start_server(instance)
    # The server is left alone until the process has run.
    wait_until(
        lambda: target.exists() and target.read_text().endswith("\n"),
        120,
        "the next job to run",
    )
    # It schedules before it serves.
    address = wait_until(
        lambda: running_server(instance.home), what="the server to serve"
    )
    wait_until_running(Web(address), blocker)
    return float(target.read_text()) - killed


def _listening(instance: TestInstance) -> bool:
    pid = instance.pid("server")
    return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def _settle(instance: TestInstance) -> float:
    time.sleep(0.2)
    return _rss_mb(instance)


def _rss_mb(instance: TestInstance) -> float:
    return psutil.Process(instance.pid("server")).memory_info().rss / MB


def _reset_peak(instance: TestInstance) -> None:
    Path(f"/proc/{instance.pid('server')}/clear_refs").write_text("5")


def _peak_mb(instance: TestInstance) -> float:
    status = Path(f"/proc/{instance.pid('server')}/status").read_text()
    return int(status.split("VmHWM:", 1)[1].split()[0]) * 1024 / MB
