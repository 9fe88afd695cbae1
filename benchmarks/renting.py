"""Decisions about jobs that find no room here and are sent to one of many offers."""

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.bench import job_event
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.offers import Offer
from gpuyard.scheduler.decide import Start, decide
from gpuyard.scheduler.external_queues import ExternalQueue
from gpuyard.scheduler.observe import observe
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.view import View

NOW = 1_800_000_000.0
SHAPES = 20
# So many run at once; the oldest of more ends.
_RUNNING = 50


class Renting:
    """A view without nodes, whose jobs all go to the cloud that has `offers`."""

    def __init__(self, offers: Mapping[str, Offer]) -> None:
        self.view = View()
        self.view.add_external_queues(
            {"cloud": ExternalQueue("cloud", max_pending=1_000_000, offers=offers)}
        )
        self.policy = Policy()
        self.now = NOW
        self.submitted = 0
        self.running: list[str] = []

    def decision_ms(self) -> float:
        """A job comes: the time of the decision that rents for it. Then it starts and
        an older one ends, so the next decision knows more of two offers.
        """
        self.now += 1
        kind = self.submitted % SHAPES
        self.submitted += 1
        needs = {"gpus": 1, "memory_gb": 8 + kind}
        body = {"name": "train", "command": ["true"], "resources": needs}
        observe(self.view, job_event(body))
        began = time.perf_counter()
        actions = decide(self.view, self.now, self.policy).actions
        taken = time.perf_counter() - began
        (start,) = (action for action in actions if isinstance(action, Start))
        self._run(start)
        return taken * 1000

    def _run(self, start: Start) -> None:
        attempt_id = f"attempt_{start.job_id}"
        attempt: dict[str, Any] = {
            "job_id": start.job_id,
            "number": 1,
            "state": "intended",
            "token": 1,
            "epoch": 1,
            "provider": "cloud",
            "placements": [share.to_row() for share in start.placements],
            "created_at": self.now,
            "started_at": None,
        }
        assigned = {"state": "assigned", "attempts": 1, "attempt_id": attempt_id}
        running = {"state": "running", "started_at": self.now}
        self._observe(EventKind.ATTEMPT_INTENDED, start.job_id, attempt, assigned)
        self._observe(EventKind.ATTEMPT_STARTED, start.job_id, running, running)
        self.running.append(start.job_id)
        if len(self.running) > _RUNNING:
            oldest = self.running.pop(0)
            ended = {"state": "ended", "ended_at": self.now}
            completed = {"state": "completed", "ended_at": self.now}
            self._observe(EventKind.JOB_COMPLETED, oldest, ended, completed)

    def _observe(
        self,
        kind: EventKind,
        job_id: str,
        attempt: Mapping[str, Any],
        job: Mapping[str, Any],
    ) -> None:
        changes = (
            Change(Table.ATTEMPTS, f"attempt_{job_id}", dict(attempt)),
            Change(Table.JOBS, job_id, dict(job)),
        )
        observe(self.view, Event(kind, self.now, changes))
