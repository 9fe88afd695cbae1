"""The queue: jobs that may start, in the order in which they should.

Jobs alike in priority, shape, type and attained service stand in one lane, ordered by id. Ids are UUIDv7, so that is
the order of submission, and a requeued job, which keeps its id, keeps its place. A decision looks at the heads of lanes
and never at all jobs: while the head of a lane waits, all behind it wait. Lanes stand in one line, sorted by the rank
of their heads (see `ranking`), and only those are ranked anew whose head, type or age has changed.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.ranking import Rank, Ranking
from gpuyard.scheduler.worth import span

Item = TypeVar("Item", str, tuple[float, str])
Lane = tuple[int, Shape, str, int]
"""Priority, shape, type, span of attained service."""


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
    """The jobs that may start now. Adding and removing cost O(log n); so does `refresh` for each lane that changed."""

    __slots__ = (
        "_ageing", "_by_kind", "_by_shape", "_changed", "_due", "_jobs", "_lanes", "_line", "_ranked", "_ranking",
        "_seen_at",
    )  # fmt: skip

    def __init__(self) -> None:
        self._jobs: dict[str, LiveJob] = {}
        self._lanes: dict[Lane, LazyHeap[str]] = {}
        self._by_shape: dict[Shape, set[Lane]] = {}
        self._by_kind: dict[str, set[Lane]] = {}
        self._line: list[tuple[Rank, Lane]] = []
        self._ranked: dict[Lane, Rank] = {}
        self._ageing: list[tuple[float, str, Lane]] = []
        self._due: dict[Lane, float] = {}
        self._changed: set[Lane] = set()
        self._ranking: tuple[object, ...] = ()
        self._seen_at = 0.0

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[LiveJob]:
        return iter(self._jobs.values())

    def add(self, job: LiveJob) -> None:
        """Let `job` stand in line. What its lane is made of must not change while it does."""
        self._jobs[job.id] = job
        lane = lane_of(job)
        heap = self._lanes.get(lane)
        if heap is None:
            heap = self._lanes[lane] = LazyHeap()
            self._by_shape.setdefault(job.shape, set()).add(lane)
            self._by_kind.setdefault(job.kind, set()).add(lane)
        heap.add(job.id)
        if heap.first() == job.id:
            self._changed.add(lane)

    def remove(self, job_id: str) -> None:
        """Take the job out of the line; nothing changes when it is not in it."""
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        lane = lane_of(job)
        heap = self._lanes[lane]
        if heap.first() == job_id:
            self._changed.add(lane)
        heap.discard(job_id)
        if not heap:
            del self._lanes[lane]
            _drop(self._by_shape, job.shape, lane)
            _drop(self._by_kind, job.kind, lane)

    # --- the line ---

    def refresh(self, ranking: Ranking, now: float, learned: Iterable[str] = ()) -> bool:
        """Bring the line up to `now` (UTC seconds); True when it changed. Ask `line` and `rank_of` only after this.

        `learned` are the types of which more is known than the last time.
        """
        if ranking.key != self._ranking or now < self._seen_at:
            self._ranking = ranking.key
            self._changed.update(self._lanes)
        for kind in learned:
            self._changed.update(self._by_kind.get(kind, ()))
        while self._ageing and self._ageing[0][0] <= now:
            self._changed.add(heapq.heappop(self._ageing)[-1])
        self._seen_at = now
        changed = bool(self._changed)
        if len(self._changed) > len(self._line) // 4:
            self._rank_all(ranking, now)
        else:
            for lane in list(self._changed):
                self.rerank(lane, ranking, now)
        self._changed.clear()
        return changed

    def rerank(self, lane: Lane, ranking: Ranking, now: float) -> Rank | None:
        """Put the lane where its head now belongs; its rank, or None when nobody is left in it."""
        old = self._ranked.pop(lane, None)
        if old is not None:
            del self._line[bisect_left(self._line, (old, lane))]
        self._changed.discard(lane)
        head = self.head(lane)
        if head is None:
            self._due.pop(lane, None)
            return None
        rank = self._ranked[lane] = ranking.of(head, now)
        insort(self._line, (rank, lane))
        self._remember_ageing(head, lane, ranking, now)
        return rank

    def _rank_all(self, ranking: Ranking, now: float) -> None:
        self._ageing.clear()
        self._due.clear()
        self._ranked.clear()
        for lane in self._lanes:
            head = self._jobs[self._lanes[lane].first() or ""]
            self._ranked[lane] = ranking.of(head, now)
            self._remember_ageing(head, lane, ranking, now)
        self._line = sorted((rank, lane) for lane, rank in self._ranked.items())

    def _remember_ageing(self, head: LiveJob, lane: Lane, ranking: Ranking, now: float) -> None:
        at = ranking.next_ageing(head, now)
        if at is None:
            return
        self._due[lane] = at
        heapq.heappush(self._ageing, (at, head.id, lane))
        if len(self._ageing) > 8 * len(self._lanes) + 64:
            # Entries of lanes that were ranked again since are only forgotten here.
            self._ageing = [entry for entry in self._ageing if self._due.get(entry[-1]) == entry[0]]
            heapq.heapify(self._ageing)

    @property
    def line(self) -> list[tuple[Rank, Lane]]:
        """All lanes in order, each with its head's rank."""
        return self._line

    def rank_of(self, lane: Lane) -> Rank:
        """The rank of the lane's head."""
        return self._ranked[lane]

    def next_ageing(self) -> float | None:
        """When (UTC seconds) the line may next change by age alone; None if never. One alone overtakes nobody."""
        return self._ageing[0][0] if self._ageing and len(self._lanes) > 1 else None

    def shapes(self) -> Iterable[Shape]:
        """The shapes that stand in line."""
        return self._by_shape.keys()

    def lanes(self, shape: Shape) -> Iterable[Lane]:
        """The lanes of this shape."""
        return self._by_shape.get(shape, ())

    def head(self, lane: Lane) -> LiveJob | None:
        """The first job of the lane."""
        heap = self._lanes.get(lane)
        first = heap.first() if heap else None
        return self._jobs[first] if first is not None else None

    # --- for people: these look at more than a decision would ---

    def heads(self, ranking: Ranking, now: float) -> Iterator[LiveJob]:
        """The heads of lanes, first in order first.

        Remove the job just given and the next of its lane follows in its turn; leave it and its lane is done.
        """
        front = [(ranking.of(job, now), lane) for lane in self._lanes if (job := self.head(lane))]
        heapq.heapify(front)
        while front:
            rank, lane = heapq.heappop(front)
            yield self._jobs[rank[-1]]
            job = self.head(lane)
            if job is not None and job.id != rank[-1]:
                heapq.heappush(front, (ranking.of(job, now), lane))

    def is_head(self, job: LiveJob) -> bool:
        """True when no job of its lane stands before `job`."""
        return self.head(lane_of(job)) is job

    def position(self, job_id: str, ranking: Ranking, now: float) -> int | None:
        """The job's place in the whole order, from 1; None when it is not in line."""
        job = self._jobs.get(job_id)
        if job is None:
            return None
        mine = ranking.of(job, now)
        return 1 + sum(ranking.of(other, now) < mine for other in self._jobs.values())


def lane_of(job: LiveJob) -> Lane:
    """The lane the job stands in."""
    return job.priority, job.shape, job.kind, span(job.served_s) if job.served_s else 0


Key = TypeVar("Key", Shape, str)


def _drop(groups: dict[Key, set[Lane]], key: Key, lane: Lane) -> None:
    groups[key].discard(lane)
    if not groups[key]:
        del groups[key]
