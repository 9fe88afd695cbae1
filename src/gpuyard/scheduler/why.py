"""Why a pending job waits: the constraint, what each node lacks, what would help, and
an estimate.
"""

from dataclasses import replace

from gpuyard.domain.states import JobState, ParentEnd
from gpuyard.domain.units import format_duration
from gpuyard.scheduler.actions import Start
from gpuyard.scheduler.arrays import LiveArray
from gpuyard.scheduler.attempts import LiveAttempt, Promise
from gpuyard.scheduler.explanation import Why
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.lateness import prospects
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.verdicts import offer_verdicts
from gpuyard.scheduler.view import View
from gpuyard.scheduler.why_budget import out_of_budget
from gpuyard.scheduler.why_queued import MOST_NAMED, QueuedJob, WhenItLeaves

# What is said of a parent, and what to wait for.
_MUST = {
    ParentEnd.COMPLETED: ("", "complete"),
    ParentEnd.FAILED: ("; it must not complete", "end without being completed"),
    ParentEnd.ANY: ("; it must end", "end"),
}


def why(
    view: View,
    job_id: str,
    now: float,
    policy: Policy,
    when_it_leaves: WhenItLeaves = lambda _: "",
) -> Why | None:
    """Why the job is pending at `now` (UTC seconds); None if it is not pending or not
    known. `when_it_leaves(job_id)` says when a job without a time limit may end; empty
    if that is not known.

    It looks at all jobs to find the position, so it is for people's questions and not
    for decisions.
    """
    job = view.jobs.get(job_id)
    if job is None:
        return None
    answer = _why(view, job, now, policy, when_it_leaves)
    if answer is None:
        return None
    return replace(answer, deadline=prospects(view, job, now, policy))


def _why(
    view: View, job: LiveJob, now: float, policy: Policy, when_it_leaves: WhenItLeaves
) -> Why | None:
    attempt = view.attempts.get(job.attempt_id or "")
    if attempt and _is_in_external_queue(view, attempt):
        if job.shape.model:
            return _in_line_of_model(view, job.shape.model, attempt)
        verdicts = tuple(offer_verdicts(view, job, now, policy))
        return replace(_external_queue(view, attempt), candidates=verdicts)
    if job.state is not JobState.QUEUED:
        return None
    view.apply_quarantines(now)
    view.usage.look_at_month(now)
    view.release_delayed(now, policy.retry_max_s)
    obstacle = _before_the_queue(view, job, now)
    if obstacle:
        return obstacle
    answer = QueuedJob(view, job, now, policy, when_it_leaves).explain()
    if job.service.preemptions:
        return replace(answer, summary=f"It was preempted. {answer.summary}")
    return answer


def _before_the_queue(view: View, job: LiveJob, now: float) -> Why | None:
    """Why a job is not among those that wait for room; None if it is."""
    job_id = job.id
    action = view.tentative.get(job_id)
    if isinstance(action, Start):
        return _starting(view, action)
    if job.held:
        return Why(
            "It is held by `gpuyard hold` or `gpuyard run --hold`.",
            "held",
            "when somebody releases it is not known",
            would_help=(f"release it (gpuyard release {job_id})",),
        )
    if job.waits_for:
        return _dependency(view, job)
    if job_id in view.promises:
        return _making_room(view, view.promises[job_id])
    array = view.array_of(job)
    if array and array.waits(job):
        return _array_full(array, job.array_id)
    if view.budgets.is_waiting(job_id):
        return out_of_budget(view, job)
    if job_id not in view.queue:
        return _backoff(job, now)
    return None


def _is_in_external_queue(view: View, attempt: LiveAttempt) -> bool:
    table = view.external_queues
    return attempt.id in table.waiting or attempt.id in table.reasons


def _external_queue(view: View, attempt: LiveAttempt) -> Why:
    """Its attempt is in an external queue, or on its way there."""
    queue = view.external_queues.by_name.get(attempt.provider)
    reason = view.external_queues.reasons.get(attempt.id)
    if queue and queue.problem:
        place = attempt.offer or attempt.provider
        return Why(
            f"It was sent to {place}, which {queue.problem}.",
            "engine",
            "when it answers again is not known",
        )
    if attempt.provider_ref is None:
        doing = reason or "it is being submitted"
        return Why(
            f"It is on its way to {attempt.provider}: {doing}.",
            "starting",
            "how long that takes is not known",
        )
    said = f": {reason}" if reason else "; the queue has given no reason yet"
    reference = f"{attempt.provider} ({attempt.provider_ref})"
    return Why(
        f"It waits in the queue of {reference}{said}.",
        "engine",
        f"{attempt.provider} decides when it starts",
    )


def _in_line_of_model(view: View, model: str, attempt: LiveAttempt) -> Why:
    """It is a prompt in the request queue of its model."""
    reason = view.external_queues.reasons.get(attempt.id) or "no answer is free yet"
    return Why(
        f"It waits for the model {model}: {reason}.",
        "model",
        "how long the answers before it take is not known",
    )


def _starting(view: View, action: Start) -> Why:
    places = [
        share.offer or view.node(share.node_id).title for share in action.placements
    ]
    summary = f"It is being started on {', '.join(places)}."
    return Why(summary, "starting", "it has been placed", 0.0)


def _dependency(view: View, job: LiveJob) -> Why:
    ended = [parent for parent in job.waits_for if parent in view.ended]
    if ended:
        parent = ended[0]
        return Why(
            f"It can never start. {job.why_never(parent, view.ended[parent])}",
            "dependency",
            "it will be failed",
            would_help=(f"resume {parent}, then this job",),
        )
    named = job.waits_for[:MOST_NAMED]
    parents: list[str] = []
    help_: list[str] = []
    for parent in named:
        live = view.jobs.get(parent)
        state = live.state if live else "not known"
        must, end = _MUST[job.wanted_end(parent)]
        parents.append(f"{parent} ({state}{must})")
        help_.append(f"wait for {parent} to {end}")
    more = len(job.waits_for) - MOST_NAMED
    rest = f" and {more} more" if more > 0 else ""
    return Why(
        f"It depends on {', '.join(parents)}{rest}.",
        "dependency",
        "when the jobs it depends on end is not known",
        would_help=tuple(help_),
    )


def _making_room(view: View, promise: Promise) -> Why:
    leaving = sorted(
        view.attempts[key].job_id for key in promise.attempts if key in view.attempts
    )
    summary = "Room is being made for it."
    if leaving:
        named = ", ".join(leaving[:MOST_NAMED])
        summary = f"Room is being made for it: {named} is being preempted."
    return Why(
        summary,
        "preempting",
        "when the jobs that are asked to leave have saved their work is not known",
    )


def _array_full(array: LiveArray, array_id: str | None) -> Why:
    return Why(
        f"It waits for its turn: its array runs at most {array.at_most} at once.",
        "array",
        "when these tasks end is not known",
        would_help=(
            f"let more of its tasks run at once (gpuyard update {array_id} --limit"
            f" {2 * array.at_most})",
        ),
    )


def _backoff(job: LiveJob, now: float) -> Why:
    rest_s = (job.not_before or now) - now
    return Why(
        f"It waits for its next attempt, which may start in {format_duration(rest_s)}.",
        "backoff",
        "it may start then at the earliest; what is in the queue by then is not known",
    )
