"""The queue: jobs that may start, in the order in which they should.

Jobs with equal priority, shape, type, span of attained service, minute of the deadline
and party share a bucket, in the order of their ids. Ids are UUIDv7, so this is the
order of submission, and a job that is queued again keeps its id and its place. A
decision looks at the heads of buckets, never at all jobs: while the head of a bucket
waits, its other jobs wait.

Buckets are sorted by the rank of their heads (see `ranking`), in one line, or in a line
for each user where shares count (see `fair_order`). A bucket is ranked again when its
head, type or age has changed: with a changed head at once, the others a few in each
decision, so that no decision takes long.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView
from itertools import chain, islice
from typing import TypeVar

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.gittins import span
from gpuyard.scheduler.heaps import IdHeap
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.parties import NO_SHARES, Group, Party, ShareKey, group_of
from gpuyard.scheduler.ranking import Rank, Ranking, due_minute
from gpuyard.scheduler.reserved_buckets import ReservedBuckets

AT_ONCE = 40
"""Outdated buckets ranked in one decision, which takes a few milliseconds."""
NEW_AT_ONCE = 400
"""New buckets ranked in one decision. They are more, because no job starts before all
are ranked.
"""
Bucket = tuple[int, Shape, str, int, float | None, Party]
"""Priority, shape, type, span of attained service, minute of the deadline, party."""
RankedLine = list[tuple[Rank, "Bucket"]]
_NO_SHAPES = Counter[Shape]()


class Queue:
    """The jobs that may start now. Adding and removing a job cost O(log n); so does
    `refresh` for each bucket that changed.

    - `open`: queued shapes that may fit somewhere.
    - `closed`: queued shapes that fit nowhere until more is free.
    - `preemptible`: the ids of preemptible jobs; `preemptible_shapes` counts their
      shapes.
    - `reserved`: the ranked buckets of jobs for whose project or user something is
      reserved. `reserved_shapes` counts such buckets, by shape.
    - `prompts`: how many prompts there are for each model.
    - `with_gpus`: the jobs that ask for GPUs, by id, the first to come first.
    - `lines`: all ranked buckets in order, each with the rank of its head, by line;
      none is empty but that of all jobs.
    - `groups`: the lines by group.
    - `fresh`: buckets with a new head or rank since the last decision.
    - `retry_all`: true if all buckets must be tried again, because a job left the
      queue or a bucket fell in rank, so that jobs after it may have a chance.
    - `seen_order`: the first lines in turn at the end of the last decision.
    """

    __slots__ = (
        "_ageing",
        "_buckets",
        "_by_job_type",
        "_by_shape",
        "_changed",
        "_due",
        "_new",
        "_rank_of",
        "_ranking",
        "_rule",
        "_seen_at",
        "_shapes_by_line",
        "_shortest",
        "_stale",
        "_without_gpus",
        "closed",
        "fresh",
        "groups",
        "lines",
        "open",
        "preemptible",
        "preemptible_shapes",
        "prompts",
        "reserved",
        "reserved_shapes",
        "retry_all",
        "seen_order",
        "with_gpus",
    )

    def __init__(self) -> None:
        self.open: set[Shape] = set()
        self.closed: set[Shape] = set()
        self.fresh: set[Bucket] = set()
        self.retry_all = False
        self.preemptible: set[str] = set()
        self.preemptible_shapes = Counter[Shape]()
        self.reserved = ReservedBuckets()
        self.reserved_shapes = Counter[Shape]()
        self.prompts = Counter[str]()
        self.with_gpus: dict[str, LiveJob] = {}
        # Each job is in one of two, because an entry of 100,000 jobs takes megabytes.
        self._without_gpus: dict[str, LiveJob] = {}
        self._buckets: dict[Bucket, IdHeap] = {}
        self._by_shape: dict[Shape, set[Bucket]] = {}
        self._by_job_type: dict[str, set[Bucket]] = {}
        self._shortest: dict[Shape, float] = {}
        self.lines: dict[ShareKey, RankedLine] = {NO_SHARES: []}
        self.groups: dict[Group, dict[ShareKey, None]] = {}
        self.seen_order: list[ShareKey] = []
        self._shapes_by_line: dict[ShareKey, Counter[Shape]] = {}
        self._rank_of: dict[Bucket, Rank] = {}
        self._ageing: list[tuple[float, str, Bucket]] = []
        self._due: dict[Bucket, float] = {}
        # Ranked buckets with another head now.
        self._changed: set[Bucket] = set()
        # Buckets that were never ranked.
        self._new: dict[Bucket, None] = {}
        # Buckets whose rank is outdated.
        self._stale: dict[Bucket, None] = {}
        self._rule: tuple[object, ...] = ()
        self._ranking: tuple[object, ...] = ()
        self._seen_at = 0.0

    def __len__(self) -> int:
        return len(self.with_gpus) + len(self._without_gpus)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.with_gpus or job_id in self._without_gpus

    def __iter__(self) -> Iterator[LiveJob]:
        return chain(self.with_gpus.values(), self._without_gpus.values())

    def _jobs_of(self, shape: Shape) -> dict[str, LiveJob]:
        return self.with_gpus if shape.gpus else self._without_gpus

    def _find(self, job_id: str) -> LiveJob | None:
        return self.with_gpus.get(job_id) or self._without_gpus.get(job_id)

    def add(self, job: LiveJob) -> None:
        """Add `job`. While it is in the queue, the parts of its bucket must not
        change.
        """
        jobs = self._jobs_of(job.shape)
        is_new = job.id not in jobs
        if job.shape.model and is_new:
            self.prompts[job.shape.model] += 1
        jobs[job.id] = job
        if job.preemptible and job.id not in self.preemptible:
            self.preemptible.add(job.id)
            self.preemptible_shapes[job.shape] += 1
        bucket = bucket_of(job)
        heap = self._buckets.get(bucket)
        if heap is None:
            heap = self._buckets[bucket] = IdHeap()
            if job.party.reserved_for != NO_SHARES:
                self.reserved_shapes[job.shape] += 1
            if job.shape not in self._by_shape:
                self._by_shape[job.shape] = set()
                self.open.add(job.shape)
            self._by_shape[job.shape].add(bucket)
            self._shapes_by_line.setdefault(job.party.line, Counter())[job.shape] += 1
            self._by_job_type.setdefault(job.job_type, set()).add(bucket)
        if job.timeout_s is not None and job.timeout_s < self.shortest(job.shape):
            self._shortest[job.shape] = job.timeout_s
        if is_new:
            heap.add(job.id)
        if bucket not in self._rank_of:
            self._new[bucket] = None
        elif heap.first() == job.id:
            self._changed.add(bucket)

    def remove(self, job_id: str) -> None:
        """Remove the job; idempotent."""
        job = self._find(job_id)
        if job is None:
            return
        del self._jobs_of(job.shape)[job_id]
        if job.shape.model:
            self.prompts[job.shape.model] -= 1
        if job_id in self.preemptible:
            self.preemptible.discard(job_id)
            _subtract(self.preemptible_shapes, job.shape)
        bucket = bucket_of(job)
        heap = self._buckets[bucket]
        if heap.first() == job_id and bucket in self._rank_of:
            self._changed.add(bucket)
            self.retry_all = True
        heap.remove(job_id)
        if not heap:
            del self._buckets[bucket]
            if job.party.reserved_for != NO_SHARES:
                _subtract(self.reserved_shapes, job.shape)
            _drop(self._by_shape, job.shape, bucket)
            self._drop_from_line(bucket)
            _drop(self._by_job_type, job.job_type, bucket)
            if job.shape not in self._by_shape:
                self.open.discard(job.shape)
                self.closed.discard(job.shape)
                self._shortest.pop(job.shape, None)

    def close(self, shape: Shape) -> None:
        """A queued shape fits nowhere."""
        self.open.discard(shape)
        self.closed.add(shape)

    def close_all(self) -> None:
        """No queued shape fits anywhere."""
        self.closed |= self.open
        self.open.clear()

    def reopen(self, shapes: Iterable[Shape]) -> None:
        """These closed shapes may fit again."""
        shapes = list(shapes)
        self.closed.difference_update(shapes)
        self.open.update(shapes)

    # --- the order of the buckets ---

    def refresh(
        self, ranking: Ranking, now: float, learned: Iterable[str] = ()
    ) -> None:
        """Rank the buckets at `now` (UTC seconds). Call it before `ranked` and
        `rank_of`.

        `learned`: the job types about which more is known since the last call.
        """
        clock_was_set_back = now < self._seen_at
        many_changed = len(self._changed) > max(AT_ONCE, len(self._rank_of) / 4)
        rank_all = ranking.rule != self._rule or clock_was_set_back or many_changed
        if ranking.key != self._ranking:
            self._stale.update(dict.fromkeys(self._rank_of))
        self._rule = ranking.rule
        self._ranking = ranking.key
        self._seen_at = now
        for job_type in learned:
            self._stale.update(dict.fromkeys(self._by_job_type.get(job_type, ())))
        while self._ageing and self._ageing[0][0] <= now:
            at, _, bucket = heapq.heappop(self._ageing)
            self._stale[bucket] = None
            if self._due.get(bucket) == at:
                del self._due[bucket]
        if rank_all:
            self._rank_all(ranking, now)
        for bucket in [*self._changed, *islice(self._new, NEW_AT_ONCE)]:
            self.rerank(bucket, ranking, now)
        self._catch_up(ranking, now)

    def _catch_up(self, ranking: Ranking, now: float) -> None:
        """Rank the next few outdated buckets. All jobs are tried again when none is
        left, not each time.
        """
        if not self._stale:
            return
        retry_all = self.retry_all
        for bucket in list(islice(self._stale, AT_ONCE)):
            self.rerank(bucket, ranking, now)
        self.retry_all = retry_all or not self._stale

    @property
    def has_unranked(self) -> bool:
        """True while new buckets are not ranked yet."""
        return bool(self._new)

    @property
    def has_outdated(self) -> bool:
        """True while buckets must be ranked: new ones, those that have aged, and those
        of types about which more was learned.
        """
        return bool(self._stale or self._new)

    def rerank(self, bucket: Bucket, ranking: Ranking, now: float) -> Rank | None:
        """Rank the bucket again by its head; returns the rank, None if the bucket is
        empty.
        """
        old = self._rank_of.pop(bucket, None)
        if old is not None:
            self._take_from_line(bucket, old)
        self._changed.discard(bucket)
        self._stale.pop(bucket, None)
        self._new.pop(bucket, None)
        head = self.head(bucket)
        if head is None:
            self._due.pop(bucket, None)
            return None
        rank = self._rank_of[bucket] = ranking.of(head, now)
        self.fresh.add(bucket)
        self.retry_all = self.retry_all or (old is not None and old < rank)
        insort(self._line(bucket[-1].line), (rank, bucket))
        self.reserved.add(rank, bucket)
        self._remember_ageing(head, bucket, ranking, now)
        return rank

    def _drop_from_line(self, bucket: Bucket) -> None:
        """The bucket is gone."""
        line = bucket[-1].line
        shapes = self._shapes_by_line[line]
        _subtract(shapes, bucket[1])
        if not shapes:
            del self._shapes_by_line[line]

    def _line(self, name: ShareKey) -> RankedLine:
        """The line; a new one if there is none yet."""
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = []
        if not line:
            self.groups.setdefault(group_of(name), {})[name] = None
        return line

    def _take_from_line(self, bucket: Bucket, rank: Rank) -> None:
        self.reserved.remove(rank, bucket)
        name = bucket[-1].line
        line = self.lines[name]
        del line[bisect_left(line, (rank, bucket))]
        if line:
            return
        if name != NO_SHARES:
            del self.lines[name]
        group = self.groups[group_of(name)]
        del group[name]
        if not group:
            del self.groups[group_of(name)]

    def _rank_all(self, ranking: Ranking, now: float) -> None:
        self.retry_all = True
        self._changed.clear()
        self._stale.clear()
        self._new.clear()
        self._ageing.clear()
        self._due.clear()
        self._rank_of.clear()
        for bucket in self._buckets:
            first = self._buckets[bucket].first() or ""
            head = self._jobs_of(bucket[1])[first]
            self._rank_of[bucket] = ranking.of(head, now)
            self._remember_ageing(head, bucket, ranking, now)
        self.lines = {NO_SHARES: []}
        self.groups = {}
        self.reserved.clear()
        for bucket, rank in self._rank_of.items():
            self._line(bucket[-1].line).append((rank, bucket))
            self.reserved.add(rank, bucket)
        for line in self.lines.values():
            line.sort()

    def _remember_ageing(
        self, head: LiveJob, bucket: Bucket, ranking: Ranking, now: float
    ) -> None:
        at = ranking.next_ageing(head, now)
        is_known = self._due.get(bucket) == at
        if at is None or is_known:
            return
        self._due[bucket] = at
        heapq.heappush(self._ageing, (at, head.id, bucket))
        if len(self._ageing) > 8 * len(self._buckets) + 64:
            # Drop outdated entries, of buckets that were ranked again since.
            self._ageing = [
                entry for entry in self._ageing if self._due.get(entry[-1]) == entry[0]
            ]
            heapq.heapify(self._ageing)

    def new_heads(self) -> list[tuple[Rank, Bucket]]:
        """The fresh buckets in order, each with the rank of its head."""
        return sorted(
            (self._rank_of[bucket], bucket)
            for bucket in self.fresh
            if bucket in self._rank_of
        )

    def mark_seen(self) -> None:
        """A decision has tried all that is fresh."""
        self.fresh.clear()
        self.retry_all = False

    @property
    def ranked(self) -> RankedLine:
        """All buckets in order, each with the rank of its head, if there is one line
        for all jobs.
        """
        return self.lines[NO_SHARES]

    @property
    def has_ranked(self) -> bool:
        """True if any job may start."""
        return bool(self._rank_of)

    def rank_of(self, bucket: Bucket) -> Rank:
        """The rank of the bucket's head."""
        return self._rank_of[bucket]

    def first_of(self, line: ShareKey) -> str:
        """The id of the first job of the line."""
        return self.lines[line][0][0][-1]

    def head_rank(self, bucket: Bucket) -> Rank | None:
        """The rank of the bucket's head; None if the bucket is empty."""
        return self._rank_of.get(bucket)

    def shapes_in(self, line: ShareKey) -> KeysView[Shape]:
        """The shapes of the jobs in this line."""
        return self._shapes_by_line.get(line, _NO_SHAPES).keys()

    def next_ageing(self) -> float | None:
        """When (UTC seconds) ageing may next change the order; None if never."""
        # A single bucket has no other to overtake.
        if not self._ageing or len(self._buckets) < 2:
            return None
        return self._ageing[0][0]

    def shortest(self, shape: Shape) -> float:
        """A lower bound (seconds) for the timeouts of queued jobs of this shape;
        infinity if none has one.
        """
        return self._shortest.get(shape, math.inf)

    def head(self, bucket: Bucket) -> LiveJob | None:
        """The first job of the bucket; None if it is empty."""
        heap = self._buckets.get(bucket)
        first = heap.first() if heap else None
        return self._jobs_of(bucket[1])[first] if first is not None else None

    def first_jobs(self, bucket: Bucket, most: int) -> list[LiveJob]:
        """The first so many jobs of the bucket."""
        heap = self._buckets.get(bucket)
        ids = heapq.nsmallest(most, heap) if heap else []
        jobs = self._jobs_of(bucket[1])
        return [jobs[job_id] for job_id in ids]

    # --- for people's questions: slower than a decision may be ---

    def kinds(self) -> Iterator[tuple[LiveJob, int]]:
        """The first job of each bucket, and how many the bucket has."""
        for bucket, heap in self._buckets.items():
            if first := heap.first():
                yield self._jobs_of(bucket[1])[first], len(heap)

    def heads(self, ranking: Ranking, now: float) -> Iterator[LiveJob]:
        """The heads of all buckets in order.

        If the caller removes the job it was given, the next one of the bucket follows
        at its rank.
        """
        heads = filter(None, map(self.head, self._buckets))
        heap = [(ranking.of(head, now), bucket_of(head)) for head in heads]
        heapq.heapify(heap)
        while heap:
            rank, bucket = heapq.heappop(heap)
            job_id = rank[-1]
            yield self._jobs_of(bucket[1])[job_id]
            head = self.head(bucket)
            if head is not None and head.id != job_id:
                heapq.heappush(heap, (ranking.of(head, now), bucket))

    def is_head(self, job: LiveJob) -> bool:
        """True if `job` is the first of its bucket."""
        return self.head(bucket_of(job)) is job

    def position(self, job_id: str, ranking: Ranking, now: float) -> int | None:
        """The job's place among all queued jobs, from 1; None if it is not queued."""
        job = self._find(job_id)
        if job is None:
            return None
        rank = ranking.of(job, now)
        return 1 + sum(ranking.of(other, now) < rank for other in self)


def bucket_of(job: LiveJob) -> Bucket:
    """The bucket of the job."""
    served_s = job.service.served_s
    served_span = span(served_s) if served_s else 0
    # Almost no job has one, and None is hashed faster than infinity.
    due = None if job.deadline is None else due_minute(job.deadline)
    return job.priority, job.shape, job.job_type, served_span, due, job.party


Key = TypeVar("Key", Shape, str)


def _drop(groups: dict[Key, set[Bucket]], key: Key, bucket: Bucket) -> None:
    groups[key].discard(bucket)
    if not groups[key]:
        del groups[key]


def _subtract(counts: Counter[Shape], shape: Shape) -> None:
    """Count one less of the shape."""
    counts[shape] -= 1
    if not counts[shape]:
        del counts[shape]
