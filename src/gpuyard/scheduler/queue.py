"""The queue: jobs that may start, in the order in which they should.

Jobs of one priority and shape stand in one lane, ordered by id. Ids are UUIDv7, so that is the order of submission,
and a requeued job, which keeps its id, keeps its place. A decision looks at the heads of lanes and never at all jobs:
while the head of a lane waits, all behind it wait.

Order among heads is effective priority, then id. Effective priority is the job's own (1 to 5) plus one for each
`ageing_s` it has waited, up to 6: one above the most urgent newcomer. At 6 only age counts, so every job is at some
time ahead of all that come later, and nothing starves.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState

AGED = 6
"""The effective priority at which ageing ends."""

Item = TypeVar("Item", str, tuple[float, str])
Lane = tuple[int, Shape]


@dataclass(slots=True)
class LiveJob:
    """A job that is not over. Times are UTC seconds; `waits_for` are the parents that have not completed."""

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
    tier: str | None = None
    started_at: float | None = None
    attempts: int = 0
    attempt_id: str | None = None
    retry_count: int = 0
    failures: int = 0
    cancel_requested: bool = False
    resume_from: str | None = None


class LazyHeap(Generic[Item]):
    """A set that knows its least item. Removal leaves the heap entry behind, to be skipped when it surfaces."""

    __slots__ = ("_heap", "_items")

    def __init__(self) -> None:
        self._heap: list[Item] = []
        self._items: set[Item] = set()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def add(self, item: Item) -> None:
        """Put `item` in; nothing changes when it is there."""
        if item not in self._items:
            self._items.add(item)
            heapq.heappush(self._heap, item)

    def discard(self, item: Item) -> None:
        """Take `item` out; nothing changes when it is not there."""
        self._items.discard(item)
        # A mass cancel must give its memory back.
        if len(self._heap) > 2 * len(self._items) + 64:
            self._heap = list(self._items)
            heapq.heapify(self._heap)

    def first(self) -> Item | None:
        """The least item, or None."""
        while self._heap and self._heap[0] not in self._items:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None


class Queue:
    """The jobs that may start now. Adding, removing and finding a head cost O(log n)."""

    __slots__ = ("_jobs", "_lanes")

    def __init__(self) -> None:
        self._jobs: dict[str, LiveJob] = {}
        self._lanes: dict[Lane, LazyHeap[str]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[LiveJob]:
        return iter(self._jobs.values())

    def add(self, job: LiveJob) -> None:
        """Let `job` stand in line. Its priority and shape must not change while it does."""
        self._jobs[job.id] = job
        self._lanes.setdefault((job.priority, job.shape), LazyHeap()).add(job.id)

    def remove(self, job_id: str) -> None:
        """Take the job out of the line; nothing changes when it is not in it."""
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        key = job.priority, job.shape
        lane = self._lanes[key]
        lane.discard(job_id)
        if not lane:
            del self._lanes[key]

    def heads(self, now: float, ageing_s: float) -> Iterator[LiveJob]:
        """The heads of lanes, first in order first.

        Remove the job just given and the next of its lane follows in its turn; leave it and its lane is done.
        """
        front = [(rank(job, now, ageing_s), key) for key in self._lanes if (job := self._head(key))]
        heapq.heapify(front)
        while front:
            (_, job_id), key = heapq.heappop(front)
            yield self._jobs[job_id]
            job = self._head(key)
            if job is not None and job.id != job_id:
                heapq.heappush(front, (rank(job, now, ageing_s), key))

    def is_head(self, job: LiveJob) -> bool:
        """True when no job of the same priority and shape stands before `job`."""
        return self._head((job.priority, job.shape)) is job

    def position(self, job_id: str, now: float, ageing_s: float) -> int | None:
        """The job's place in the whole order, from 1; None when it is not in line. For people: it looks at all jobs."""
        job = self._jobs.get(job_id)
        if job is None:
            return None
        mine = rank(job, now, ageing_s)
        return 1 + sum(rank(other, now, ageing_s) < mine for other in self._jobs.values())

    def _head(self, key: Lane) -> LiveJob | None:
        lane = self._lanes.get(key)
        first = lane.first() if lane else None
        return self._jobs[first] if first is not None else None


def rank(job: LiveJob, now: float, ageing_s: float) -> tuple[int, str]:
    """What jobs are sorted by: effective priority descending, then id."""
    return -_effective_priority(job, now, ageing_s), job.id


def next_ageing(job: LiveJob, now: float, ageing_s: float) -> float:
    """When the job's effective priority next rises; infinity when it will not."""
    effective = _effective_priority(job, now, ageing_s)
    return math.inf if effective >= AGED else job.created_at + (effective - job.priority + 1) * ageing_s


def _effective_priority(job: LiveJob, now: float, ageing_s: float) -> int:
    steps = int(max(0.0, now - job.created_at) / ageing_s)
    # Rounding must not put the step off past the moment `next_ageing` named: the caller would wake in vain for ever.
    if now >= job.created_at + (steps + 1) * ageing_s:
        steps += 1
    return min(AGED, job.priority + steps)
