"""Simulation: plays a trace of jobs through the scheduler in virtual time.

Gangs may span nodes, so the cluster is one node with all GPUs. Jobs are preemptible; a
preempted job later continues where it stopped and loses `preempt_cost_s`. Only the
simulation knows durations; the scheduler learns each when the job completes.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.reasons import Reason
from gpuyard.domain.shape import Shape
from gpuyard.domain.statistics import percentile
from gpuyard.scheduler.actions import Preempt, Start
from gpuyard.scheduler.decide import decide
from gpuyard.scheduler.observe import observe
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.usage import Usage
from gpuyard.scheduler.view import View

NODE = "pool"


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace: when it arrives, how many GPUs it holds at once, how long it
    runs, and whose it is. Times are in seconds.
    """

    id: str
    arrival_s: float
    gpus: int
    duration_s: float
    job_type: str
    project: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class TraceResult:
    """The result of a trace. `times`: seconds from arrival to end of each job that
    ended; `makespan_s`: from the first arrival to the last end.
    """

    policy: str
    times: tuple[float, ...]
    makespan_s: float
    unfinished: int
    preemptions: int

    def summary(self) -> dict[str, Any]:
        """As JSON-able data."""
        times = sorted(self.times)
        jobs = {
            "count": len(times),
            **{f"p{percent}_s": percentile(times, percent) for percent in (50, 95, 99)},
            "mean_s": math.fsum(times) / len(times) if times else 0.0,
            "max_s": times[-1] if times else 0.0,
        }
        return {
            "policy": self.policy,
            "jobs": jobs,
            "makespan_s": self.makespan_s,
            "unfinished": self.unfinished,
            "preemptions": self.preemptions,
        }


def simulate(trace: Sequence[TraceJob], gpus: int, policy: Policy) -> TraceResult:
    """Play `trace` on a cluster of `gpus` GPUs. A job that needs more never starts."""
    return _Simulation(trace, gpus, policy).run()


@dataclass(slots=True)
class _Run:
    """The running attempt of a job."""

    attempt_id: str
    started_at: float


class _Simulation:
    def __init__(self, trace: Sequence[TraceJob], gpus: int, policy: Policy) -> None:
        self._policy = policy
        self._view = View(usage=Usage(by_share=policy.order is QueueOrder.FAIR))
        self._now = 0.0
        self._arrivals = sorted(trace, key=lambda job: job.arrival_s)
        # Ids sort by arrival, as those of submitted jobs do.
        self._ids = {
            f"job_{number:09d}": job for number, job in enumerate(self._arrivals)
        }
        self._left = {job_id: job.duration_s for job_id, job in self._ids.items()}
        self._runs: dict[str, _Run] = {}
        self._ends: list[tuple[float, str, str]] = []
        self._times: list[float] = []
        self._attempts = self._preemptions = 0
        self._add_cluster(gpus)

    def run(self) -> TraceResult:
        """Play until no job runs or arrives any more."""
        arriving = list(reversed(self._ids.items()))
        began = self._now = self._arrivals[0].arrival_s if self._arrivals else 0.0
        ended = began
        wake_at = math.inf
        while True:
            self._drop_stale_ends()
            next_arrival = arriving[-1][1].arrival_s if arriving else math.inf
            next_end = self._ends[0][0] if self._ends else math.inf
            next_event = min(next_arrival, next_end)
            if next_event == math.inf:
                # Nothing runs or arrives, so jobs that still wait never start.
                break
            self._now = max(self._now, min(next_event, wake_at))
            while arriving and arriving[-1][1].arrival_s <= self._now:
                self._arrive(*arriving.pop())
            while self._ends and self._ends[0][0] <= self._now:
                ended = self._now
                self._complete(heapq.heappop(self._ends)[1])
                self._drop_stale_ends()
            wake_at = self._decide()
        return TraceResult(
            self._policy.order.value,
            tuple(self._times),
            ended - began,
            len(self._left),
            self._preemptions,
        )

    def _decide(self) -> float:
        """Decide and act until there are no actions; returns when to decide again."""
        while True:
            decision = decide(self._view, self._now, self._policy)
            if not decision.actions:
                return math.inf if decision.wake_at is None else decision.wake_at
            for action in decision.actions:
                if isinstance(action, Start):
                    self._start(action)
                elif isinstance(action, Preempt):
                    self._preempt(action)

    def _drop_stale_ends(self) -> None:
        """Drop ends of preempted attempts from the top of the heap."""
        while self._ends and not self._is_end(*self._ends[0]):
            heapq.heappop(self._ends)

    def _is_end(self, _at: float, job_id: str, attempt_id: str) -> bool:
        return job_id in self._runs and self._runs[job_id].attempt_id == attempt_id

    # --- events ---

    def _add_cluster(self, gpus: int) -> None:
        node = {
            "name": NODE,
            "provider": "simulation",
            "state": "online",
            "reason": None,
            "cpus": 0.0,
            "memory_gb": 0.0,
        }
        cards = [
            Change(
                Table.GPUS,
                f"GPU-{index:05d}",
                {"node_id": NODE, "index": index, "memory_mb": 81920, "state": "idle"},
            )
            for index in range(gpus)
        ]
        self._observe(EventKind.NODE_CHANGED, *cards, Change(Table.NODES, NODE, node))

    def _arrive(self, job_id: str, job: TraceJob) -> None:
        row = {
            "state": "queued",
            "priority": 3,
            "shape": Shape(cpus=0.0, gpus=job.gpus).to_row(),
            "preemptible": True,
            "created_at": job.arrival_s,
            "name": job.job_type,
            "labels": {"type": job.job_type},
            "project": job.project or None,
            "owner": job.user or None,
        }
        self._observe(EventKind.JOB_SUBMITTED, Change(Table.JOBS, job_id, row))

    def _start(self, action: Start) -> None:
        job_id = action.job_id
        self._attempts += 1
        attempt_id = f"attempt_{self._attempts:09d}"
        placements = [share.to_row() for share in action.placements]
        row = {
            "job_id": job_id,
            "state": "running",
            "token": 1,
            "placements": placements,
            "created_at": self._now,
            "started_at": self._now,
        }
        self._runs[job_id] = _Run(attempt_id, self._now)
        heapq.heappush(self._ends, (self._now + self._left[job_id], job_id, attempt_id))
        changed = {"state": "running", "attempt_id": attempt_id}
        self._observe(
            EventKind.ATTEMPT_STARTED,
            Change(Table.ATTEMPTS, attempt_id, row),
            Change(Table.JOBS, job_id, changed),
        )

    def _preempt(self, action: Preempt) -> None:
        """End the attempt at once; the cost of the preemption is added to the rest of
        the job.
        """
        self._preemptions += 1
        run = self._runs.pop(action.job_id)
        self._left[action.job_id] -= self._now - run.started_at
        self._left[action.job_id] += self._policy.preempt_cost_s
        self._end(run, action.job_id, Reason.PREEMPTED, "queued")

    def _complete(self, job_id: str) -> None:
        run = self._runs.pop(job_id)
        del self._left[job_id]
        self._times.append(self._now - self._ids[job_id].arrival_s)
        self._end(run, job_id, None, "completed")

    def _end(self, run: _Run, job_id: str, reason: str | None, state: str) -> None:
        attempt = {
            "state": "ended",
            "started_at": run.started_at,
            "ended_at": self._now,
            "reason": reason,
        }
        self._observe(
            EventKind.JOB_COMPLETED,
            Change(Table.ATTEMPTS, run.attempt_id, attempt),
            Change(Table.JOBS, job_id, {"state": state, "attempt_id": None}),
        )

    def _observe(self, kind: EventKind, *changes: Change) -> None:
        observe(self._view, Event(kind, self._now, changes))
