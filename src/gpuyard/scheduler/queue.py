"""The queue: jobs that may start, in the order in which they should.

Jobs alike in priority, shape, type and attained service stand in one lane, ordered by id. Ids are UUIDv7, so that is
the order of submission, and a requeued job, which keeps its id, keeps its place. A decision looks at the heads of lanes
and never at all jobs: while the head of a lane waits, all behind it wait. Lanes stand in one line, sorted by the rank
of their heads (see `ranking`), and only those are ranked anew whose head, type or age has changed: a changed head at
once, the others a few a decision, so that none takes long.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.ranking import Rank, Ranking
from gpuyard.scheduler.worth import span

AT_ONCE = 40
"""So many lanes are ranked anew in a few milliseconds."""
NEW_AT_ONCE = 400
"""So many new ones in some more; who starts waits for them."""
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
    """The jobs that may start now. Adding and removing cost O(log n); so does `refresh` for each lane that changed.

    `open` are the shapes in line that may fit somewhere, `closed` those known to fit nowhere until more is free. Since
    the last decision `fresh` lanes got another head or rose, and `shuffled` is whether anybody left or fell behind, so
    that whoever was passed over may have a chance now.
    """

    __slots__ = (
        "_ageing", "_by_kind", "_by_shape", "_changed", "_due", "_jobs", "_lanes", "_line", "_new", "_ranked",
        "_ranking", "_rule", "_seen_at", "_shortest", "_stale", "closed", "fresh", "open", "preemptible", "shuffled",
    )  # fmt: skip

    def __init__(self) -> None:
        self.open: set[Shape] = set()
        self.closed: set[Shape] = set()
        self.fresh: set[Lane] = set()
        self.shuffled = False
        self.preemptible: set[str] = set()
        self._jobs: dict[str, LiveJob] = {}
        self._lanes: dict[Lane, LazyHeap[str]] = {}
        self._by_shape: dict[Shape, set[Lane]] = {}
        self._by_kind: dict[str, set[Lane]] = {}
        self._shortest: dict[Shape, float] = {}
        self._line: list[tuple[Rank, Lane]] = []
        self._ranked: dict[Lane, Rank] = {}
        self._ageing: list[tuple[float, str, Lane]] = []
        self._due: dict[Lane, float] = {}
        # Ranked lanes whose head is another now; lanes that were never ranked; those ranked by what is outdated.
        self._changed: set[Lane] = set()
        self._new: dict[Lane, None] = {}
        self._stale: dict[Lane, None] = {}
        self._rule: tuple[object, ...] = ()
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
        if job.preemptible:
            self.preemptible.add(job.id)
        lane = lane_of(job)
        heap = self._lanes.get(lane)
        if heap is None:
            heap = self._lanes[lane] = LazyHeap()
            if job.shape not in self._by_shape:
                self._by_shape[job.shape] = set()
                self.open.add(job.shape)
            self._by_shape[job.shape].add(lane)
            self._by_kind.setdefault(job.kind, set()).add(lane)
        if job.timeout_s is not None and job.timeout_s < self.shortest(job.shape):
            self._shortest[job.shape] = job.timeout_s
        heap.add(job.id)
        if lane not in self._ranked:
            self._new[lane] = None
        elif heap.first() == job.id:
            self._changed.add(lane)

    def remove(self, job_id: str) -> None:
        """Take the job out of the line; nothing changes when it is not in it."""
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        self.preemptible.discard(job_id)
        lane = lane_of(job)
        heap = self._lanes[lane]
        if heap.first() == job_id and lane in self._ranked:
            self._changed.add(lane)
            self.shuffled = True
        heap.discard(job_id)
        if not heap:
            del self._lanes[lane]
            _drop(self._by_shape, job.shape, lane)
            _drop(self._by_kind, job.kind, lane)
            if job.shape not in self._by_shape:
                self.open.discard(job.shape)
                self.closed.discard(job.shape)
                self._shortest.pop(job.shape, None)

    def close(self, shape: Shape) -> None:
        """A shape in line fits nowhere."""
        self.open.discard(shape)
        self.closed.add(shape)

    def reopen(self, shapes: Iterable[Shape]) -> None:
        """Closed shapes may fit again."""
        shapes = list(shapes)
        self.closed.difference_update(shapes)
        self.open.update(shapes)

    # --- the line ---

    def refresh(self, ranking: Ranking, now: float, learned: Iterable[str] = ()) -> None:
        """Bring the line up to `now` (UTC seconds). Ask `line` and `rank_of` only after this.

        `learned` are the types of which more is known than the last time.
        """
        anew = (
            ranking.rule != self._rule or now < self._seen_at or len(self._changed) > max(AT_ONCE, len(self._line) / 4)
        )
        if ranking.key != self._ranking:
            self._stale.update(dict.fromkeys(self._ranked))
        self._rule, self._ranking, self._seen_at = ranking.rule, ranking.key, now
        for kind in learned:
            self._stale.update(dict.fromkeys(self._by_kind.get(kind, ())))
        while self._ageing and self._ageing[0][0] <= now:
            at, _, lane = heapq.heappop(self._ageing)
            self._stale[lane] = None
            if self._due.get(lane) == at:
                del self._due[lane]
        if anew:
            self._rank_all(ranking, now)
        for lane in [*self._changed, *islice(self._new, NEW_AT_ONCE)]:
            self.rerank(lane, ranking, now)
        self._catch_up(ranking, now)

    def _catch_up(self, ranking: Ranking, now: float) -> None:
        """Rank the next few that are stale; who was passed over is looked at again when all of them are done."""
        if not self._stale:
            return
        shuffled = self.shuffled
        for lane in list(islice(self._stale, AT_ONCE)):
            self.rerank(lane, ranking, now)
        self.shuffled = shuffled or not self._stale

    @property
    def unranked(self) -> bool:
        """True while lanes wait to be ranked for the first time."""
        return bool(self._new)

    @property
    def behind(self) -> bool:
        """True while lanes wait to be ranked: new ones, those that have aged, or of which more has been learned."""
        return bool(self._stale or self._new)

    def rerank(self, lane: Lane, ranking: Ranking, now: float) -> Rank | None:
        """Put the lane where its head now belongs; its rank, or None when nobody is left in it."""
        old = self._ranked.pop(lane, None)
        if old is not None:
            del self._line[bisect_left(self._line, (old, lane))]
        self._changed.discard(lane)
        self._stale.pop(lane, None)
        self._new.pop(lane, None)
        head = self.head(lane)
        if head is None:
            self._due.pop(lane, None)
            return None
        rank = self._ranked[lane] = ranking.of(head, now)
        self.fresh.add(lane)
        self.shuffled = self.shuffled or (old is not None and old < rank)
        insort(self._line, (rank, lane))
        self._remember_ageing(head, lane, ranking, now)
        return rank

    def _rank_all(self, ranking: Ranking, now: float) -> None:
        self.shuffled = True
        self._changed.clear()
        self._stale.clear()
        self._new.clear()
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
        if at is None or self._due.get(lane) == at:
            return  # the heap has it
        self._due[lane] = at
        heapq.heappush(self._ageing, (at, head.id, lane))
        if len(self._ageing) > 8 * len(self._lanes) + 64:
            # Entries of lanes that were ranked again since are only forgotten here.
            self._ageing = [entry for entry in self._ageing if self._due.get(entry[-1]) == entry[0]]
            heapq.heapify(self._ageing)

    def new_heads(self) -> list[tuple[Rank, Lane]]:
        """The part of the line that is fresh."""
        return sorted((self._ranked[lane], lane) for lane in self.fresh if lane in self._ranked)

    def seen(self) -> None:
        """A decision has looked at it all."""
        self.fresh.clear()
        self.shuffled = False

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

    def shortest(self, shape: Shape) -> float:
        """No job of this shape in line has a shorter time limit (seconds); infinity when none has any."""
        return self._shortest.get(shape, math.inf)

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
