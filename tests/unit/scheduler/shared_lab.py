"""A lab whose people share GPUs, in virtual time: what each has used, whatever they
do.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable

from gpuyard.domain.events import Change, Table
from gpuyard.domain.states import JobState
from gpuyard.scheduler.decide import Start, decide
from gpuyard.scheduler.parties import Quotas, ShareRules
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.usage import Usage
from tests.unit.scheduler.world import World

HOUR = 3600.0
DAY = 24 * HOUR
FAIR = Policy(order=QueueOrder.FAIR, ageing_s=math.inf, end_margin_s=0.0)


class Lab:
    """`used` has the GPU seconds of each user, `waited` how long each job waited."""

    def __init__(
        self,
        gpus: int,
        rules: ShareRules | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.world = World(FAIR, Usage(rules, quotas, by_share=True))
        self.world.node("box", cpus=100.0 * gpus, memory_gb=1000.0 * gpus, gpus=gpus)
        self.used = Counter[str]()
        self.waited: dict[str, float] = {}
        self._left: dict[str, float] = {}
        self._began: dict[str, float] = {}
        self._ends: list[tuple[float, str]] = []

    @property
    def now(self) -> float:
        return self.world.now

    def submit(
        self, user: str, seconds: float, project: str | None = None, **shape
    ) -> str:
        job_id = self.world.submit(
            owner=user, project=project, **{"gpus": 1, "cpus": 0.0} | shape
        )
        self._left[job_id] = seconds
        return job_id

    def waiting(self, user: str) -> int:
        return sum(job.owner == user for job in self.world.view.queue)

    def running(self, user: str) -> list[str]:
        jobs = self.world.view.jobs.values()
        return [
            job.id
            for job in jobs
            if job.owner == user and job.state is JobState.RUNNING
        ]

    def idle_gpus(self) -> int:
        return len(self.world.view.nodes["box"].free.devices)

    def decide(self) -> list[str]:
        """Start what can start; the ids."""
        started = []
        while True:
            actions = decide(self.world.view, self.now, FAIR).actions
            if not actions:
                return started
            for action in actions:
                assert isinstance(action, Start)
                self.world.intend(action)
                self.world.run(action.job_id)
                job = self.world.view.jobs[action.job_id]
                self.waited[job.id] = self.now - job.created_at
                self._began[job.id] = self.now
                heapq.heappush(self._ends, (self.now + self._left[job.id], job.id))
                started.append(job.id)

    def end(self, job_id: str, state: str = "completed") -> float:
        """The job ends now; what it would still have run, in seconds."""
        job = self.world.view.jobs[job_id]
        began = self._began.pop(job_id)
        self.used[job.owner] += (self.now - began) * job.width
        ended = {"state": "ended", "started_at": began, "ended_at": self.now}
        self.world.record(Change(Table.ATTEMPTS, f"attempt_{job_id}", ended))
        self.world.set_job(job_id, state=state)
        return self._left.pop(job_id) - (self.now - began)

    def run(self, seconds: float, each_time: Callable[[], None] = lambda: None) -> None:
        """Let time pass; `each_time` something ends, people react."""
        until = self.now + seconds
        each_time()
        self.decide()
        while self._ends and self._ends[0][0] <= until:
            at, job_id = heapq.heappop(self._ends)
            self.world.now = at
            if job_id in self._began and self._began[job_id] + self._left[job_id] <= at:
                self.end(job_id)
            each_time()
            self.decide()
        self.world.now = until

    def part(self, user: str) -> float:
        """The part of all use that was the user's."""
        return self.used[user] / self.used.total()
