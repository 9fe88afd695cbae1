"""When to look at the deadlines of which jobs.

A job is looked at when it must start to end in time, and at its deadline. In between,
it is looked at whenever half of the time that was left has passed, because by then more
may be known of how long it runs.
"""

from enum import IntEnum

from gpuyard.scheduler.heaps import LazyHeap
from gpuyard.scheduler.jobs import LiveJob

# Less than this before the deadline, nobody looks whether it can still be met.
_NEAR_S = 60.0


class Told(IntEnum):
    """What the owner of a job was told of its deadline. In the ledger, so a number is
    never changed.
    """

    LATE = 1
    """It will probably be missed."""
    MISSED = 2


class DeadlineTable:
    """The live jobs with a deadline that was not told of yet, by when to look at each
    (UTC seconds).
    """

    __slots__ = ("_at", "_looks")

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._looks = LazyHeap[tuple[float, str]]()

    def __len__(self) -> int:
        return len(self._at)

    def watch(self, job: LiveJob) -> None:
        """A job is new, or has another deadline."""
        self.forget(job)
        if job.deadline is not None and job.deadline_told != Told.MISSED:
            self.look_at(job, next_look(job, job.created_at, job.estimated_s))

    def look_at(self, job: LiveJob, at: float) -> None:
        """Look at the job then (UTC seconds), and not before."""
        self.forget(job)
        self._at[job.id] = at
        self._looks.add((at, job.id))

    def forget(self, job: LiveJob) -> None:
        """Do not look at the job; idempotent."""
        at = self._at.pop(job.id, None)
        if at is not None:
            self._looks.discard((at, job.id))

    def next_look(self) -> float | None:
        """When to look next; None for never."""
        first = self._looks.first()
        return first[0] if first else None

    def take_due(self, now: float, most: int) -> list[str]:
        """The ids of at most so many jobs that are to be looked at by now; they are
        forgotten.
        """
        found: list[str] = []
        while len(found) < most:
            first = self._looks.first()
            if first is None or first[0] > now:
                break
            self._looks.discard(first)
            del self._at[first[1]]
            found.append(first[1])
        return found


def next_look(job: LiveJob, since: float, remaining_s: float | None) -> float:
    """When to look after `since` (UTC seconds) at a job with a deadline, which is
    expected to run for `remaining_s` more (None: not known).
    """
    deadline = job.deadline or 0.0
    left_s = deadline - since
    if job.deadline_told is not None or left_s <= _NEAR_S:
        return deadline
    must_start_at = deadline - (remaining_s or 0.0)
    half_way = since + left_s / 2
    # A moment later, because then it is too late.
    return min(half_way, max(must_start_at + 1.0, since))
