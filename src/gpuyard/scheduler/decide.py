"""Deciding: what to do now, and when to look again though nothing happened.

Actions are tentative: they stand in the view at once, so that the next decision counts them. Turn each into an event
and `observe` that, which makes it firm, or `undo` it.

Work follows what changed. Without a change there is none. Shapes that fit nowhere are not tried until something is
freed on a node that could take them; of the others, lanes are tried in the order of the line, and what was refused
once is refused to all who ask for more.
"""

import math
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.scheduler.engines import Dispatch
from gpuyard.scheduler.fitting import fit, may_use
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.placement import place
from gpuyard.scheduler.policy import Order, Policy
from gpuyard.scheduler.preemption import Preemption
from gpuyard.scheduler.queue import lane_of
from gpuyard.scheduler.ranking import Rank, Ranking
from gpuyard.scheduler.reservation import Reservations, outlasts
from gpuyard.scheduler.view import Action, Fail, Preempt, Recall, Start, View

_IN_QUEUE = (AttemptState.SENT, AttemptState.PENDING)
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
    view.heed_trust(now)
    view.wake(now, policy.retry_max_s)
    view.forget_ended()
    failed = [_fail(view, child, parent) for child, parent in sorted(view.doomed.items())]
    ranking = Ranking(policy, view.learning)
    learned = ranking.learned()
    view.queue.refresh(ranking, now, learned)
    view.victims.refresh(view.jobs, ranking, policy, now, learned)
    # Nobody starts before all that came are ranked, nor is anybody asked to leave on the strength of what is half
    # learned: the next decision follows at once.
    started = [] if view.queue.unranked else _Line(view, now, policy, ranking).start()
    behind = view.queue.behind or (bool(view.queue.line) and view.victims.behind)
    preempted = [] if behind else Preemption(view, now, policy, ranking).plan()
    actions = (*failed, *started, *preempted)
    waiting = [view.victims.next_change(), view.engines.next_try(now)] if view.queue.line else []
    waiting.append(view.engines.trust.next_change())
    wake_at = _soonest(view.delayed.first(), view.queue.next_ageing(), *waiting, now if behind else None)
    view.settled = None if actions else (view.revision, policy, now, wake_at)
    return Decision(actions, wake_at)


def undo(view: View, action: Action) -> None:
    """Take a tentative action back: the job stands where it stood. Nothing changes when it is firm or gone."""
    if isinstance(action, Preempt):
        view.spare(action)
    elif isinstance(action, Recall):
        view.keep_there(action)
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
        # Shapes that may yet start without preempting anybody.
        self._hopeful: set[Shape] = set()
        self._started: list[Start | Recall] = []

    def start(self) -> list[Start | Recall]:
        """Start what can start. Room only shrinks meanwhile, so what failed once is full."""
        view = self._view
        _reopen(view)
        view.engines.missed |= bool(view.index.freed)
        self._keep_promises()
        if self._policy.order is Order.FCFS:
            self._start_first()
        else:
            self._start_any()
        if view.engines.known:
            self._recall()
            self._send()
        view.index.freed.clear()
        view.queue.seen()
        return self._started

    def _send(self) -> None:
        """Send who found no room here to an engine that has some."""
        view = self._view
        waiting = {key: view.attempts[key].job_id for key in view.engines.waiting if key in view.attempts}
        dispatch = Dispatch(view.engines, view.jobs, waiting, self._now, self._policy.strategy, view.learning)
        for _, lane in list(view.queue.line):
            while (job := view.queue.head(lane)) and job.id not in view.promises:
                placements = dispatch.place(job)
                if placements is None:
                    break
                self._take(job, placements)

    def _recall(self) -> None:
        """Take back who waits at an engine and could start here, without delaying the first of those in line here; and
        who waits at what is in quarantine."""
        view = self._view
        if not view.engines.missed:
            return
        view.engines.missed = False
        heads = self._before(None)
        for attempt in [view.attempts[key] for key in view.engines.waiting if key in view.attempts]:
            job = view.jobs.get(attempt.job_id)
            if attempt.state is AttemptState.INTENDED:
                view.engines.missed = True  # it is on its way, and cannot be had before it is there
            elif (
                job and attempt.id not in view.leaving and attempt.state in _IN_QUEUE and not self._is_away(attempt.id)
            ):
                placements = self._reservations.backfill(job, heads) or ()
                offer = view.engines.offer(attempt.offer)
                if placements or (offer and view.engines.quarantine(offer, job.shape)):
                    action = Recall(job.id, attempt.id, placements)
                    view.take_back(action)
                    if placements:
                        self._reservations.hold(job, placements)
                    self._started.append(action)

    def _is_away(self, attempt_id: str) -> bool:
        """The engine that has the attempt does not answer."""
        attempt = self._view.attempts.get(attempt_id)
        engine = self._view.engines.known.get(attempt.provider) if attempt else None
        return engine is not None and bool(engine.problem)

    def _keep_promises(self) -> None:
        """Start the jobs for which room was made; hold what is still being freed for the others."""
        view = self._view
        for job_id, promise in list(view.promises.items()):
            job = view.jobs[job_id]
            if not all(_is_open(view, share, job.shape) for share in promise.placements):
                view.break_promise(job_id)
            elif job.state is not JobState.QUEUED:  # an engine still has it
                if any(self._is_away(key) for key in promise.attempts):
                    view.break_promise(job_id)  # when it lets go of it nobody knows
                else:
                    self._reservations.hold(job, promise.placements)
            elif job_id not in view.queue:
                view.break_promise(job_id)  # it has failed since, and is put off
            elif all(_has_room(view, share, job.shape) for share in promise.placements):
                self._take(job, promise.placements)
            elif promise.attempts & (view.leaving | view.attempts.keys()):
                self._reservations.hold(job, promise.placements)
            else:
                view.break_promise(job_id)

    def _start_first(self) -> None:
        queue = self._view.queue
        while queue.line:
            job = queue.head(queue.line[0][1])
            placements = self._fits(job) if job else None
            if job is None or placements is None:
                break
            self._take(job, placements)

    def _start_any(self) -> None:
        """Try the line, or of it what is new when nothing has changed for the others."""
        view, queue, least, place = self._view, self._view.queue, None, 0
        self._hopeful = set(queue.open)
        everyone = bool(view.index.freed) or queue.shuffled
        line = queue.line if everyone else queue.new_heads()
        while place < len(line) and (self._hopeful or queue.preemptible):
            rank, lane = line[place]
            # Whoever has no chance costs a look-up: there may be thousands.
            tried = self._has_hope(lane[1]) or (queue.preemptible and lane[1] in queue.open)
            placements = self._may_start(view.jobs[rank[-1]], rank) if tried else None
            if placements is None:
                place += 1
                continue
            # The next of its lane stands in the line now, here or further down.
            self._take(view.jobs[rank[-1]], placements)
            if not everyone:
                del line[place]
                if queue.head(lane):
                    insort(line, (queue.rank_of(lane), lane))
            least = least or _least(queue.open | {lane[1]})
            if not view.index.has_room(least):
                for shape in list(queue.open):
                    queue.close(shape)
                break  # most starts end here: what was freed is taken, and thousands need not be tried

    def _fits(self, job: LiveJob) -> tuple[Placement, ...] | None:
        view = self._view
        if job.shape in view.queue.closed:
            return None
        placements = place(view, job.shape)
        if placements is None:
            view.queue.close(job.shape)
            self._hopeful.discard(job.shape)
        elif view.promises:
            placements = place(view, job.shape, self._reservations.spaces(math.inf))
        return placements

    def _may_start(self, job: LiveJob, rank: Rank) -> tuple[Placement, ...] | None:
        """Where the job can start without delaying whoever stands before it."""
        # Who can be asked to leave may pass: the ones before it take its place when it is worth that.
        passes = self._policy.order is Order.GITTINS and job.preemptible
        if passes or self._view.queue.line[0][0] >= rank:
            return self._fits(job)
        end = self._reservations.surely_ends(job.id)
        if self._refused.covers(job.shape, end) or self._fits(job) is None:
            return None
        placements = self._reservations.backfill(job, self._before(rank))
        if placements is None:
            self._refused.add(job.shape, self._reservations.binds_from(end))
        return placements

    def _has_hope(self, shape: Shape) -> bool:
        """False when not even the shortest job of the shape can start beside what others are promised."""
        if shape not in self._hopeful:
            return False
        shortest = self._now + self._view.queue.shortest(shape) + self._policy.end_margin_s
        if self._refused.covers(shape, shortest):
            self._hopeful.discard(shape)
            return False
        return True

    def _before(self, rank: Rank | None) -> list[LiveJob]:
        """The first heads that wait before `rank` (None: all), as many as may hold reservations and some more."""
        queue, found = self._view.queue, list[LiveJob]()
        for other, lane in queue.line:
            if (rank is not None and other >= rank) or len(found) >= 4 * self._policy.reserved_heads:
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
    """What was refused in this decision: nobody who asks for as much or more and outlasts the same need try."""

    _needs: dict[Shape, list[tuple[int, float, float, float]]] = field(
        default_factory=dict[Shape, list[tuple[int, float, float, float]]]
    )

    def covers(self, shape: Shape, end: float) -> bool:
        """True when less than this was refused."""
        for gpus, cpus, memory_gb, until in self._needs.get(_constraints(shape), ()):
            if outlasts(end, until) and gpus <= shape.gpus and cpus <= shape.cpus and memory_gb <= shape.memory_gb:
                return True
        return False

    def add(self, shape: Shape, until: float) -> None:
        """This was refused to a job that outlasts `until`."""
        self._needs.setdefault(_constraints(shape), []).append((shape.gpus, shape.cpus, shape.memory_gb, until))


@lru_cache(maxsize=1 << 14)
def _constraints(shape: Shape) -> Shape:
    """All but the amounts."""
    return replace(shape, gpus=0, cpus=0.0, memory_gb=0.0)


def _least(shapes: Iterable[Shape]) -> Shape:
    """What every one of these asks for at least."""
    amounts = [(shape.cpus, shape.memory_gb, shape.gpus) for shape in shapes]
    cpus, memory_gb, gpus = (min(values) for values in zip(*amounts, strict=True))
    return Shape(cpus=cpus, memory_gb=memory_gb, gpus=gpus)


def _reopen(view: View) -> None:
    """Shapes that may fit where something was freed are tried again."""
    view.index.settle()
    freed, closed = view.index.freed, view.queue.closed
    if len(freed) > MANY_FREED:
        view.queue.reopen(closed)
    elif freed and closed:
        nodes = [node for node_id in freed if (node := view.nodes[node_id]).online]
        view.queue.reopen([shape for shape in closed if any(_takes(node, shape) for node in nodes)])


def _takes(node: Node, shape: Shape) -> bool:
    return may_use(node, shape) and fit(node.free, shape) is not None


def _is_open(view: View, share: Placement, shape: Shape) -> bool:
    """True when no quarantine keeps the job from this share."""
    node = view.nodes[share.node_id]
    mine = [device for uuid in share.gpu_uuids if (device := node.devices.get(uuid))]
    return may_use(node, shape) and (shape.quarantined or not any(device.quarantine for device in mine))


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
