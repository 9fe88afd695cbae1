"""The start pass: starts, in one decision, all jobs that can start.

Shapes that fit nowhere are tried again only when a node that could take them has more
room. Of the other shapes, the heads of buckets are tried in order. A refusal also holds
for every job that asks for at least as much.
"""

import math
from bisect import insort

from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.scheduler.actions import Start, Withdraw
from gpuyard.scheduler.attempts import LiveAttempt, Promise
from gpuyard.scheduler.external_queues import Dispatch
from gpuyard.scheduler.fitting import SLACK, may_use
from gpuyard.scheduler.freed_rooms import FreedRooms
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.lending import Lending, least_of, lending, with_room
from gpuyard.scheduler.placement import place
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.queue import Bucket, bucket_of
from gpuyard.scheduler.ranking import Rank, Ranking
from gpuyard.scheduler.refused import Ids, Refusals
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.reserved_pass import starts
from gpuyard.scheduler.view import View

_IN_EXTERNAL_QUEUE = (AttemptState.SENT, AttemptState.PENDING)
MANY_OPEN = 1000
"""If more shapes than this are open, it is asked whether there is room for any once
`MANY_TRIED` heads have found none: of ten thousand new shapes on full nodes, not each
is tried.
"""
MANY_TRIED = 64
MANY_FREED = 64
"""If more nodes than this have more room, all closed shapes are tried again, because to
find those that fit would take longer.
"""


class StartPass:
    """Starts, in one decision, all jobs that can start."""

    def __init__(
        self, view: View, now: float, policy: Policy, ranking: Ranking
    ) -> None:
        self._ranking = ranking
        self._view = view
        self._now = now
        self._policy = policy
        self._reservations = Reservations(view, now, policy)
        self._refused = Refusals()
        # Open shapes that no refusal of this pass rules out.
        self._hopeful: set[Shape] = set()
        # Set while all room that is left is reserved in advance; and then the hopeful
        # shapes of which not only jobs may start for whom something is reserved.
        self._lending: Lending | None = None
        self._for_all: set[Shape] = set()
        # The advance reservations that keep room which some open shape may fit into;
        # None until somebody asks. Room only shrinks, so they only become fewer.
        self._keeping: Ids | None = None
        self._actions: list[Start | Withdraw] = []

    def start(self) -> list[Start | Withdraw]:
        """Start what can start, and withdraw attempts that can start here or may not
        stay where they wait.

        Room only shrinks meanwhile, so what was refused once stays refused.
        """
        view = self._view
        _reopen(view)
        # A few in each decision, so that no decision has many.
        view.release_times.refresh(view.nodes, self._reservations.latest_end)
        view.external_queues.recheck_waiting |= bool(view.index.freed)
        self._keep_promises()
        for job, placements in starts(view, self._now, self._reservations):
            self._take(job, placements)
        self._start_in_order()
        if view.external_queues.by_name:
            self._withdraw()
            self._submit()
        view.index.freed.clear()
        view.queue.mark_seen()
        return self._actions

    def _start_in_order(self) -> None:
        if self._policy.order is QueueOrder.FCFS:
            self._start_first()
        else:
            self._start_any()

    # --- external queues ---

    def _waiting_attempts(self) -> list[LiveAttempt]:
        """The attempts in external queues; tentative starts have none yet."""
        view = self._view
        return [
            view.attempts[holder]
            for holder in view.external_queues.waiting
            if holder in view.attempts
        ]

    def _submit(self) -> None:
        """Submit jobs that found no room here to external queues."""
        dispatch = self._dispatch()
        for _, bucket in list(self._view.queue.ranked):
            while self._submit_one(bucket, dispatch):
                pass

    def _dispatch(self) -> Dispatch:
        view = self._view
        return Dispatch(
            view.external_queues,
            view.jobs,
            {attempt.id: attempt.job_id for attempt in self._waiting_attempts()},
            self._now,
            self._policy,
            view.learning,
        )

    def _submit_one(self, bucket: Bucket, dispatch: Dispatch) -> LiveJob | None:
        """Submit the head of the bucket to an external queue; None if it cannot be."""
        if not dispatch.may_take(bucket[1]):
            return None
        view = self._view
        job = view.queue.head(bucket)
        if job is None or job.id in view.promises or not view.usage.allows(job):
            return None
        placements = dispatch.place(job)
        if placements is not None:
            self._take(job, placements)
        return job if placements is not None else None

    def _withdraw(self) -> None:
        """Take back attempts from external queues: those that can start here without
        delaying the first waiting jobs, and those whose offer is in quarantine.
        """
        view = self._view
        if not view.external_queues.recheck_waiting:
            return
        view.external_queues.recheck_waiting = False
        heads = self._heads_before(None)
        has_quarantines = bool(view.external_queues.trust.quarantined)
        for attempt in self._waiting_attempts():
            job = view.jobs.get(attempt.job_id)
            if job and job.shape.model and not has_quarantines:
                continue  # it can start nowhere else, and thousands may wait
            if attempt.state is AttemptState.INTENDED:
                # It cannot be withdrawn before it has been submitted.
                view.external_queues.recheck_waiting = True
            elif job and self._may_withdraw(attempt):
                placements = None
                if not job.shape.model:
                    placements = self._reservations.backfill(job, heads)
                if placements:
                    self._reservations.hold(job, placements)
                if placements or self._is_quarantined(attempt, job):
                    action = Withdraw(job.id, attempt.id, placements or ())
                    view.apply_withdrawal(action)
                    self._actions.append(action)

    def _may_withdraw(self, attempt: LiveAttempt) -> bool:
        is_waiting = attempt.state in _IN_EXTERNAL_QUEUE
        is_leaving = attempt.id in self._view.leaving
        return is_waiting and not is_leaving and not self._is_unreachable(attempt)

    def _is_quarantined(self, attempt: LiveAttempt, job: LiveJob) -> bool:
        table = self._view.external_queues
        offer = table.offer(attempt.offer)
        return offer is not None and bool(table.quarantine(offer, job.shape))

    def _is_unreachable(self, attempt: LiveAttempt) -> bool:
        """True if the external queue of the attempt has a problem."""
        queue = self._view.external_queues.by_name.get(attempt.provider)
        return queue is not None and bool(queue.problem)

    # --- promises ---

    def _keep_promises(self) -> None:
        """Start jobs whose promised places are free, and hold the places of the others.

        A promise that cannot be kept any more is dropped.
        """
        view = self._view
        for job_id, promise in list(view.promises.items()):
            job = view.jobs[job_id]
            if not self._is_valid(promise, job):
                view.break_promise(job_id)
            elif job.state is not JobState.QUEUED:
                # Its attempt still is in an external queue.
                self._reservations.hold(job, promise.placements)
            elif all(_is_free(view, share, job.shape) for share in promise.placements):
                self._take(job, promise.placements)
            elif self._is_being_freed(promise):
                self._reservations.hold(job, promise.placements)
            else:
                view.break_promise(job_id)

    def _is_being_freed(self, promise: Promise) -> bool:
        """True while attempts leave the places, or GPUs there cool."""
        view = self._view
        if promise.attempts & (view.leaving | view.attempts.keys()):
            return True
        return any(view.cools(share.gpu_uuids) for share in promise.placements)

    def _is_valid(self, promise: Promise, job: LiveJob) -> bool:
        """False if the job may not use the places, or if it is not known when it
        could.
        """
        view = self._view
        if not all(_may_use(view, share, job.shape) for share in promise.placements):
            return False
        if job.state is JobState.QUEUED:
            # It is not in the queue if it has failed since and waits for a retry.
            return job.id in view.queue
        return not any(
            self._is_unreachable(view.attempts[key])
            for key in promise.attempts
            if key in view.attempts
        )

    # --- starts ---

    def _start_first(self) -> None:
        """Start jobs in strict order. Prompts delay nobody: they take no place."""
        while True:
            job = self._first()
            placements = self._fits(job) if job else None
            if job is None or placements is None:
                break
            self._take(job, placements)

    def _first(self) -> LiveJob | None:
        """The first job that asks for a place, and that no quota holds back."""
        queue = self._view.queue
        for _, bucket in queue.ranked:
            job = None if bucket[1].model else queue.head(bucket)
            if job is not None and self._view.usage.allows(job):
                return job
        return None

    def _start_any(self) -> None:
        """Try the heads of all buckets; only those of new or changed buckets if nothing
        has changed for the others.
        """
        view = self._view
        queue = view.queue
        self._hopeful = set(queue.open)
        # To try all is faster than to sort many.
        are_many = len(queue.fresh) > max(MANY_TRIED, len(queue.ranked) / 4)
        retry_all = bool(view.index.freed) or queue.retry_all or are_many
        heads = queue.ranked if retry_all else queue.new_heads()
        is_live = retry_all
        least = None
        position = 0
        may_lend = retry_all and view.advance.coming and queue.open
        if may_lend and self._close_if_full(least_of(queue.open)):
            # Jobs that started on what is reserved for them have used up the room.
            return
        while position < len(heads) and (self._hopeful or queue.preemptible):
            rank, bucket = heads[position]
            if is_live and self._is_for_holders_only():
                # The others may be thousands.
                heads = queue.reserved.from_rank(rank)
                is_live = False
                position = 0
                continue
            job = view.jobs[rank[-1]]
            placements = self._try(job, rank)
            if placements is None:
                position += 1
                is_time = position == MANY_TRIED and len(queue.open) > MANY_OPEN
                if is_time and self._close_if_full(least_of(queue.open)):
                    break
                continue
            # `queue.ranked` has the next job of the bucket now, here or further down.
            self._take(job, placements)
            if not is_live:
                self._put_next_head(heads, position, bucket)
            least = least or least_of(queue.open | {bucket[1]})
            if self._close_if_full(least):
                # Most passes end here: the freed room is used up, so thousands of
                # buckets need not be tried.
                break

    def _put_next_head(
        self, heads: list[tuple[Rank, Bucket]], position: int, bucket: Bucket
    ) -> None:
        """In place of a head that has started, put the next job of its bucket where its
        rank belongs.
        """
        queue = self._view.queue
        del heads[position]
        if queue.head(bucket):
            insort(heads, (queue.rank_of(bucket), bucket))

    def _close_if_full(self, least: Shape) -> bool:
        """Close all open shapes if no node has room for `least`, the least that any of
        them asks for; returns whether that is so.
        """
        is_full = not self._view.index.has_room(least)
        if is_full:
            self._view.queue.close_all()
        elif self._view.advance.coming:
            self._lend(lending(self._view, least, self._now, self._policy))
        return is_full

    def _lend(self, lent: Lending | None) -> None:
        """From now on, this is lent."""
        if lent is not None and lent != self._lending:
            queue = self._view.queue
            self._for_all = lent.for_all(queue, self._hopeful)
            for_holders = self._hopeful & queue.reserved_shapes.keys()
            self._hopeful = self._for_all | for_holders
        self._lending = lent

    def _is_for_holders_only(self) -> bool:
        """True if only jobs may still start for whom something is reserved."""
        if self._lending is None or self._for_all:
            return False
        queue = self._view.queue
        return queue.preemptible_shapes.keys().isdisjoint(queue.open)

    def _give_up(self, shape: Shape) -> None:
        """No job of the shape can start any more."""
        self._hopeful.discard(shape)
        self._for_all.discard(shape)

    def _try(self, job: LiveJob, rank: Rank) -> tuple[Placement, ...] | None:
        """Where the job can start; None if nowhere. Most jobs without a chance cost
        only a look-up, because there may be thousands.
        """
        queue = self._view.queue
        # A preemptible job may start even where reservations keep others out.
        may_pass = bool(queue.preemptible) and job.shape in queue.open
        if not self._has_hope(job.shape) and not may_pass:
            return None
        if self._lending is not None and not self._lending.may_start(job):
            return None
        if not self._view.usage.allows(job):
            return None
        return self._may_start(job, rank)

    def _fits(self, job: LiveJob) -> tuple[Placement, ...] | None:
        """Where the job fits beside what is promised."""
        view = self._view
        if job.shape in view.queue.closed:
            return None
        placements = place(view, job.shape)
        if placements is None:
            view.queue.close(job.shape)
            self._give_up(job.shape)
        elif view.promises or view.advance.coming:
            spaces = self._reservations.spaces(job, math.inf)
            placements = place(view, job.shape, spaces)
            if placements is None and view.advance.coming:
                self._refused.add(job.shape, -math.inf, self._kept_out_by(job))
        return placements

    def _may_start(self, job: LiveJob, rank: Rank) -> tuple[Placement, ...] | None:
        """Where the job can start without delaying the jobs before it."""
        # A preemptible job may pass the jobs before it: they can displace it.
        passes = self._policy.order is QueueOrder.GITTINS and job.preemptible
        is_first = self._view.queue.ranked[0][0] >= rank
        if passes or is_first:
            return self._fits(job)
        return self._backfill(job, rank)

    def _backfill(self, job: LiveJob, rank: Rank) -> tuple[Placement, ...] | None:
        """Where the job can start without delaying the first ones before it."""
        end = self._reservations.latest_end(job.id)
        kept_out_by = self._kept_out_by(job)
        is_refused = self._refused.covers(job.shape, end, kept_out_by)
        if is_refused or self._fits(job) is None:
            return None
        placements = self._reservations.backfill(job, self._heads_before(rank))
        if placements is None:
            until = self._reservations.binds_from(end)
            self._refused.add(job.shape, until, kept_out_by)
        return placements

    def _kept_out_by(self, job: LiveJob) -> Ids:
        """The ids of the advance reservations that keep room from the job."""
        keeping = self._keeping_room()
        if not keeping:
            return keeping
        kept_out_by = self._reservations.kept_out_by(job)
        return frozenset(one.id for one in kept_out_by if one.id in keeping)

    def _keeping_room(self) -> Ids:
        """The ids of the advance reservations that keep room."""
        view = self._view
        if self._keeping is None:
            open_shapes = view.queue.open if view.advance.coming else ()
            least = least_of(open_shapes) if open_shapes else None
            self._keeping = with_room(view, least) if least else frozenset()
        return self._keeping

    def _kept_out_all(self, shape: Shape, end: float) -> Ids | None:
        """The ids of those that keep room from all jobs of the shape, none of which
        ends before `end`; None if some may use what is reserved.
        """
        keeping = self._keeping_room()
        if not keeping:
            return keeping
        queue = self._view.queue
        if shape in queue.reserved_shapes or shape in queue.preemptible_shapes:
            return None
        until = min(end, self._now + self._policy.reservation_notice_s)
        coming = self._view.advance.coming
        return frozenset(
            one.id for one in coming if one.begins_at < until and one.id in keeping
        )

    def _has_hope(self, shape: Shape) -> bool:
        """False if not even the shortest job of the shape can start beside the
        reservations.
        """
        if shape not in self._hopeful:
            return False
        shortest_s = self._view.queue.shortest(shape)
        end = self._now + shortest_s + self._policy.end_margin_s
        kept_out_by = self._kept_out_all(shape, end)
        if kept_out_by is None or not self._refused.covers(shape, end, kept_out_by):
            return True
        self._give_up(shape)
        return False

    def _heads_before(self, rank: Rank | None) -> list[LiveJob]:
        """The first heads before `rank` (None: of all): as many as can hold
        reservations, and some more.
        """
        view = self._view
        most = 4 * self._policy.reserved_heads
        found = list[LiveJob]()
        for head_rank, bucket in view.queue.ranked:
            is_before = rank is None or head_rank < rank
            if not is_before or len(found) >= most:
                break
            head = view.queue.head(bucket)
            if head is not None and self._may_reserve(head):
                found.append(head)
        return found

    def _may_reserve(self, job: LiveJob) -> bool:
        """True if places may be reserved for the job."""
        # A prompt takes no place, and who may not start needs none.
        if job.shape.model or not self._view.usage.allows(job):
            return False
        index = self._view.index
        return bool(job.shape.gpu_uuids or index.suitable_groups(job.shape))

    def _take(self, job: LiveJob, placements: tuple[Placement, ...]) -> None:
        """Start the job at `placements`."""
        view = self._view
        bucket = bucket_of(job)
        action = Start(job.id, placements)
        view.promises.pop(job.id, None)
        view.apply_tentatively(job, action)
        self._reservations.take(job, placements)
        view.queue.rerank(bucket, self._ranking, self._now)
        self._actions.append(action)


def _reopen(view: View) -> None:
    """Open the shapes that may fit where something was freed."""
    view.index.refresh()
    freed = view.index.freed
    closed = view.queue.closed
    if len(freed) > MANY_FREED:
        view.queue.reopen(closed)
    elif freed and closed:
        rooms = FreedRooms(view.nodes[node_id] for node_id in freed)
        view.queue.reopen(rooms.fitting(closed))


def _may_use(view: View, share: Placement, shape: Shape) -> bool:
    """True if the job may use the share's node and GPUs."""
    node = view.nodes[share.node_id]
    if not may_use(node, shape):
        return False
    if shape.quarantined:
        return True
    devices = [node.devices[uuid] for uuid in share.gpu_uuids if uuid in node.devices]
    return not any(device.quarantine for device in devices)


def _is_free(view: View, share: Placement, shape: Shape) -> bool:
    """True if exactly this share of the shape is free."""
    node = view.nodes[share.node_id]
    if not node.online:
        return False
    free_uuids = {device.uuid for device in node.free.devices}
    has_amounts = (
        node.free.cpus + SLACK >= shape.cpus
        and node.free.memory_gb + SLACK >= shape.memory_gb
    )
    return has_amounts and free_uuids.issuperset(share.gpu_uuids)
