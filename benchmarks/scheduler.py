"""The scheduler's brain with a long queue on a large cluster, fed with events as the
controller feeds it.
"""

import gc
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

import psutil

from benchmarks.bench import percentile, scaled, timed
from benchmarks.figures import Figure, alternate
from gpuyard.config.garbage import keep_what_is_loaded
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.domain.shape import Shape
from gpuyard.scheduler.decide import Start, decide, undo
from gpuyard.scheduler.observe import observe
from gpuyard.scheduler.parties import ProjectShare, ShareRules
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.usage import Usage
from gpuyard.scheduler.view import View

GROUP = "scheduler"
NOW = 1_800_000_000.0
PER_NODE = 8
SHAPES = 1000
USERS = 1000
PROJECTS = 100


def measure(scale: float) -> Iterator[Figure]:
    """Fill a cluster, then a queue behind it; then jobs end and come, one event at a
    time.
    """
    jobs = scaled(100_000, scale, 100)
    gpus = scaled(10_000, scale, 2 * PER_NODE)
    cluster = Cluster(random.Random(7))
    cluster.add_nodes(-(-gpus // PER_NODE))
    cluster.fill()
    before = _rss_mb()
    for _ in range(jobs):
        cluster.submit()
    grown = _rss_mb() - before
    yield Figure(GROUP, f"memory of {jobs:,} queued jobs", [grown], "MB", 60)
    cluster.settle()
    # As a server does: else the figures are those of Python's garbage collector.
    keep_what_is_loaded()
    rounds = scaled(5, scale)
    events = scaled(600, scale, 25)
    where = f"{jobs:,} queued, {gpus:,} GPUs"
    taken, looks = alternate(
        rounds,
        lambda: [cluster.one_event_ms() for _ in range(events)],
        cluster.look_ms,
    )
    for share, target in ((0.5, None), (0.99, 5)):
        yield Figure(
            GROUP,
            f"decision after one event, {where}, p{share * 100:.0f}",
            [percentile(values, share) for values in taken],
            "ms",
            target,
            looks,
            "one look at each live job",
            absolute=True,
        )
    yield _fair(jobs, gpus, rounds, events)
    yield _reserved(jobs, gpus, rounds, events)
    yield _fair_and_reserved(jobs, gpus, rounds, events)
    yield _begin(jobs, gpus, rounds)
    ranked, ordered = alternate(rounds, cluster.rerank_ms, cluster.sort_ms)
    yield Figure(
        GROUP,
        f"full re-rank, {where}",
        ranked,
        "ms",
        50,
        ordered,
        "the live jobs sorted by priority and age",
        absolute=True,
    )


def _fair(jobs: int, gpus: int, rounds: int, events: int) -> Figure:
    """The same queue under the policy `fair`, of 1,000 users in 100 projects."""
    cluster = Cluster(random.Random(7), shares())
    cluster.add_nodes(-(-gpus // PER_NODE))
    name = (
        f"decision after one event by fair shares of {USERS:,} users,"
        f" {jobs:,} queued, {gpus:,} GPUs, p99"
    )
    return _decisions(cluster, name, jobs, rounds, events)


def _reserved(jobs: int, gpus: int, rounds: int, events: int) -> Figure:
    """The same queue while two projects of ten have reserved a tenth of the GPUs each,
    one of them for later. Their jobs are among the queued ones.
    """
    cluster = Cluster(random.Random(7))
    cluster.add_nodes(-(-gpus // PER_NODE))
    cluster.reserve("team-0", gpus // 10, begins_in_s=0.0)
    cluster.reserve("team-1", gpus // 10, begins_in_s=3600.0)
    name = (
        "decision after one event with two reservations whose holders have jobs,"
        f" {jobs:,} queued, {gpus:,} GPUs, p99"
    )
    return _decisions(cluster, name, jobs, rounds, events)


def _fair_and_reserved(jobs: int, gpus: int, rounds: int, events: int) -> Figure:
    """All of it together, and every second job has a deadline within a week."""
    cluster = Cluster(random.Random(7), shares(), has_deadlines=True)
    cluster.add_nodes(-(-gpus // PER_NODE))
    cluster.reserve("project-0", gpus // 10, begins_in_s=0.0)
    cluster.reserve("project-1", gpus // 10, begins_in_s=3600.0)
    name = (
        f"decision after one event by fair shares of {USERS:,} users, with two"
        f" reservations and a deadline for every second job, {jobs:,} queued,"
        f" {gpus:,} GPUs, p99"
    )
    return _decisions(cluster, name, jobs, rounds, events)


def _begin(jobs: int, gpus: int, rounds: int) -> Figure:
    """In each round, a reservation of a tenth of the GPUs begins, half of which are lent
    to preemptible jobs. The slowest decision of the minute counts.
    """
    cluster = Cluster(random.Random(7), lends=True)
    cluster.add_nodes(-(-gpus // PER_NODE))
    _fill_up(cluster, jobs)
    projects = iter(f"team-{number}" for number in range(rounds))
    taken, looks = alternate(
        rounds, lambda: cluster.begin_ms(next(projects), gpus // 10), cluster.look_ms
    )
    return Figure(
        GROUP,
        f"slowest decision when a reservation begins, {jobs:,} queued, {gpus:,} GPUs",
        taken,
        "ms",
        100,
        looks,
        "one look at each live job",
        absolute=True,
    )


def _fill_up(cluster: "Cluster", jobs: int) -> None:
    """Fill a cluster and its queue."""
    cluster.fill()
    for _ in range(jobs):
        cluster.submit()
    cluster.settle_all()
    gc.collect()


def _decisions(
    cluster: "Cluster", name: str, jobs: int, rounds: int, events: int
) -> Figure:
    """Fill a cluster and its queue, and time the decisions after single events."""
    _fill_up(cluster, jobs)
    taken, looks = alternate(
        rounds,
        lambda: [cluster.one_event_ms() for _ in range(events)],
        cluster.look_ms,
    )
    return Figure(
        GROUP,
        name,
        [percentile(values, 0.99) for values in taken],
        "ms",
        6,
        looks,
        "one look at each live job",
        absolute=True,
    )


def shares() -> Usage:
    """Shares of 1 to 3 for 100 projects, and for the users in them."""
    users = {f"user-{number}": 1.0 + number % 3 for number in range(USERS)}
    projects = {
        f"project-{number}": ProjectShare(1.0 + number % 3, users)
        for number in range(PROJECTS)
    }
    return Usage(ShareRules(projects=projects), by_share=True)


def _rss_mb() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6


class Cluster:
    """A view and the running jobs on it; `policy` is the default one, or `fair` if
    `usage` has shares. With `has_deadlines`, every second job has one; if it `lends`,
    every second one is preemptible.
    """

    def __init__(
        self,
        dice: random.Random,
        usage: Usage | None = None,
        *,
        has_deadlines: bool = False,
        lends: bool = False,
    ) -> None:
        self._lends = lends
        self._has_deadlines = has_deadlines
        self.view = View(usage=usage or Usage())
        self.policy = Policy(
            order=QueueOrder.FAIR if usage else QueueOrder.GITTINS,
        )
        self.dice = dice
        self.now = NOW
        self.running: list[str] = []
        self.reranked = 0

    def add_nodes(self, count: int) -> None:
        """Empty nodes of 8 GPUs and 64 cores."""
        for number in range(count):
            node_id = f"node_{number:05d}"
            row = {
                "name": node_id,
                "provider": "agents",
                "state": "online",
                "reason": None,
                "cpus": 64,
                "memory_gb": 512,
            }
            gpus = [
                Change(
                    Table.GPUS,
                    f"{node_id}-gpu-{index}",
                    {
                        "node_id": node_id,
                        "index": index,
                        "name": "NVIDIA L4",
                        "memory_mb": 23034,
                        "compute_capability": "8.9",
                        "state": "idle",
                        "problem": None,
                    },
                )
                for index in range(PER_NODE)
            ]
            self._observe(
                EventKind.NODE_CHANGED, Change(Table.NODES, node_id, row), *gpus
            )

    def reserve(self, project: str, gpus: int, begins_in_s: float) -> None:
        """Reserve so many GPUs for the project, for a day."""
        begins_at = self.now + begins_in_s
        row = {
            "begins_at": begins_at,
            "ends_at": begins_at + 86_400.0,
            "project": project,
            "owner": None,
            "gpus": gpus,
            "gpu_class": None,
            "node": None,
        }
        self._observe(
            EventKind.RESERVATION_ADDED,
            Change(Table.RESERVATIONS, new_id("reservation"), row),
        )

    def fill(self) -> None:
        """Start jobs until nothing more fits."""
        for _ in range(2 * PER_NODE):
            for _ in self.view.nodes:
                self.submit()
            if self.settle() == 0:
                return

    def submit(self) -> float:
        """Queue a job of one of many shapes; the seconds of observing it."""
        kind = self.dice.randrange(SHAPES)
        shape = Shape(
            cpus=1 + kind % 8,
            memory_gb=8 + kind // 8 % 32,
            gpus=(1, 1, 1, 2, 2, 4, 8)[kind % 7],
        )
        row: dict[str, Any] = {
            "state": "queued",
            "priority": 1 + self.dice.randrange(5),
            "shape": shape.to_row(),
            "created_at": self.now,
            "not_before": None,
            "timeout_s": 600.0 + self.dice.randrange(36_000),
            "estimated_duration_s": None,
            "project": f"team-{kind % 10}",
            **self._whose(),
            "preemptible": self._lends and self.dice.random() < 0.5,
            "depends_on": [],
            "name": f"train-{kind}",
            "reason": None,
            "retry_count": 0,
            "failures": 0,
            "attempts": 0,
            **self._deadline(),
        }
        return self._observe(
            EventKind.JOB_SUBMITTED, Change(Table.JOBS, new_id("job"), row)
        )

    def _deadline(self) -> dict[str, float]:
        """A moment within a week, for every second job."""
        if not self._has_deadlines or self.dice.random() < 0.5:
            return {}
        return {"deadline": self.now + self.dice.randrange(3600, 7 * 86_400)}

    def _whose(self) -> dict[str, str]:
        """The owner of a job, and his project, where that counts."""
        if not self.view.usage.by_share:
            return {}
        user = self.dice.randrange(USERS)
        return {"owner": f"user-{user}", "project": f"project-{user % PROJECTS}"}

    def settle_all(self) -> None:
        """Decide until everything is ranked and nothing more starts."""
        while self.settle() or self.view.queue.has_outdated:
            pass

    def settle(self) -> int:
        """Decide and make it firm; how many started."""
        started = [
            action
            for action in decide(self.view, self.now, self.policy).actions
            if isinstance(action, Start)
        ]
        for action in started:
            self._run(action)
        return len(started)

    def one_event_ms(self) -> float:
        """A job ends, or one comes; the time from that event to the decision, which is
        then made firm.
        """
        self.now += 1
        if self.running and self.dice.random() < 0.5:
            job_id = self.running.pop(self.dice.randrange(len(self.running)))
            attempt = Change(
                Table.ATTEMPTS,
                f"attempt_{job_id}",
                {"state": "ended", "ended_at": self.now},
            )
            job = Change(
                Table.JOBS, job_id, {"state": "completed", "ended_at": self.now}
            )
            folded = self._observe(EventKind.JOB_COMPLETED, attempt, job)
        else:
            folded = self.submit()
        began = time.perf_counter()
        actions = decide(self.view, self.now, self.policy).actions
        taken = time.perf_counter() - began
        for action in actions:
            if isinstance(action, Start):
                self._run(action)
            else:
                undo(self.view, action)
        return (folded + taken) * 1000

    def begin_ms(self, project: str, gpus: int) -> float:
        """A reservation for the next minute is made; the slowest decision until some
        seconds after its begin.
        """
        self.reserve(project, gpus, begins_in_s=60.0)
        return max(self.one_event_ms() for _ in range(70))

    def rerank_ms(self) -> float:
        """A decision under a policy that orders every job anew."""
        self.reranked += 1
        policy = replace(
            self.policy, ageing_s=self.policy.ageing_s / (self.reranked + 1)
        )
        began = time.perf_counter()
        actions = decide(self.view, self.now, policy).actions
        taken = time.perf_counter() - began
        for action in actions:
            undo(self.view, action)
        return taken * 1000

    def look_ms(self) -> float:
        """One look at each live job, as a decision without an index would need."""
        jobs = self.view.jobs.values()
        return timed(lambda: sum(job.priority for job in jobs)) * 1000

    def sort_ms(self) -> float:
        """Python's own sort of the live jobs."""
        jobs = list(self.view.jobs.values())
        return timed(lambda: jobs.sort(key=attrgetter("priority", "created_at"))) * 1000

    def _run(self, start: Start) -> None:
        attempt_id = f"attempt_{start.job_id}"
        row = {
            "job_id": start.job_id,
            "number": 1,
            "state": "intended",
            "token": 1,
            "epoch": 1,
            "provider": "agents",
            "placements": [share.to_row() for share in start.placements],
            "created_at": self.now,
            "started_at": None,
        }
        assigned = {"state": "assigned", "attempts": 1, "attempt_id": attempt_id}
        running = {"state": "running", "started_at": self.now}
        changes = (
            (EventKind.ATTEMPT_INTENDED, row, assigned),
            (EventKind.ATTEMPT_STARTED, running, running),
        )
        for kind, attempt, job in changes:
            self._observe(
                kind,
                Change(Table.ATTEMPTS, attempt_id, attempt),
                Change(Table.JOBS, start.job_id, job),
            )
        self.running.append(start.job_id)

    def _observe(self, kind: EventKind, *changes: Change) -> float:
        event = Event(kind, self.now, changes)
        return timed(lambda: observe(self.view, event))
