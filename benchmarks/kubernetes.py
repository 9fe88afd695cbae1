"""Kubernetes: how many requests jobs cost its API server, and how long they take there.

The cluster is the one of the tests: a server, controllers, and containers that are
processes. It needs root. The floor makes the same Jobs in the cluster by hand.
"""

import itertools
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import EventListener, Web, scaled, start_server
from benchmarks.figures import Figure, alternate
from tests.support.instance import make_instance
from tests.support.kubernetes import Cluster, Node
from tests.support.kubernetes.objects import Object, holds
from tests.support.wait import wait_until

GROUP = "kubernetes"
IMAGE = "python:3.11-slim"
_IDLE_S = 30.0
_SETTINGS = """
[providers.kubernetes]
kubeconfig = "{kubeconfig}"
namespace = "default"
max_pending = 200
"""


def measure(scale: float) -> Iterator[Figure]:
    """One job at a time, many at once, and nothing at all."""
    nodes = [Node("cpu-1", cpus=256, memory_gb=1024, pods=300)]
    with Cluster(nodes) as cluster, _in_front_of(cluster) as (web, events):
        yield from _one_job(web, events, cluster, scaled(5, scale))
        yield _many_jobs(web, events, cluster, scaled(3, scale), scaled(200, scale, 5))
        yield _idle(cluster, scaled(4, scale))


@contextmanager
def _in_front_of(cluster: Cluster) -> Generator[tuple[Web, EventListener]]:
    """An instance that knows the cluster; it has answered."""
    with tempfile.TemporaryDirectory() as folder, make_instance() as instance:
        instance.home.create()
        kubeconfig = cluster.kubeconfig(Path(folder) / "kubeconfig")
        instance.home.settings.write_text(_SETTINGS.format(kubeconfig=kubeconfig))
        start_server(instance)
        web = Web(instance.address())
        wait_until(lambda: web.get("/api/v1/offers")["items"], what="offers")
        events = EventListener(instance.address())
        try:
            yield web, events
        finally:
            events.close()
            web.close()
            instance.kill("keeper", "agent", "server")


def _one_job(
    web: Web, events: EventListener, cluster: Cluster, rounds: int
) -> Iterator[Figure]:
    _run(web, events, 1, 0.0)  # the watches and offers are there from now on
    requests: list[float] = []
    for _ in range(rounds):
        before = _requests(cluster)
        _run(web, events, 1, 1.0)
        _settle(cluster)
        requests.append(_requests(cluster) - before)
    yield Figure(GROUP, "requests of a job of 1 s", requests, "requests", 8)
    values, floors = alternate(
        rounds,
        lambda: _run(web, events, 1, 0.5),
        lambda: _run_by_hand(cluster, 1, 0.5),
    )
    yield Figure(
        GROUP,
        "a job of 0.5 s, from its submission until its end is told",
        values,
        "s",
        1,
        floors,
        "the Job alone",
        absolute=True,
    )


def _many_jobs(
    web: Web, events: EventListener, cluster: Cluster, rounds: int, jobs: int
) -> Figure:
    values, floors = alternate(
        rounds,
        lambda: _run(web, events, jobs, 1.0),
        lambda: _run_by_hand(cluster, jobs, 1.0),
    )
    return Figure(
        GROUP,
        f"{jobs} jobs of 1 s at once",
        values,
        "s",
        15,
        floors,
        "the Jobs alone",
        absolute=True,
    )


def _idle(cluster: Cluster, rounds: int) -> Figure:
    counts: list[float] = []
    for _ in range(rounds):
        before = cluster.faults.count()
        time.sleep(_IDLE_S)
        counts.append(cluster.faults.count() - before)
    return Figure(GROUP, "requests in an idle half minute", counts, "requests", 2)


def _requests(cluster: Cluster) -> int:
    """Those that jobs cost; watches and the list of nodes come anyway."""
    faults = cluster.faults
    return faults.count() - faults.count(verb="watch") - faults.count("nodes")


def _settle(cluster: Cluster) -> None:
    """Wait until ended jobs are removed."""
    wait_until(lambda: not cluster.objects("jobs"), what="the Jobs to go")


def _run(web: Web, events: EventListener, jobs: int, seconds: float) -> float:
    """Seconds from the submission until all have ended."""
    job = {
        "name": "sleep",
        "command": ["sleep", str(seconds)],
        "image": IMAGE,
        "provider": "kubernetes",
    }
    began = time.perf_counter()
    web.submit([job] * jobs)
    events.wait_for_ends(jobs)
    return time.perf_counter() - began


_names = (f"by-hand-{number}" for number in itertools.count())


def _run_by_hand(cluster: Cluster, jobs: int, seconds: float) -> float:
    """The same in the cluster without gpuyard."""
    _settle(cluster)
    names = [next(_names) for _ in range(jobs)]
    began = time.perf_counter()
    for name in names:
        cluster.create(_job(name, seconds))
    wait_until(lambda: all(map(_is_complete, cluster.objects("jobs"))), 300, "the Jobs")
    taken = time.perf_counter() - began
    for name in names:
        cluster.delete("jobs", name)
    _settle(cluster)
    return taken


def _is_complete(job: Object) -> bool:
    return holds(job, "Complete")


def _job(name: str, seconds: float) -> Object:
    container = {"name": "job", "image": IMAGE, "command": ["sleep", str(seconds)]}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": {"spec": pod}},
    }
