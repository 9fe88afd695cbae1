"""A week of a lab in virtual time, decided by the real scheduler: 20 people of two
organisations share 16 GPUs, two reservations are booked ahead, and one budget runs out.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuyard.domain.events import Change, Table
from gpuyard.domain.states import JobState
from gpuyard.scheduler.actions import Preempt, Start
from gpuyard.scheduler.budgets import BudgetTable, LiveBudget
from gpuyard.scheduler.decide import decide
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.parties import ProjectShare, ShareRules
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.usage import Usage
from tests.unit.scheduler.world import World

HOUR = 3600.0
DAY = 24 * HOUR
DAYS = 7
NODES = ("one", "two")
GPUS_PER_NODE = 8
GPUS = GPUS_PER_NODE * len(NODES)
ORGANISATIONS = {"physics": 2.0, "letters": 1.0}
PROJECTS = {
    "vision": ProjectShare(2.0, organisation="physics"),
    "sound": ProjectShare(1.0, organisation="physics"),
    "text": ProjectShare(1.0, organisation="letters"),
    "speech": ProjectShare(1.0, organisation="letters"),
}
USERS_PER_PROJECT = 5
BOOKINGS = (
    # Who, how many GPUs, and from which hour of the week to which.
    ("speech", 4, 1 * 24 + 9, 1 * 24 + 18),
    ("text", 8, 3 * 24 + 8, 4 * 24 + 8),
)
POOR = "sound"
BUDGET_GPU_HOURS = 200.0
NEARLY_ALL = 0.99
"""The part of the budget of which `ran_out_at` tells when it was spent."""
SAVES_S = 60.0
"""How long a preempted job saves its work."""
_SECOND = 1_000_000  # a GPU second costs one unit of money, in millionths


@dataclass
class Hour:
    """What one hour was like: GPU hours by project, and those due by shares among all
    who wanted any.
    """

    used: Counter[str] = field(default_factory=Counter[str])
    due: Counter[str] = field(default_factory=Counter[str])


class LabWeek:
    """`hours` is what each hour was like. `began` has for each reservation how many
    seconds after its begin its holder's jobs had all of its GPUs. `started` has when
    each job first started, `spent` what each project has used, in GPU seconds, and
    `ran_out_at` when nearly all of the budget was spent.
    """

    def __init__(self, seed: int = 7) -> None:
        rules = ShareRules(
            half_life_s=2 * DAY, projects=PROJECTS, organisations=ORGANISATIONS
        )
        self.policy = Policy(order=QueueOrder.FAIR, end_margin_s=SAVES_S)
        self.world = World(self.policy, Usage(rules, by_share=True))
        self.begins_at = self.world.now
        self._dice = random.Random(seed)
        self._set_budget()
        for name in NODES:
            self.world.node(name, cpus=128.0, memory_gb=512.0, gpus=GPUS_PER_NODE)
        self.bookings = [self._book(*booking) for booking in BOOKINGS]
        self.hours = [Hour() for _ in range(DAYS * 24)]
        self.spent = Counter[str]()
        self.started: dict[str, float] = {}
        self.project_of: dict[str, str] = {}
        self.began: dict[str, float] = {}
        self.ran_out_at: float | None = None
        self._left: dict[str, float] = {}
        self._since: dict[str, float] = {}
        # What comes next: time, number, what, and of whom.
        self._coming: list[tuple[float, int, str, str]] = []
        self._numbers = 0

    def _set_budget(self) -> None:
        view = self.world.view
        view.budgets = BudgetTable(
            reserve_of=lambda job, _: int(job.width * (job.timeout_s or 0.0) * _SECOND),
            worth=lambda _, cost: int(float(cost.cost) * _SECOND),
        )
        amount = int(BUDGET_GPU_HOURS * HOUR * _SECOND)
        view.budgets.by_name[POOR] = LiveBudget(POOR, amount, "EUR", project=POOR)

    def _book(self, project: str, gpus: int, begin: int, end: int) -> str:
        hours = self.begins_at + begin * HOUR, self.begins_at + end * HOUR
        return self.world.reserve(*hours, project=project, gpus=gpus)

    # --- people ---

    def _demand(self) -> None:
        """The bursts of everybody, and the jobs for which GPUs were reserved."""
        for project in PROJECTS:
            for number in range(USERS_PER_PROJECT):
                user = f"{project}-{number}"
                at = self._dice.uniform(0.0, 12 * HOUR)
                while at < DAYS * DAY:
                    self._later(at, "burst", f"{project} {user}")
                    at += self._dice.expovariate(1 / (18 * HOUR))
        for project, gpus, begin, _ in BOOKINGS:
            self._later(begin * HOUR - 600.0, "reserved", f"{project} {gpus}")
            self._later(begin * HOUR, "begin", project)

    def _later(self, after_s: float, what: str, whose: str) -> None:
        self._numbers += 1
        entry = self.begins_at + after_s, self._numbers, what, whose
        heapq.heappush(self._coming, entry)

    def _burst(self, project: str, user: str) -> None:
        """Somebody submits some like jobs at once, as for a search of parameters."""
        seconds = HOUR * self._dice.choice([0.5, 1.0, 2.0, 4.0])
        gpus = self._dice.choice([1, 1, 1, 2])
        for _ in range(self._dice.randint(4, 12)):
            runs_s = seconds * self._dice.uniform(0.7, 1.0)
            self._submit(project, user, gpus, runs_s, seconds)

    def _submit(
        self, project: str, user: str, gpus: int, runs_s: float, timeout_s: float
    ) -> None:
        job_id = self.world.submit(
            owner=user,
            project=project,
            gpus=gpus,
            cpus=1.0,
            timeout_s=timeout_s,
            preemptible=self._dice.random() < 0.3,
        )
        self._left[job_id] = runs_s
        self.project_of[job_id] = project

    # --- time ---

    def run(self) -> "LabWeek":
        """Let the week pass."""
        self._demand()
        ends_at = self.begins_at + DAYS * DAY
        while self._coming:
            at, _, what, whose = heapq.heappop(self._coming)
            self._pass_until(min(at, ends_at))
            if at >= ends_at:
                break
            self._happen(what, whose)
            self._decide()
            self._look_at_bookings()
        return self

    def _pass_until(self, at: float) -> None:
        """Nothing changes until then: count what runs, hour by hour."""
        now = self.world.now
        used, due = self._rates()
        while now < at:
            index = int((now - self.begins_at) // HOUR)
            until = min(at, self.begins_at + (index + 1) * HOUR)
            for project in PROJECTS:
                self.hours[index].used[project] += used[project] * (until - now) / HOUR
                self.hours[index].due[project] += due[project] * (until - now) / HOUR
            now = until
        self.world.now = at

    def _rates(self) -> tuple[Counter[str], Mapping[str, float]]:
        """How many GPUs each project uses now, and how many are due to it."""
        used = Counter[str]()
        wanted = Counter[str]()
        view = self.world.view
        for job in view.jobs.values():
            if job.state is JobState.RUNNING:
                used[job.project or ""] += job.width
            if job.state is JobState.RUNNING or job.id in view.queue:
                wanted[job.project or ""] += job.width
        return used, entitlement(wanted)

    def _happen(self, what: str, whose: str) -> None:
        if what == "burst":
            self._burst(*whose.split())
        elif what == "reserved":
            project, gpus = whose.split()
            for _ in range(int(gpus)):
                self._submit(project, f"{project}-0", 1, 6 * HOUR, 8 * HOUR)
        elif what == "end" and self._ends_now(whose):
            self._end(whose, "completed")
        elif what == "saved":
            self._end(whose, "queued")

    def _ends_now(self, job_id: str) -> bool:
        since = self._since.get(job_id)
        return since is not None and since + self._left[job_id] <= self.world.now + 1e-6

    def _end(self, job_id: str, state: str) -> None:
        """The job's attempt is over."""
        world = self.world
        job = world.view.jobs[job_id]
        ran_s = world.now - self._since.pop(job_id)
        self._left[job_id] -= ran_s
        cost = job.width * ran_s
        self.spent[job.project or ""] += cost
        is_spent = self.spent[POOR] >= NEARLY_ALL * BUDGET_GPU_HOURS * HOUR
        if is_spent and self.ran_out_at is None:
            self.ran_out_at = world.now
        ended = {
            "state": "ended",
            "started_at": world.now - ran_s,
            "ended_at": world.now,
            "cost": str(cost),
        }
        attempt_id = f"attempt_{job_id}"
        world.record(Change(Table.ATTEMPTS, attempt_id, ended))
        world.set_job(job_id, state=state)

    def _decide(self) -> None:
        """Decide until nothing more is to be done."""
        while actions := decide(self.world.view, self.world.now, self.policy).actions:
            for action in actions:
                if isinstance(action, Preempt):
                    self.world.preempt(action)
                    after_s = self.world.now - self.begins_at + SAVES_S
                    self._later(after_s, "saved", action.job_id)
                    continue
                assert isinstance(action, Start)
                self._start(action)

    def _start(self, start: Start) -> None:
        world = self.world
        world.intend(start)
        world.run(start.job_id)
        self.started.setdefault(start.job_id, world.now)
        self._since[start.job_id] = world.now
        after_s = world.now - self.begins_at + self._left[start.job_id]
        self._later(after_s, "end", start.job_id)

    def _look_at_bookings(self) -> None:
        """Note when the holder of a reservation has all of its GPUs."""
        view = self.world.view
        for booked in view.advance.current(self.world.now):
            if booked.id in self.began:
                continue
            held = {
                uuid
                for job in self._running(booked.project or "")
                for uuid in self._gpus_of(job)
            }
            if held >= booked.uuids() and len(booked.uuids()) == booked.gpus:
                self.began[booked.id] = self.world.now - booked.begins_at

    def _running(self, project: str) -> Iterator[LiveJob]:
        for job in self.world.view.jobs.values():
            if job.project == project and job.state is JobState.RUNNING:
                yield job

    def _gpus_of(self, job: LiveJob) -> Iterator[str]:
        for share in self.world.view.attempts[f"attempt_{job.id}"].placements:
            yield from share.gpu_uuids

    # --- what came of it ---

    def part(self, project: str) -> float:
        """The part of all use that was the project's."""
        every = sum(sum(hour.used.values()) for hour in self.hours)
        return sum(hour.used[project] for hour in self.hours) / every

    def part_due(self, project: str) -> float:
        """The part that was due to it."""
        every = sum(sum(hour.due.values()) for hour in self.hours)
        return sum(hour.due[project] for hour in self.hours) / every


def entitlement(wanted: Mapping[str, float]) -> dict[str, float]:
    """How many GPUs are due to each project that wants so many: by shares among the
    organisations, then within each; what one does not want goes to the others.
    """
    members: dict[str, dict[str, float]] = {name: {} for name in ORGANISATIONS}
    for project, share in PROJECTS.items():
        members[share.organisation][project] = float(wanted.get(project, 0.0))
    in_all = {name: sum(of.values()) for name, of in members.items()}
    due: dict[str, float] = {}
    for name, gpus in _divided(GPUS, in_all, ORGANISATIONS).items():
        shares = {project: PROJECTS[project].shares for project in members[name]}
        due |= _divided(gpus, members[name], shares)
    return due


def _divided(
    gpus: float, wanted: Mapping[str, float], shares: Mapping[str, float]
) -> dict[str, float]:
    """So many GPUs by shares, to nobody more than they want."""
    due = dict.fromkeys(wanted, 0.0)
    # Lists, because the order of a set differs from run to run, and so would the sums.
    open_ = [name for name, amount in wanted.items() if amount > 0]
    left = gpus
    while open_ and left > 1e-9:
        for_one = left / sum(shares[name] for name in open_)
        step = min(
            for_one, *((wanted[name] - due[name]) / shares[name] for name in open_)
        )
        for name in open_:
            due[name] += step * shares[name]
        left -= step * sum(shares[name] for name in open_)
        open_ = [name for name in open_ if wanted[name] - due[name] > 1e-9]
        if math.isclose(step, for_one):
            break
    return due
