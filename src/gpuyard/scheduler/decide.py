"""Deciding: what to do now, and when to look again though nothing happened.

Actions are tentative: they stand in the view at once, so that the next decision counts them. Turn each into an event
and `observe` that, which makes it firm, or `undo` it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.placement import place
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.queue import LiveJob, next_ageing
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.view import Action, Fail, Start, View

DEPENDENCY_FAILED = "dependency_failed"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, in order; and when (UTC seconds) time alone could change the answer, None if it cannot."""

    actions: tuple[Action, ...]
    wake_at: float | None


def decide(view: View, now: float, policy: Policy) -> Decision:
    """What `view` calls for at `now` (UTC seconds). Looks at the heads of the queue's lanes, never at all jobs."""
    view.wake(now, policy.retry_max_s)
    view.forget_ended()
    failed = [_fail(view, child, parent) for child, parent in sorted(view.doomed.items())]
    started, waiting = _start_heads(view, now, policy)
    return Decision((*failed, *started), _wake_at(view, waiting, now, policy))


def undo(view: View, action: Action) -> None:
    """Take a tentative action back: the job stands where it stood. Nothing changes when it is firm or gone."""
    if view.tentative.get(action.job_id) == action:
        job = view.jobs[action.job_id]
        view.withdraw(job)
        view.file(job)


def _start_heads(view: View, now: float, policy: Policy) -> tuple[list[Start], list[LiveJob]]:
    """Start what can start, in order; also the heads that must wait. Room only shrinks, so what failed once is full."""
    started: list[Start] = []
    waiting: list[LiveJob] = []
    full: set[Shape] = set()
    reservations = Reservations(view, now, policy)
    for job in view.queue.heads(now, policy.ageing_s):
        placements = None if job.shape in full else place(view, job.shape)
        if placements is None:
            full.add(job.shape)
        elif waiting:
            placements = reservations.backfill(job, waiting)
        if placements is None:
            waiting.append(job)
        else:
            started.append(_start(view, job, placements))
            reservations.take(job, placements)
    return started, waiting


def _start(view: View, job: LiveJob, placements: tuple[Placement, ...]) -> Start:
    action = Start(job.id, placements)
    view.act(job, action)
    return action


def _fail(view: View, child: str, parent: str) -> Fail:
    message = f"It depends on {parent}, which ended {view.ended[parent]}."
    action = Fail(child, DEPENDENCY_FAILED, message)
    view.act(view.jobs[child], action)
    return action


def _wake_at(view: View, waiting: Sequence[LiveJob], now: float, policy: Policy) -> float | None:
    # The first in order gains nothing by ageing, and jobs behind a head none before it; ends come as events.
    times = [next_ageing(job, now, policy.ageing_s) for job in waiting[1:]]
    delayed = view.delayed.first()
    if delayed is not None:
        times.append(delayed[0])
    soonest = min(times, default=math.inf)
    return soonest if soonest < math.inf else None
