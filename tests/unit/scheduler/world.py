"""A view driven by events as the controller would drive it: what is decided is made
firm, attempts start and end.
"""

from copy import deepcopy

from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import JobState
from gpuyard.scheduler.deadlines import Told
from gpuyard.scheduler.decide import Fail, Preempt, Start, decide
from gpuyard.scheduler.explanation import Why
from gpuyard.scheduler.lateness import look
from gpuyard.scheduler.learning import Learning
from gpuyard.scheduler.observe import observe
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.ranking import Ranking
from gpuyard.scheduler.usage import Usage
from gpuyard.scheduler.view import View
from gpuyard.scheduler.why import why

L4 = ("NVIDIA L4", 23034, "8.9")
T4 = ("Tesla T4", 15360, "7.5")
A100_80GB = ("NVIDIA A100-SXM4-80GB", 81920, "8.0")
UNKNOWN_24GB = ("Some Card", 24 * 1024, "9.0")


class World:
    """`now` is a clock that tests set; `journal` holds every event observed."""

    def __init__(
        self, policy: Policy | None = None, usage: Usage | None = None
    ) -> None:
        self.view = View(usage=usage or Usage())
        self.policy = policy or Policy(end_margin_s=0.0)
        self.now = 1000.0
        self.journal: list[Event] = []
        self.jobs = 0
        self.reservations = 0

    def record(
        self, *changes: Change, kind: EventKind = EventKind.NODE_CHANGED
    ) -> None:
        event = Event(kind, self.now, changes)
        self.journal.append(event)
        observe(self.view, event)

    def node(
        self,
        node_id: str,
        cpus: float = 16,
        memory_gb: float = 64,
        gpus: int = 0,
        card=L4,
        provider="local",
    ):
        row = {
            "id": node_id,
            "name": node_id,
            "provider": provider,
            "state": "online",
            "reason": None,
            "cpus": cpus,
            "memory_gb": memory_gb,
        }
        self.record(Change(Table.NODES, node_id, row))
        for index in range(gpus):
            self.gpu(node_id, index, card)
        return node_id

    def gpu(self, node_id: str, index: int, card=L4) -> str:
        name, memory_mb, capability = card
        uuid = f"GPU-{node_id}-{index}"
        row = {
            "uuid": uuid,
            "node_id": node_id,
            "index": index,
            "name": name,
            "memory_mb": memory_mb,
            "compute_capability": capability,
            "state": "idle",
            "problem": None,
        }
        self.record(Change(Table.GPUS, uuid, row))
        return uuid

    def set_node(self, node_id: str, state: str, reason: str | None = None) -> None:
        self.record(Change(Table.NODES, node_id, {"state": state, "reason": reason}))

    def set_gpu(self, uuid: str, **columns) -> None:
        self.record(Change(Table.GPUS, uuid, columns))

    def trust(
        self,
        place: str,
        until: float | None = None,
        score: float | None = None,
        reason="wrong answers",
    ) -> None:
        """This was found out about the place, which is in quarantine until then."""
        row = {
            "score": score,
            "quarantined_until": until,
            "reason": reason,
            "updated_at": self.now,
        }
        self.record(Change(Table.TRUST, place, row), kind=EventKind.TRUST_CHANGED)

    def forget(self, place: str) -> None:
        """Nothing is known of the place any more."""
        row = {
            "score": None,
            "quarantined_until": None,
            "reason": None,
            "updated_at": None,
        }
        self.record(Change(Table.TRUST, place, row), kind=EventKind.TRUST_CHANGED)

    def submit(
        self,
        priority=3,
        timeout_s=None,
        depends_on=(),
        not_before=None,
        array_id=None,
        project="lab",
        owner=None,
        preemptible=False,
        deadline=None,
        estimated_s=None,
        kind="command",
        **shape,
    ) -> str:
        self.jobs += 1
        job_id = f"job_{self.jobs:05d}"
        row = {
            "id": job_id,
            "kind": kind,
            "state": "queued",
            "priority": priority,
            "shape": Shape(**shape).to_row(),
            "created_at": self.now,
            "not_before": not_before,
            "timeout_s": timeout_s,
            "estimated_duration_s": estimated_s,
            "deadline": deadline,
            "project": project,
            "owner": owner,
            "preemptible": preemptible,
            "depends_on": list(depends_on),
            "array_id": array_id,
            "reason": None,
        }
        self.set_job(job_id, **row)
        return job_id

    def array(
        self, array_id: str, at_most: int | None, total: int | None = None
    ) -> str:
        """An array of which so many tasks may run at once. A new one has `total`."""
        row = {"at_most": at_most}
        if total is not None:
            row["total"] = total
        self.record(Change(Table.ARRAYS, array_id, row))
        return array_id

    def reserve(
        self,
        begins_at: float,
        ends_at: float,
        project: str | None = "lab",
        user: str | None = None,
        gpus: int | None = 1,
        gpu_class: str | None = None,
        node: str | None = None,
    ) -> str:
        """Reserve GPUs from one time to another."""
        self.reservations += 1
        reservation_id = f"reservation_{self.reservations:03d}"
        row = {
            "project": project,
            "owner": user,
            "gpus": gpus,
            "gpu_class": gpu_class,
            "node": node,
            "begins_at": begins_at,
            "ends_at": ends_at,
        }
        self.record(Change(Table.RESERVATIONS, reservation_id, row))
        return reservation_id

    def unreserve(self, reservation_id: str) -> None:
        self.record(Change(Table.RESERVATIONS, reservation_id, None))

    def set_job(self, job_id: str, **columns) -> None:
        self.record(Change(Table.JOBS, job_id, columns), kind=EventKind.JOB_SUBMITTED)

    def look_at_deadlines(self) -> dict[str, Told]:
        """What is to be told of deadlines now, by job; it is told from now on."""
        told: dict[str, Told] = {}
        for job_id in self.view.deadlines.take_due(self.now, 1_000_000):
            found = look(self.view, self.view.jobs[job_id], self.now)
            if found is not None:
                told[job_id] = found
                self.set_job(job_id, deadline_told=int(found))
        return told

    def decide(self, run: bool = True) -> dict[str, tuple[Placement, ...]]:
        """Decide, make it firm and, if `run`, let it run at once.

        The placements of what started, by job.
        """
        started = {}
        for action in decide(self.view, self.now, self.policy).actions:
            if isinstance(action, Fail):
                self.set_job(action.job_id, state="failed", reason=action.reason)
            elif isinstance(action, Preempt):
                self.preempt(action)
            else:
                self.intend(action)
                started[action.job_id] = action.placements
                if run:
                    self.run(action.job_id)
        return started

    def decide_for(self, job_id: str) -> bool:
        """Decide, and tell whether the job has started."""
        return job_id in self.decide()

    def wake_at(self) -> float | None:
        """Decide, make it firm, and say when the scheduler wants to be asked again."""
        self.decide()
        return decide(self.view, self.now, self.policy).wake_at

    def intend(self, start: Start) -> None:
        row = {
            "id": f"attempt_{start.job_id}",
            "job_id": start.job_id,
            "state": "intended",
            "token": len(self.journal),
            "placements": [share.to_row() for share in start.placements],
            "created_at": self.now,
            "started_at": None,
            "provider": start.placements[0].offer.partition("/")[0] or "local",
        }
        assigned = Change(Table.JOBS, start.job_id, {"state": "assigned"})
        attempt = Change(Table.ATTEMPTS, f"attempt_{start.job_id}", row)
        self.record(assigned, attempt, kind=EventKind.ATTEMPT_INTENDED)

    def preempt(self, action: Preempt) -> None:
        """The attempt is asked to save its work and to leave."""
        row = {"state": "ending", "reason": "preempted"}
        self.record(Change(Table.ATTEMPTS, action.attempt_id, row))

    def run(self, job_id: str) -> None:
        self.record(
            Change(Table.JOBS, job_id, {"state": "running"}),
            Change(
                Table.ATTEMPTS,
                f"attempt_{job_id}",
                {"state": "running", "started_at": self.now},
            ),
            kind=EventKind.ATTEMPT_STARTED,
        )

    def end(self, job_id: str, state: str = "completed", **columns) -> None:
        """The job's attempt is over and the job is now `state`; `queued` is a retry."""
        self.record(
            Change(Table.ATTEMPTS, f"attempt_{job_id}", {"state": "ended"}),
            Change(Table.JOBS, job_id, {"state": state, **columns}),
            kind=EventKind.JOB_COMPLETED,
        )

    def why(self, job_id: str) -> Why:
        answer = why(self.view, job_id, self.now, self.policy)
        assert answer is not None
        return answer

    def end_at_once(self, job_id: str) -> None:
        """The job completes now, and its node says when."""
        ended = {"state": "ended", "started_at": self.now, "ended_at": self.now}
        self.record(Change(Table.ATTEMPTS, f"attempt_{job_id}", ended))
        self.set_job(job_id, state="completed")

    def running(self) -> list[str]:
        return sorted(
            job_id
            for job_id, job in self.view.jobs.items()
            if job.state is JobState.RUNNING
        )

    def next_timeout(self) -> float | None:
        """When the first running attempt reaches its timeout."""
        ends = [
            attempt.started_at + self.view.jobs[attempt.job_id].timeout_s
            for attempt in self.view.attempts.values()
        ]
        return min(ends, default=None)

    def end_timed_out(self) -> None:
        """End every attempt whose timeout is `now`."""
        for attempt in list(self.view.attempts.values()):
            if (
                attempt.started_at + self.view.jobs[attempt.job_id].timeout_s
                <= self.now
            ):
                self.end(attempt.job_id)


def snapshot(view: View) -> dict:
    """A copy of all that a view means, without the order in which it came to be."""
    return deepcopy(
        {
            "jobs": view.jobs,
            "attempts": view.attempts,
            "nodes": {
                key: (node, list(node.devices), node.free)
                for key, node in view.nodes.items()
            },
            "devices": view.devices,
            "queued": {job.id for job in view.queue},
            "order": [
                job.id
                for job in view.queue.heads(
                    Ranking(Policy(ageing_s=1.0), Learning()), 0.0
                )
            ],
            "delayed": set(view.delayed),
            "held": set(view.held),
            "arrays": {
                key: (array.at_most, array.admitted, set(array.waiting))
                for key, array in view.arrays.items()
            },
            "dependents": view.dependents,
            "doomed": view.doomed,
            "tentative": view.tentative,
            "ended": view.ended,
            "reservations": set(view.advance.by_id),
        }
    )
