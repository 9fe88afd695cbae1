"""Deciding: what to do now, and when to look again though nothing happened.

Actions are tentative: they stand in the view at once, so that the next decision counts them. Turn each into an event
and `observe` that, which makes it firm, or `undo` it.

Work follows what changed. Without a change there is none. Shapes that fit nowhere are not tried until something is
freed on a node that could take them; of the others, lanes are tried in the order of the line, and what was refused
once is refused to all who ask for more.
"""

import heapq
import math
from dataclasses import dataclass, field, replace

from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.fitting import allowed, fit
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.placement import place
from gpuyard.scheduler.policy import Order, Policy
from gpuyard.scheduler.preemption import Preemption
from gpuyard.scheduler.queue import lane_of
from gpuyard.scheduler.ranking import Rank, Ranking
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.view import Action, Fail, Preempt, Start, View

DEPENDENCY_FAILED = "dependency_failed"
MANY_FREED = 64
"""When more nodes than this have room, every shape is tried anew instead of asking which could matter."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, in order; and when (UTC seconds) time alone could change the answer, None if it cannot."""

    actions: tuple[Action, ...]
    wake_at: float | None


def decide(view: View, now: float, policy: Policy) -> Decision:
    """What `view` calls for at `now` (UTC seconds). Looks at the heads of the queue's lanes, never at all jobs."""
    if view.settled is not None:
        revision, under, since, until = view.settled
        if revision == view.revision and under == policy and since <= now < (math.inf if until is None else until):
            return Decision((), until)
    view.wake(now, policy.retry_max_s)
    view.forget_ended()
    failed = [_fail(view, child, parent) for child, parent in sorted(view.doomed.items())]
    ranking = Ranking(policy, view.learning)
    learned = ranking.learned()
    view.queue.refresh(ranking, now, learned)
    view.victims.refresh(view.jobs, ranking, policy, now, learned)
    started = _Line(view, now, policy, ranking).start()
    preempted = Preemption(view, now, policy, ranking).plan()
    actions = (*failed, *started, *preempted)
    waiting = view.victims.next_change() if view.queue.line else None
    wake_at = _soonest(view.delayed.first(), view.queue.next_ageing(), waiting)
    view.settled = None if actions else (view.revision, policy, now, wake_at)
    return Decision(actions, wake_at)


def undo(view: View, action: Action) -> None:
    """Take a tentative action back: the job stands where it stood. Nothing changes when it is firm or gone."""
    if isinstance(action, Preempt):
        view.spare(action)
    elif view.tentative.get(action.job_id) == action:
        job = view.jobs[action.job_id]
        view.withdraw(job)
        view.file(job)


class _Line:
    """The line of one decision: who can start does, in order."""

    def __init__(self, view: View, now: float, policy: Policy, ranking: Ranking) -> None:
        self._ranking = ranking
        self._view, self._now, self._policy = view, now, policy
        self._reservations = Reservations(view, now, policy)
        self._refused = _Refused()
        self._started: list[Start] = []

    def start(self) -> list[Start]:
        """Start what can start. Room only shrinks meanwhile, so what failed once is full."""
        view = self._view
        _reopen(view)
        self._keep_promises()
        if self._policy.order is Order.FCFS:
            self._start_first()
        else:
            self._start_any()
        view.index.freed.clear()
        return self._started

    def _keep_promises(self) -> None:
        """Start the jobs for which room was made; hold what is still being freed for the others."""
        view = self._view
        for job_id, promise in list(view.promises.items()):
            job = view.jobs[job_id]
            if all(_has_room(view, share, job.shape) for share in promise.placements):
                self._take(job, promise.placements)
            elif promise.attempts & (view.leaving | view.attempts.keys()):
                self._reservations.hold(job, promise.placements)
            else:
                del view.promises[job_id]

    def _start_first(self) -> None:
        queue = self._view.queue
        while queue.line:
            job = queue.head(queue.line[0][1])
            placements = self._fits(job) if job else None
            if job is None or placements is None:
                break
            self._take(job, placements)

    def _start_any(self) -> None:
        view, queue = self._view, self._view.queue
        front = [(queue.rank_of(lane), lane) for shape in queue.shapes() if shape not in view.closed
                 for lane in queue.lanes(shape)]  # fmt: skip
        heapq.heapify(front)
        while front:
            rank, lane = heapq.heappop(front)
            job = queue.head(lane)
            placements = self._may_start(job, rank) if job else None
            if job is not None and placements is not None:
                self._take(job, placements)
                if queue.head(lane):
                    heapq.heappush(front, (queue.rank_of(lane), lane))

    def _fits(self, job: LiveJob) -> tuple[Placement, ...] | None:
        view = self._view
        if job.shape in view.closed:
            return None
        placements = place(view, job.shape)
        if placements is None:
            view.closed.add(job.shape)
        elif view.promises:
            placements = place(view, job.shape, self._reservations.spaces(math.inf))
        return placements

    def _may_start(self, job: LiveJob, rank: Rank) -> tuple[Placement, ...] | None:
        """Where the job can start without delaying whoever stands before it."""
        view = self._view
        if job.shape in view.closed:
            return None
        end = self._reservations.surely_ends(job.id)
        # Who can be asked to leave may pass: the ones before it take its place when it is worth that.
        passes = self._policy.order is Order.GITTINS and job.preemptible
        first = passes or view.queue.line[0][0] >= rank
        if not first and self._refused.covers(job.shape, end):
            return None
        placements = self._fits(job)
        if placements is None or first:
            return placements
        placements = self._reservations.backfill(job, self._before(rank))
        if placements is None:
            self._refused.add(job.shape, end)
        return placements

    def _before(self, rank: Rank) -> list[LiveJob]:
        """The first heads that wait before `rank`, as many as may hold reservations and some more."""
        queue, found = self._view.queue, list[LiveJob]()
        for other, lane in queue.line:
            if other >= rank or len(found) >= 4 * self._policy.reserved_heads:
                break
            if (head := queue.head(lane)) and (head.shape.gpu_uuids or self._view.index.able(head.shape)):
                found.append(head)
        return found

    def _take(self, job: LiveJob, placements: tuple[Placement, ...]) -> None:
        view = self._view
        lane = lane_of(job)
        action = Start(job.id, placements)
        view.promises.pop(job.id, None)
        view.act(job, action)
        self._reservations.take(job, placements)
        view.queue.rerank(lane, self._ranking, self._now)
        self._started.append(action)


@dataclass(slots=True)
class _Refused:
    """What was refused in this decision: nobody who asks for as much or more, for as long or longer, need try."""

    _needs: dict[Shape, list[tuple[int, float, float, float]]] = field(
        default_factory=dict[Shape, list[tuple[int, float, float, float]]]
    )

    def covers(self, shape: Shape, end: float) -> bool:
        """True when less than this was refused."""
        return any(
            gpus <= shape.gpus and cpus <= shape.cpus and memory_gb <= shape.memory_gb and until <= end
            for gpus, cpus, memory_gb, until in self._needs.get(_constraints(shape), ())
        )

    def add(self, shape: Shape, end: float) -> None:
        """This was refused."""
        self._needs.setdefault(_constraints(shape), []).append((shape.gpus, shape.cpus, shape.memory_gb, end))


def _constraints(shape: Shape) -> Shape:
    """All but the amounts."""
    return replace(shape, gpus=0, cpus=0.0, memory_gb=0.0)


def _reopen(view: View) -> None:
    """Shapes that may fit where something was freed are tried again; those nobody asks for are forgotten."""
    freed = view.index.freed
    if len(view.closed) > 2 * len(list(view.queue.shapes())) + 64:
        view.closed.intersection_update(view.queue.shapes())
    if len(freed) > MANY_FREED:
        view.closed.clear()
    elif freed and view.closed:
        nodes = [node for node_id in freed if (node := view.nodes[node_id]).online]
        for shape in [shape for shape in view.closed if any(_takes(node, shape) for node in nodes)]:
            view.closed.discard(shape)


def _takes(node: Node, shape: Shape) -> bool:
    return allowed(node, shape) and fit(node.free, shape) is not None


def _has_room(view: View, share: Placement, shape: Shape) -> bool:
    """True when exactly this share is free."""
    node = view.nodes[share.node_id]
    free = {device.uuid for device in node.free.devices}
    return (
        node.online
        and free.issuperset(share.gpu_uuids)
        and fit(replace(node.free, devices=()), replace(shape, gpus=0)) is not None
    )


def _fail(view: View, child: str, parent: str) -> Fail:
    message = f"It depends on {parent}, which ended {view.ended[parent]}."
    action = Fail(child, DEPENDENCY_FAILED, message)
    view.act(view.jobs[child], action)
    return action


def _soonest(delayed: tuple[float, str] | None, *times: float | None) -> float | None:
    found = [at for at in (delayed[0] if delayed else None, *times) if at is not None]
    return min(found, default=None)
