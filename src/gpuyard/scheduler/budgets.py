"""Budgets, as the scheduler sees them: which jobs may start now. Amounts are whole
millionths of the budget's currency.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gpuyard.domain.cost_keys import INSTANCE_OWNER
from gpuyard.domain.jobspec import JobKind
from gpuyard.scheduler.heaps import LazyHeap
from gpuyard.scheduler.jobs import LiveJob


@dataclass(frozen=True, slots=True)
class EndedCost:
    """What an attempt `cost` in its `currency` that began at `began` (UTC seconds) and
    ran for `ran_s` seconds.
    """

    attempt_id: str
    cost: str
    currency: str
    began: float
    ran_s: float


@dataclass(slots=True)
class LiveBudget:
    """What jobs of a project or of a user, or all jobs, may cost until `ends_at` (UTC
    seconds; None: for ever).

    `spent` is what attempts that have ended cost; until that `is_known`, there is no
    room for another job. `reserved` is what each job may still
    cost that is in the queue or has an attempt. `waiting` are the jobs that could be in
    the queue but for this budget: the most urgent first, then the oldest. `noted` is
    there while `spent` is read from the ledger: what attempts cost that end meanwhile.
    """

    name: str
    amount: int
    currency: str
    project: str | None = None
    user: str | None = None
    period: str = "total"
    ends_at: float | None = None
    spent: int = 0
    is_known: bool = True
    noted: dict[str, int] | None = None
    reserved: dict[str, int] = field(default_factory=dict[str, int])
    waiting: LazyHeap[tuple[int, str]] = field(
        default_factory=LazyHeap[tuple[int, str]]
    )
    _reserved_sum: int = 0

    @property
    def left(self) -> int:
        """What is neither spent nor reserved; less than 0 when more is."""
        if not self.is_known:
            return 0
        return self.amount - self.spent - self._reserved_sum

    def covers(self, job: LiveJob) -> bool:
        """Whether it is the budget of this job. What models serve is paid by none."""
        if job.kind == JobKind.MODEL or job.shape.model:
            return False
        if self.project is not None:
            return job.project == self.project
        if self.user is None:
            return True
        return self.user == (job.owner or INSTANCE_OWNER)

    def reserve(self, job_id: str, amount: int) -> None:
        """The job may cost so much, from now on."""
        self.release(job_id)
        self.reserved[job_id] = amount
        self._reserved_sum += amount

    def release(self, job_id: str) -> None:
        """The job costs nothing more; idempotent."""
        self._reserved_sum -= self.reserved.pop(job_id, 0)


@dataclass(slots=True)
class BudgetTable:
    """All budgets. `reserve_of(job, currency)` says what a job may cost in millionths
    of a currency; None if that is not known, because a rate is missing. `worth(budget,
    cost)` says what of a cost counts in the present period of a budget.
    """

    by_name: dict[str, LiveBudget] = field(default_factory=dict[str, LiveBudget])
    reserve_of: Callable[[LiveJob, str], int | None] = lambda _, __: 0
    worth: Callable[[LiveBudget, EndedCost], int] = lambda _, __: 0
    _jobs: dict[str, LiveJob] = field(default_factory=dict[str, LiveJob])

    def of(self, job: LiveJob) -> list[LiveBudget]:
        """The budgets of the job."""
        return [each for each in self.by_name.values() if each.covers(job)]

    def lacking(self, job: LiveJob) -> LiveBudget | None:
        """The first budget that has no room for the job; None if it may start."""
        for budget in self.of(job):
            if job.id in budget.reserved:
                continue
            needed = self.reserve_of(job, budget.currency)
            if needed is None or budget.left <= 0 or needed > budget.left:
                return budget
        return None

    def admit(self, job: LiveJob) -> bool:
        """Whether the job may be in the queue; then its budgets reserve what it may
        cost. If not, it waits here.
        """
        if not self.by_name:
            return True
        self.forget(job)
        lacking = self.lacking(job)
        if lacking is not None:
            self._jobs[job.id] = job
            lacking.waiting.add((-job.priority, job.id))
            return False
        self.hold(job)
        return True

    def hold(self, job: LiveJob) -> None:
        """Reserve what a job may cost that has an attempt, room or not; idempotent."""
        for budget in self.of(job):
            if job.id not in budget.reserved:
                needed = self.reserve_of(job, budget.currency)
                budget.reserve(job.id, needed or 0)

    def forget(self, job: LiveJob) -> None:
        """The job waits for no budget any more; idempotent."""
        if self._jobs.pop(job.id, None) is not None:
            for budget in self.by_name.values():
                budget.waiting.discard((-job.priority, job.id))

    def leave(self, job: LiveJob) -> None:
        """The job neither waits nor runs; idempotent."""
        self.forget(job)
        for budget in self.by_name.values():
            budget.release(job.id)

    def is_waiting(self, job_id: str) -> bool:
        """Whether a budget keeps the job out of the queue."""
        return job_id in self._jobs

    def next_jobs(self) -> Iterator[LiveJob]:
        """The jobs for which there is room now, each with its room reserved."""
        for budget in self.by_name.values():
            while first := budget.waiting.first():
                job = self._jobs[first[1]]
                if self.admit(job):
                    yield job
                elif budget.waiting.first() == first:
                    break  # else it waits for another budget now

    def note_cost(self, job: LiveJob, cost: EndedCost) -> None:
        """An attempt of the job has ended, and cost so much."""
        for budget in self.of(job):
            worth = self.worth(budget, cost)
            budget.spent += worth
            if budget.noted is not None:
                budget.noted[cost.attempt_id] = worth

    def waiting_jobs(self) -> list[LiveJob]:
        """All jobs that wait for a budget."""
        return list(self._jobs.values())
