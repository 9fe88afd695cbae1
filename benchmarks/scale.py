"""A thousand nodes with eight GPUs each on one server: a long queue, thousands of
running jobs, and ends all the time.

The nodes are simulated: a process of its own (`benchmarks/simulated_nodes.py`) speaks
for their agents, which reach the real server as agents of other hosts do. They start
nothing; they say what agents say: heartbeats, starts, ends, and the usage of each
running attempt.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Self

import psutil

from benchmarks.bench import ROOT, Web, percentile, scaled, serving, timed
from benchmarks.figures import Figure
from tests.support.instance import TestInstance
from tests.support.wait import wait_until

GROUP = "scale"
GPUS = 8
ENDS_PER_S = 200
MB = 1e6
# So many jobs go into one request, as a script that submits a sweep would send them.
_PER_REQUEST = 5000
# Of ten jobs, so many ask for so many GPUs: about five thousand fill eight thousand.
_GPUS_OF_TEN = [1, 1, 1, 1, 1, 1, 2, 2, 2, 4]


def measure(scale: float) -> Iterator[Figure]:
    """Nodes join, jobs arrive, jobs end at a steady pace, then at a rising one."""
    nodes = scaled(1000, scale, 3)
    queued = scaled(100_000, scale, 30)
    with serving() as (instance, web), SimulatedNodes(instance, nodes) as simulated:
        where = f"{nodes:,} nodes"
        joined_s = simulated.join()
        yield Figure(GROUP, f"{where} with {GPUS} GPUs have joined", [joined_s], "s")
        filled_s = fill(web, simulated, queued, nodes * GPUS)
        running = simulated.running()
        yield Figure(GROUP, f"{queued:,} jobs have arrived", [filled_s], "s")
        yield Figure(GROUP, "attempts that run then", [running], "")
        seconds = max(30 * scale, 0.5)
        yield from steady(
            instance, web, simulated, max(1, int(ENDS_PER_S * scale)), seconds
        )
        yield from limit(web, simulated, scale)


def fill(web: Web, nodes: "SimulatedNodes", queued: int, gpus: int) -> float:
    """Submit until the GPUs are taken and so many jobs wait; the seconds it took."""
    mean = sum(_GPUS_OF_TEN) / len(_GPUS_OF_TEN)
    count = queued + int(gpus / mean)
    bodies = [job(number) for number in range(count)]
    began = time.perf_counter()
    for start in range(0, count, _PER_REQUEST):
        part = json.dumps(bodies[start : start + _PER_REQUEST]).encode()
        web.send("POST", "/api/v1/jobs", part)
    taken = time.perf_counter() - began
    wait_until(lambda: nodes.gpus_taken() >= 0.98 * gpus, 120, "the GPUs to be taken")
    return taken


def job(number: int) -> dict[str, Any]:
    """A job of a mixed queue: ten projects, a hundred shapes."""
    return {
        "name": f"train-{number % 50}",
        "command": ["/bin/true"],
        "workdir": "/tmp",
        "project": f"team-{number % 10}",
        "resources": {
            "gpus": _GPUS_OF_TEN[number % 10],
            "memory_gb": 1 + number // 10 % 10,
        },
    }


def steady(
    instance: TestInstance,
    web: Web,
    nodes: "SimulatedNodes",
    ends_per_s: int,
    seconds: float,
) -> Iterator[Figure]:
    """Jobs end at a pace, and others take their places."""
    server = psutil.Process(instance.pid("server"))
    before_s = sum(server.cpu_times()[:2])
    nodes.begin(ends_per_s)
    began = time.perf_counter()
    requests: list[float] = []
    while (spent := time.perf_counter() - began) < seconds:
        requests.append(timed(lambda: web.send("GET", "/healthz")) * 1000)
        time.sleep(0.02)
    seen = nodes.finish()
    used_s = sum(server.cpu_times()[:2]) - before_s
    pace = f"{ends_per_s} ends a second"
    yield Figure(
        GROUP,
        f"{pace}: ends",
        [seen["ends"] / spent],
        "/s",
        0.95 * ends_per_s,
        least=True,
    )
    yield Figure(GROUP, f"{pace}: the server, of a core", [100 * used_s / spent], "%")
    yield Figure(
        GROUP,
        f"{pace}: end until the next start there, p50",
        [seen["next_p50_ms"]],
        "ms",
    )
    yield Figure(
        GROUP,
        f"{pace}: end until the next start there, p99",
        [seen["next_p99_ms"]],
        "ms",
    )
    yield Figure(
        GROUP,
        f"{pace}: end until the event stream tells it, p99",
        [seen["event_p99_ms"]],
        "ms",
    )
    yield Figure(
        GROUP, f"{pace}: an empty request, p99", [percentile(requests, 0.99)], "ms"
    )
    yield Figure(
        GROUP, f"{pace}: from the nodes", [seen["received_mb"] / spent], "MB/s"
    )
    yield Figure(GROUP, f"{pace}: to the nodes", [seen["sent_mb"] / spent], "MB/s")
    yield Figure(
        GROUP, f"{pace}: the server, resident", [server.memory_info().rss / MB], "MB"
    )


def limit(web: Web, nodes: "SimulatedNodes", scale: float) -> Iterator[Figure]:
    """The pace doubles until the server does not keep up: the ends that it took."""
    pace = max(4, int(2 * ENDS_PER_S * scale))
    seconds = max(10 * scale, 3.0)
    most = 0.0
    while True:
        before = _completed(web)
        nodes.begin(pace)
        time.sleep(seconds)
        nodes.finish()
        taken = (_completed(web) - before) / seconds
        most = max(most, taken)
        if taken < 0.9 * pace or pace >= 16 * ENDS_PER_S * scale:
            break
        pace *= 2
    yield Figure(GROUP, "ends a second at most", [most], "/s")


def _completed(web: Web) -> int:
    counts = web.get("/api/v1/server")["jobs"]
    return int(counts.get("completed", 0))


class SimulatedNodes:
    """The process that speaks for the agents."""

    def __init__(self, instance: TestInstance, count: int) -> None:
        words = [str(instance.home.root), str(count), str(GPUS)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.simulated_nodes", *words],
            cwd=ROOT,
            env=instance.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def join(self) -> float:
        """Every node joins; the seconds it took."""
        return self._ask("join")["seconds"]

    def running(self) -> float:
        """How many attempts run."""
        return self._ask("look")["attempts"]

    def gpus_taken(self) -> float:
        """How many GPUs they have."""
        return self._ask("look")["gpus"]

    def begin(self, ends_per_s: float) -> None:
        """End so many attempts a second from now on."""
        self._ask("begin", ends_per_s)

    def finish(self) -> dict[str, float]:
        """End no more; what was seen since `begin`."""
        return self._ask("finish")

    def _ask(self, *order: object) -> dict[str, float]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())
