"""Whether a job can still meet its deadline, by how long it is expected to run."""

from gpuyard.domain.deadlines import in_words
from gpuyard.domain.states import AttemptState
from gpuyard.domain.units import format_duration
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.deadlines import Told, next_look
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.view import View

# How often to look at a job of which nobody says whether it still runs.
_UNSEEN_S = 60.0


def remaining_s(
    view: View, job: LiveJob, now: float, eta_s: float | None = None
) -> float | None:
    """For how many seconds the job is expected to run from `now` (UTC seconds) on; None
    if nothing is known. `eta_s`: what its running program says of that.
    """
    started_at = _started_at(view, job)
    if started_at is not None and eta_s is not None:
        return eta_s
    expected_s = job.estimated_s or view.learning.usual_s(job.job_type)
    if expected_s is None:
        return None
    served_s = job.service.served_s
    if started_at is not None:
        served_s += max(0.0, now - started_at)
    return max(0.0, expected_s - served_s)


def _started_at(view: View, job: LiveJob) -> float | None:
    """Since when its attempt has run (UTC seconds); None if it has none that runs."""
    attempt = view.attempts.get(job.attempt_id or "")
    return attempt.started_at if attempt else None


def look(
    view: View, job: LiveJob, now: float, eta_s: float | None = None
) -> Told | None:
    """What is to be told of the deadline of a job at `now` (UTC seconds) that was not
    told before. Says in `view.deadlines` when to look again.
    """
    deadline = job.deadline
    if deadline is None or job.deadline_told == Told.MISSED:
        return None
    if is_unseen(view, view.attempts.get(job.attempt_id or "")):
        # It may have ended in time, before the server was there to hear of it.
        view.deadlines.look_at(job, now + _UNSEEN_S)
        return None
    if now >= deadline:
        return Told.MISSED
    remaining = remaining_s(view, job, now, eta_s)
    is_late = remaining is not None and now + remaining > deadline
    if is_late and job.deadline_told is None:
        view.deadlines.look_at(job, deadline)
        return Told.LATE
    # A job that runs needs no start.
    needed = None if _started_at(view, job) is not None else remaining
    view.deadlines.look_at(job, next_look(job, now, needed))
    return None


def is_unseen(view: View, attempt: LiveAttempt | None) -> bool:
    """True while nobody can say whether the attempt still runs."""
    if attempt is None or attempt.state is AttemptState.INTENDED:
        return False
    if attempt.offer:
        queue = view.external_queues.by_name.get(attempt.provider)
        return queue is None or bool(queue.problem)
    nodes = [view.node(share.node_id) for share in attempt.placements]
    return any(node.state != "online" for node in nodes)


def warning(
    view: View, job: LiveJob, told: Told, now: float, eta_s: float | None = None
) -> str:
    """What the owner of the job is told, for good."""
    deadline = in_words(job.deadline or 0.0)
    if told is Told.MISSED:
        return f"it has missed its deadline, {deadline}"
    run = format_duration(remaining_s(view, job, now, eta_s))
    return (
        f"it will probably miss its deadline, {deadline}: at {in_words(now)} it was"
        f" expected to run for {run} more"
    )


def prospects(view: View, job: LiveJob, now: float, policy: Policy) -> str:
    """What is to be said now of the deadline of a job that waits; empty for none."""
    if job.deadline is None:
        return ""
    deadline = f"Its deadline is {in_words(job.deadline)}"
    left_s = job.deadline - now
    if left_s <= 0:
        return f"{deadline}, which has passed."
    heeded = ""
    if policy.order is not QueueOrder.FAIR:
        heeded = f" The order of the queue does not heed it (policy {policy.order})."
    ahead = f"{deadline}, in {format_duration(left_s)}"
    remaining = remaining_s(view, job, now)
    if remaining is None:
        return f"{ahead}. How long it runs is not known.{heeded}"
    run = f"it is expected to run for {format_duration(remaining)}"
    if remaining > left_s:
        return f"{ahead}: {run}, which is too long.{heeded}"
    start = f"must start within {format_duration(left_s - remaining)}"
    return f"{ahead}: {run}, so it {start}.{heeded}"
