"""Deciding: what to do now, and when to decide again even if nothing happens.

Actions are tentative: the view contains them at once, so the next decision counts them.
The controller turns each into an event, which `observe` folds, or calls `undo`.

The work depends on what has changed; without a change there is none.
"""

import math
from dataclasses import dataclass

from gpuyard.domain.reasons import Reason
from gpuyard.scheduler.actions import Action, Fail, Preempt, Start, Withdraw
from gpuyard.scheduler.advance_gpus import assign
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.preemption import Preemption
from gpuyard.scheduler.ranking import Ranking
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.share_pass import SharePass
from gpuyard.scheduler.start_pass import StartPass
from gpuyard.scheduler.take_back import MOST_AT_ONCE, take_back
from gpuyard.scheduler.view import View


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, in order. `wake_at`: when (UTC seconds) to decide again even if
    nothing happens; None for never.
    """

    actions: tuple[Action, ...]
    wake_at: float | None


def decide(view: View, now: float, policy: Policy) -> Decision:
    """The actions for `view` at `now` (UTC seconds).

    It looks at the heads of buckets, never at all jobs.
    """
    settled = _still_settled(view, now, policy)
    if settled is not None:
        return settled
    _let_time_pass(view, now, policy)
    failed = [
        _fail(view, child, parent) for child, parent in sorted(view.doomed.items())
    ]
    ranking = Ranking(policy, view.learning)
    learned = ranking.take_changed_types()
    view.queue.refresh(ranking, now, learned)
    view.victims.refresh(view.jobs, ranking, policy, now, learned)
    # Nothing starts before all new buckets are ranked, and nothing is preempted before
    # all ranks and appraisals are up to date. The next decision follows at once.
    started = list[Start | Withdraw]()
    if not view.queue.has_unranked:
        start_pass = SharePass if view.usage.by_share else StartPass
        started = start_pass(view, now, policy, ranking).start()
    has_waiting = view.queue.has_ranked
    is_unfinished = view.queue.has_outdated or (
        has_waiting and view.victims.has_outdated
    )
    preempted = list[Preempt]()
    if not is_unfinished:
        preempted = take_back(view, now, policy)
        is_unfinished = len(preempted) >= MOST_AT_ONCE
    if not is_unfinished:
        preempted += Preemption(view, now, policy, ranking).plan()
    actions = (*failed, *started, *preempted)
    wake_at = now if is_unfinished else _next_change(view, now, policy)
    view.settled = None if actions else (view.revision, policy, now, wake_at)
    return Decision(actions, wake_at)


def _still_settled(view: View, now: float, policy: Policy) -> Decision | None:
    """The last decision, if there was nothing to do and nothing has changed since."""
    if view.settled is None:
        return None
    revision, settled_policy, since, until = view.settled
    is_unchanged = revision == view.revision and settled_policy == policy
    ends_at = math.inf if until is None else until
    if is_unchanged and since <= now < ends_at:
        return Decision((), until)
    return None


def _let_time_pass(view: View, now: float, policy: Policy) -> None:
    """Bring up to date what changes with time alone."""
    view.apply_quarantines(now)
    view.end_cooling(now)
    view.release_delayed(now, policy.retry_max_s)
    view.forget_ended()
    if view.usage.look_at_month(now):
        view.queue.retry_all = True
    if view.advance.refresh(now, policy.reservation_notice_s):
        assign(view, Reservations(view, now, policy), now)
        view.queue.retry_all = True


def _next_change(view: View, now: float, policy: Policy) -> float | None:
    """When time alone next changes what can be decided; None if never."""
    changes = [view.queue.next_ageing(), view.external_queues.trust.next_change()]
    changes.append(min(view.cooling.values(), default=None))
    changes.append(view.deadlines.next_look())
    changes.append(view.advance.next_change(now, policy.reservation_notice_s))
    if view.usage.limits_months:
        changes.append(view.usage.month.ends_at)
    if view.queue.has_ranked:
        changes.append(view.victims.next_change())
        changes.append(view.external_queues.next_retry(now))
    if delayed := view.delayed.first():
        changes.append(delayed[0])
    return min((at for at in changes if at is not None), default=None)


def undo(view: View, action: Action) -> None:
    """Undo a tentative action; idempotent."""
    if isinstance(action, Preempt):
        view.undo_preemption(action)
    elif isinstance(action, Withdraw):
        view.undo_withdrawal(action)
    elif view.tentative.get(action.job_id) == action:
        job = view.jobs[action.job_id]
        view.remove_job(job)
        view.enqueue(job)


def _fail(view: View, child: str, parent: str) -> Fail:
    message = view.jobs[child].why_never(parent, view.ended[parent])
    action = Fail(child, Reason.DEPENDENCY_FAILED, message)
    view.apply_tentatively(view.jobs[child], action)
    return action
