"""The life of jobs without a controller: moves make events, and events fold into a view
and into plain tables.
"""

from collections import defaultdict
from decimal import Decimal
from typing import Any

import msgspec

from gpuyard.billing.meter import Price
from gpuyard.controller import owner_transitions, transitions
from gpuyard.controller.attempt_outcome import AttemptOutcome, Retry, wants_retry
from gpuyard.controller.intake import PreparedJob, Template
from gpuyard.domain.errors import IllegalMoveError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.shape import Placement
from gpuyard.domain.states import JobState
from gpuyard.ledger.retention import removal_event
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.observe import observe
from gpuyard.scheduler.view import View

PRICE = Price(Decimal("3.6"), "USD", "list", "GPU_SMALL")


def plain(event: Event) -> Event:
    """The event as it is read from the journal: what is encoded already, decoded."""
    changes = [
        Change(c.table, c.key, msgspec.json.decode(msgspec.json.encode(c.values)))
        for c in event.changes
    ]
    return msgspec.structs.replace(event, changes=tuple(changes))


class Life:
    """`jobs` and `attempts` are all there ever were; `tables` what a ledger would hold;
    `journal` what happened.
    """

    def __init__(self) -> None:
        self.view = View()
        self.tables: dict[Table, dict[str, dict[str, Any]]] = defaultdict(dict)
        self.journal: list[Event] = []
        self.jobs: dict[str, LiveJob] = {}
        self.attempts: dict[str, LiveAttempt] = {}
        self.now = 1000.0

    def record(self, event: Event) -> Event:
        """Let `event` have happened."""
        self.now += 1.0
        event = plain(event)
        self.journal.append(event)
        observe(self.view, event)
        for change in event.changes:
            rows = self.tables[change.table]
            if change.values is None:
                rows.pop(change.key, None)
            else:
                rows.setdefault(change.key, {}).update(change.values)
        self.jobs |= self.view.jobs
        self.attempts |= self.view.attempts
        return event

    def row(self, job_id: str) -> dict[str, Any]:
        """The job's row, as queries give it."""
        return {"id": job_id, **self.tables[Table.JOBS][job_id]}

    def live(self, job_id: str) -> list[str]:
        """The job's attempts that hold a booking."""
        return [
            i
            for i, row in self.tables[Table.ATTEMPTS].items()
            if row["job_id"] == job_id and row["state"] not in ("ended", "lost")
        ]

    # --- what can happen; each raises IllegalMoveError when it cannot ---

    def submit(self, **fields: Any) -> str:
        spec = JobSpec.model_validate({"command": ["true"], **fields})
        job = PreparedJob.of(Template.of(spec, ()), spec)
        self.record(transitions.submitted(job, self.now))
        return job.id

    def remove(self, job_id: str) -> None:
        """The time of a job is over: all its rows go."""
        state = JobState(self.tables[Table.JOBS].get(job_id, {}).get("state", "queued"))
        if not state.terminal:
            raise IllegalMoveError("it is not over")
        keys = {
            Table.JOBS: [job_id],
            Table.SPECS: [job_id],
            Table.ATTEMPTS: self._keys_of(Table.ATTEMPTS, job_id),
            Table.CHECKPOINTS: self._keys_of(Table.CHECKPOINTS, job_id),
        }
        self.record(removal_event(keys, self.now))
        del self.jobs[job_id]
        for attempt_id in keys[Table.ATTEMPTS]:
            self.attempts.pop(attempt_id, None)

    def _keys_of(self, table: Table, job_id: str) -> list[str]:
        return [k for k, row in self.tables[table].items() if row["job_id"] == job_id]

    def intend(self, job_id: str) -> str:
        job = self.jobs[job_id]
        attempt_id = new_id("attempt")
        place = Placement("node", (), 1.0, 0.0)
        self.record(
            transitions.intended(
                job,
                attempt_id,
                token=job.attempts + 1,
                epoch=1,
                provider="fake",
                reference=None,
                placements=[place],
                price=PRICE,
                now=self.now,
            )
        )
        return attempt_id

    def send(self, attempt_id: str) -> None:
        self.record(
            transitions.sent(
                self.attempts[attempt_id], f"ref-{attempt_id}", None, self.now
            )
        )

    def start(self, attempt_id: str) -> None:
        attempt = self.attempts[attempt_id]
        self.record(
            transitions.started(
                self.jobs[attempt.job_id], attempt, self.now, {"memory": "cgroup"}
            )
        )

    def stop(self, attempt_id: str, reason: str = "cancelled") -> None:
        self.record(transitions.ending(self.attempts[attempt_id], reason, self.now))

    def end(self, attempt_id: str, *, delay_s: float = 1.0, **outcome: Any) -> Event:
        """The attempt is over; a retry follows as the policy says."""
        attempt = self.attempts[attempt_id]
        job = self.jobs[attempt.job_id]
        ended = AttemptOutcome(self.now, **outcome)
        retry = Retry(self.now + delay_s if wants_retry(job, ended) else None)
        return self.record(transitions.attempt_ended(job, attempt, ended, retry))

    def settle(self, job_id: str, state: JobState = JobState.CANCELLED) -> None:
        self.record(
            transitions.job_ended(self.jobs[job_id], state, "because", self.now)
        )

    def resume(self, job_id: str) -> None:
        self.record(
            owner_transitions.resumed(self.row(job_id), transitions.NEWEST, self.now)
        )

    def lose_sight(self, job_id: str, *, lost: bool = True) -> None:
        move = transitions.node_silent if lost else transitions.node_back
        self.record(move(self.jobs[job_id], self.now))

    def save_checkpoint(self, attempt_id: str, **values: Any) -> str:
        checkpoint_id = new_id("ckpt")
        attempt = self.attempts[attempt_id]
        row = {
            "job_id": attempt.job_id,
            "attempt_id": attempt_id,
            "path": "ckpt.pt",
            "step": 1,
            "size": 1,
            "sha256": "0" * 64,
            "directory": False,
            "kept": True,
            "created_at": self.now,
            **values,
        }
        change = Change(Table.CHECKPOINTS, checkpoint_id, row)
        self.record(
            Event(EventKind.CHECKPOINT_SAVED, self.now, (change,), attempt.job_id)
        )
        return checkpoint_id

    def run(self, job_id: str) -> str:
        """From the queue to a running attempt."""
        attempt_id = self.intend(job_id)
        self.send(attempt_id)
        self.start(attempt_id)
        return attempt_id


def view_of(events: list[Event]) -> View:
    """The view as a fold from nothing."""
    view = View()
    for event in events:
        observe(view, event)
    return view
