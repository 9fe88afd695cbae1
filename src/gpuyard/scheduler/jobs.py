"""Live jobs as the scheduler and the controller remember them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.reasons import RetryCause
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState, ParentEnd
from gpuyard.scheduler.parties import EVERYBODY, Party

ALL_CAUSES = frozenset(RetryCause)


@dataclass(frozen=True, slots=True)
class Service:
    """Of the ended attempts of a job: `served_s` is how many seconds they ran,
    `preemptions` how many were preempted, `last_provider` where the newest one ran.
    """

    served_s: float = 0.0
    preemptions: int = 0
    last_provider: str = ""


# One for all jobs that never ran, because 100,000 of them may wait.
NO_SERVICE = Service()


@dataclass(frozen=True, slots=True)
class Retries:
    """A job is tried again at most `count` times, after an end of these `causes`."""

    count: int = 0
    causes: frozenset[str] = ALL_CAUSES


@lru_cache(maxsize=1024)
def _retries(count: int, causes: frozenset[str]) -> Retries:
    # One for all jobs that are tried again alike, because 100,000 of them may wait.
    return Retries(count, causes)


def retries_of(count: int, causes: Collection[str] | None) -> Retries:
    """So many retries after these `causes`; None stands for all causes."""
    return _retries(count, ALL_CAUSES if causes is None else frozenset(causes))


@dataclass(slots=True)
class LiveJob:
    """A job that has not ended. Times are UTC seconds; `waits_for` are the parents that
    have not ended as they must, and `parent_ends` says how, where that is not
    `completed`. A `held` job waits for its release.

    `job_type`: jobs of one type are expected to run equally long (see `learning`).
    `service` is what it got in its ended attempts.

    `deadline` is when it should have ended, and `deadline_told` what its owner was told
    of that (see `deadlines`); None for nothing.

    A task of an array has the id of that, and an index of its own. `owner` is the user
    whose job it is; None is the owner of the instance.
    """

    id: str
    state: JobState
    shape: Shape
    priority: int
    created_at: float
    not_before: float | None = None
    timeout_s: float | None = None
    estimated_s: float | None = None
    project: str | None = None
    preemptible: bool = False
    waits_for: tuple[str, ...] = ()
    parent_ends: Mapping[str, str] | None = None
    held: bool = False
    tier: str | None = None
    started_at: float | None = None
    attempts: int = 0
    attempt_id: str | None = None
    retries: Retries = Retries()
    failures: int = 0
    cancel_requested: bool = False
    resume_from: str | None = None
    kind: str = JobKind.COMMAND
    job_type: str = ""
    service: Service = NO_SERVICE
    array_id: str | None = None
    array_index: int | None = None
    owner: str | None = None
    party: Party = EVERYBODY
    deadline: float | None = None
    deadline_told: int | None = None

    def wanted_end(self, parent: str) -> ParentEnd:
        """How the job `parent` must end before this one may start."""
        ends = self.parent_ends or {}
        return ParentEnd(ends.get(parent, ParentEnd.COMPLETED))

    def why_never(self, parent: str, state: JobState) -> str:
        """Why it can never start after its parent has ended in `state`."""
        if self.wanted_end(parent) is ParentEnd.FAILED:
            return f"It starts only if {parent} does not complete, and that completed."
        return f"It depends on {parent}, which ended {state}."

    @property
    def width(self) -> int:
        """How many GPUs it holds at once; a job without GPUs counts as one."""
        return max(1, self.shape.gpus * self.shape.nodes)
