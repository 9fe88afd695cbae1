"""The start pass where shares count: lines take turns (see `fair_order`).

The first job of each line that must wait reserves places, like the head of a queue. The
other jobs of its line may pass it, as those of later lines may, if they do not delay
it.
"""

from bisect import insort

from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.external_queues import Dispatch
from gpuyard.scheduler.fair_order import fair_order, first_allowed, heads_in_turn
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.lending import least_of
from gpuyard.scheduler.parties import ShareKey, group_of
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.queue import Bucket, RankedLine
from gpuyard.scheduler.ranking import Rank, Ranking
from gpuyard.scheduler.start_pass import StartPass
from gpuyard.scheduler.view import View


class SharePass(StartPass):
    """Starts, in one decision, all jobs that can start, by turns."""

    def __init__(
        self, view: View, now: float, policy: Policy, ranking: Ranking
    ) -> None:
        super().__init__(view, now, policy, ranking)
        self._most_waiting = 4 * policy.reserved_heads
        # The first jobs of the lines before, which must wait.
        self._waiting: list[LiveJob] = []
        self._waiting_lines: set[ShareKey] = set()
        # How far each line has been tried, and has been offered to external queues.
        self._tried: dict[ShareKey, int] = {}
        self._offered: dict[ShareKey, int] = {}
        self._least: Shape | None = None

    def _start_in_order(self) -> None:
        view = self._view
        queue = view.queue
        self._hopeful = set(queue.open)
        if not self._hopeful:
            return
        if view.advance.coming and self._close_if_full(least_of(queue.open)):
            # Jobs that started on what is reserved for them have used up the room.
            queue.seen_order = []
            return
        order = fair_order(view, self._now)
        retry_all = bool(view.index.freed) or queue.retry_all
        # A line that has overtaken others may start what was refused before.
        if queue.seen_order and not retry_all:
            retry_all = order.first(self._most_waiting) != queue.seen_order
        fresh = None if retry_all else self._fresh_by_line()
        is_narrow = fresh is not None
        while self._hopeful and (fresh is None or fresh):
            if not is_narrow and self._may_skip_others():
                is_narrow = True
                lines = queue.reserved.queued_in
                order.keep_only({group_of(line) for line in lines})
            line = order.next()
            if line is None:
                break
            job = self._start_one(line, fresh)
            if job is not None:
                order.charge_for(view, job)
                continue
            order.drop()
            if fresh is not None:
                fresh.pop(line, None)
        queue.seen_order = []
        if queue.open:
            queue.seen_order = fair_order(view, self._now).first(self._most_waiting)

    def _fresh_by_line(self) -> dict[ShareKey, RankedLine]:
        """The fresh buckets in order, by line."""
        found: dict[ShareKey, RankedLine] = {}
        for rank, bucket in self._view.queue.new_heads():
            found.setdefault(bucket[-1].line, []).append((rank, bucket))
        return found

    def _start_one(
        self, line: ShareKey, fresh: dict[ShareKey, RankedLine] | None
    ) -> LiveJob | None:
        """Start the first job of the line that can; only one of a fresh bucket, if
        these are given.
        """
        queue = self._view.queue
        ranked = queue.lines.get(line, []) if fresh is None else fresh.get(line, [])
        if fresh is not None:
            self._wait_for_older(line, ranked)
        # A view of keys looks at the fewer of both.
        if fresh is None and queue.shapes_in(line).isdisjoint(self._hopeful_in(line)):
            if len(self._waiting) >= self._most_waiting:
                return None
            first = first_allowed(queue, self._view.usage, line)
            if first is not None:
                self._wait_for(line, first)
            return None
        position = self._tried.get(line, 0)
        while position < len(ranked) and self._hopeful:
            rank, bucket = ranked[position]
            job = self._view.jobs[rank[-1]]
            placements = self._try(job, rank)
            if placements is not None:
                self._tried[line] = position
                self._take_by_turn(job, placements, bucket)
                if fresh is not None:
                    _replace(ranked, position, queue.head_rank(bucket), bucket)
                return job
            self._wait_for(line, job)
            position += 1
        return None

    def _may_skip_others(self) -> bool:
        """True if only jobs may still start for whom something is reserved, and so many
        others wait that no more matter.
        """
        is_enough = len(self._waiting) >= self._most_waiting
        return is_enough and self._is_for_holders_only()

    def _hopeful_in(self, line: ShareKey) -> set[Shape]:
        """The shapes of which jobs in this line may still start."""
        if self._lending is None or self._view.queue.reserved.is_in(line):
            return self._hopeful
        return self._for_all

    def _take_by_turn(
        self, job: LiveJob, placements: tuple[Placement, ...], bucket: Bucket
    ) -> None:
        view = self._view
        self._take(job, placements)
        if self._least is None:
            self._least = least_of(view.queue.open | {bucket[1]})
        if self._close_if_full(self._least):
            self._hopeful.clear()

    def _wait_for_older(self, line: ShareKey, fresh: RankedLine) -> None:
        """The first job of the line comes before those of its fresh buckets, if it is
        not among these: it was refused in an earlier decision.
        """
        first = first_allowed(self._view.queue, self._view.usage, line)
        if first is not None and not any(rank[-1] == first.id for rank, _ in fresh[:1]):
            self._wait_for(line, first)

    def _wait_for(self, line: ShareKey, job: LiveJob) -> None:
        """The job waits. If it is the first of its line, those after it may not delay
        it.
        """
        is_enough = len(self._waiting) >= self._most_waiting
        if is_enough or line in self._waiting_lines or not self._may_reserve(job):
            return
        self._waiting_lines.add(line)
        self._waiting.append(job)

    def _may_start(self, job: LiveJob, rank: Rank) -> tuple[Placement, ...] | None:
        if not self._waiting:
            return self._fits(job)
        return self._backfill(job, rank)

    def _heads_before(self, rank: Rank | None) -> list[LiveJob]:
        if rank is not None:
            return self._waiting
        others = [
            job
            for job in heads_in_turn(self._view, self._now)
            if job not in self._waiting and self._may_reserve(job)
        ]
        return [*self._waiting, *others][: self._most_waiting]

    def _submit(self) -> None:
        dispatch = self._dispatch()
        order = fair_order(self._view, self._now)
        while (line := order.next()) is not None:
            job = self._submit_one_of(line, dispatch)
            if job is None:
                order.drop()
            else:
                order.charge_for(self._view, job)

    def _submit_one_of(self, line: ShareKey, dispatch: Dispatch) -> LiveJob | None:
        """Submit the first job of the line that can be."""
        ranked = self._view.queue.lines.get(line, [])
        position = self._offered.get(line, 0)
        while position < len(ranked):
            job = self._submit_one(ranked[position][1], dispatch)
            if job is not None:
                self._offered[line] = position
                return job
            position += 1
        return None


def _replace(
    ranked: RankedLine, position: int, rank: Rank | None, bucket: Bucket
) -> None:
    """The bucket has another head now, at this rank; None if it is empty."""
    del ranked[position]
    if rank is not None:
        insort(ranked, (rank, bucket))
