"""The state of a Job as a JobResult, from the Job, its pods and its events."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation

from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.providers.kubernetes.events import final_refusal, missing_image
from gpuyard.providers.kubernetes.fields import (
    Json,
    name_of,
    object_at,
    objects_at,
    text_at,
    value_at,
)
from gpuyard.providers.kubernetes.manifest import LIMITS, PRICE, STOP
from gpuyard.providers.kubernetes.pod_state import (
    START_ERRORS,
    container_of,
    earliest_start,
    ended_at,
    has_begun,
    has_told_its_end,
    index_of,
    is_live,
    is_orphan,
    is_refused,
    newest_by_index,
    node_of,
    order_of,
    started_at,
    terminated,
    true_condition,
)
from gpuyard.providers.kubernetes.times import instant
from gpuyard.providers.runner_files import KeptLimits, read_limits

# Our reason, by the reason of a pod's DisruptionTarget condition.
_DISRUPTIONS = {
    "DeletionByTaintManager": Reason.NODE_LOST,
    "DeletionByPodGC": Reason.NODE_LOST,
}
# What the kubelet says when it evicts a pod that has used more than its own limit of
# disk: it would do so again.
_OVER_ITS_OWN_LIMIT = ("exceeds the ", "exceeded its local ephemeral storage limit")
# Reasons in a pod's status that mean that the cluster ended it.
_EVICTIONS = ("Evicted", "NodeLost", "NodeShutdown", "Preempting")
_IMAGE_TROUBLE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
# By exit code, the messages of the shell that starts the program when it cannot.
_NOT_STARTED = {
    126: ("ermission denied",),
    127: (": not found", "executable file not found", "no such file or directory"),
}
# Our reason, by the messages of the runtime; the first that fits.
_START_FAULTS = (
    (Reason.WORKDIR_MISSING, ("chdir to cwd",)),
    (
        Reason.COMMAND_NOT_FOUND,
        ("executable file not found", "no such file or directory"),
    ),
    (
        Reason.NOT_EXECUTABLE,
        ("permission denied", "exec format error", "is a directory"),
    ),
)


# --- what gpuyard wrote in the Job's annotations ---


def limits_of(job: Json) -> KeptLimits:
    """The limits noted with the Job, so that they outlive the gpuyard server;
    BrokenFileError.
    """
    text = text_at(_annotations(job), LIMITS)
    return read_limits(text or "{}", "the Job's annotations")


def stop_of(job: Json) -> str:
    """Why gpuyard stopped the Job; empty when it did not."""
    return text_at(_annotations(job), STOP)


def price_of(job: Json) -> Decimal:
    """The Job's price per hour; 0 when it is unknown."""
    try:
        price = Decimal(text_at(_annotations(job), PRICE) or 0)
    except InvalidOperation:
        return Decimal(0)
    return price if price.is_finite() and price >= 0 else Decimal(0)


def _annotations(item: Json) -> Json:
    return object_at(item, "metadata", "annotations")


# --- the Job ---


def result_of(job: Json, pods: Iterable[Json], events: Sequence[Json]) -> JobResult:
    """The state of a Job.

    `pods`: its pods, and the last known state of those that are gone. `events`: its
    warnings, the newest last.
    """
    tries = sorted(pods, key=order_of)
    shares = newest_by_index(tries)
    result = JobResult(
        name_of(job),
        JobStatus.PENDING,
        instant(text_at(job, "metadata", "creationTimestamp")),
    )
    started = [started_at(pod) for pod in tries]
    begun = [at for at in started if at is not None]
    wanted = _wanted(job)
    if begun and (len(begun) >= wanted or _is_over(job, tries)):
        nodes = [text_at(pod, "spec", "nodeName") for pod in shares]
        result = replace(
            result,
            status=JobStatus.RUNNING,
            started_at=min(begun) if wanted == 1 else max(begun),
            node=next((node for node in nodes if node), ""),
        )
    if is_requeued(job, tries):
        return replace(
            result,
            status=JobStatus.FAILED,
            reason=Reason.PREEMPTED,
            error_message="its queue has put it back",
        )
    # A finished Job may have a pod that has not ended yet.
    if _is_over(job, tries) and not any(map(is_live, tries)):
        return _ended(result, job, shares)
    if result.status is JobStatus.PENDING:
        return _waiting(result, job, shares, events)
    return result


def is_incomplete(job: Json) -> bool:
    """Whether gpuyard has made the Job but not yet let it begin."""
    is_suspended = bool(value_at(job, "spec", "suspend"))
    has_started = bool(text_at(job, "status", "startTime"))
    return is_suspended and not has_started and not _is_finished(job)


def is_requeued(job: Json, pods: Iterable[Json]) -> bool:
    """Whether Kueue has removed the pods of a Job that had begun.

    Kueue would admit the Job again later, and it would run a second time.
    """
    is_suspended = bool(value_at(job, "spec", "suspend"))
    if not is_suspended or _is_finished(job) or stop_of(job):
        return False
    return any(map(has_begun, pods))


def _is_finished(job: Json) -> bool:
    """Whether the cluster has marked the Job complete or failed."""
    is_complete = true_condition(job, "Complete") is not None
    return is_complete or true_condition(job, "Failed") is not None


def _is_over(job: Json, pods: Sequence[Json]) -> bool:
    """Whether the Job is finished, or will be marked so without running anything more.

    The cluster takes a second or more to mark a Job whose only pod has ended.
    """
    if _is_finished(job):
        return True
    if runs_again(job) or _wanted(job) > 1:
        return False
    return any(has_told_its_end(pod) for pod in pods)


# --- a Job that waits ---


def _waiting(
    result: JobResult, job: Json, pods: Sequence[Json], events: Sequence[Json]
) -> JobResult:
    """Add why it has not begun, in the cluster's words."""
    messages = [text_at(event, "message") for event in events]
    if not pods and (refusal := final_refusal(events)):
        reason = Reason.SUBMIT_FAILED
        failed = JobStatus.FAILED
        return replace(result, status=failed, reason=reason, error_message=refusal)
    for pod in pods:
        waiting = _waiting_container(result, pod, events)
        if waiting is not None:
            return waiting
    for pod in pods:
        unplaced = _unplaced_condition(pod)
        if unplaced is not None:
            reason = text_at(unplaced, "reason")
            message = f"{reason}: {text_at(unplaced, 'message')}"
            return replace(result, reason=reason, error_message=message)
    if value_at(job, "spec", "suspend"):
        message = ": ".join(["Suspended", *messages[-1:]])
        return replace(result, reason="Suspended", error_message=message)
    reason = "ContainerCreating" if pods else "NoPod"
    usual = "its container is being made" if pods else "it has no pod yet"
    message = messages[-1] if messages else usual
    return replace(result, reason=reason, error_message=message)


def _waiting_container(
    result: JobResult, pod: Json, events: Sequence[Json]
) -> JobResult | None:
    """Why the pod's container has not begun; None when it gives no reason.

    The job fails when its image does not exist.
    """
    waiting = object_at(container_of(pod), "state", "waiting")
    reason = text_at(waiting, "reason")
    message = text_at(waiting, "message")
    why = ""
    if reason == "InvalidImageName":
        why = message or reason
    elif reason in _IMAGE_TROUBLE:
        why = missing_image(events, message)
    if why:
        return replace(
            result, status=JobStatus.FAILED, reason=Reason.NO_IMAGE, error_message=why
        )
    if reason and reason != "ContainerCreating":
        why = f"{reason}: {message}" if message else reason
        return replace(result, reason=reason, error_message=why)
    return None


def _has_any(message: str, phrases: Iterable[str]) -> bool:
    return any(phrase in message for phrase in phrases)


def _unplaced_condition(pod: Json) -> Json | None:
    """The condition that says why the pod has no node; None when it has none."""
    for condition in objects_at(pod, "status", "conditions"):
        is_placement = condition.get("type") == "PodScheduled"
        if is_placement and condition.get("status") == "False":
            return condition
    return None


# --- a Job that has ended ---


def _ended(result: JobResult, job: Json, pods: Sequence[Json]) -> JobResult:
    complete = true_condition(job, "Complete")
    condition = complete or true_condition(job, "Failed") or {}
    last_end = max(map(ended_at, pods), default=0.0)
    condition_at = instant(text_at(condition, "lastTransitionTime"))
    result = replace(result, completed_at=last_end or condition_at)
    if complete or (not condition and all(map(_has_succeeded, pods))):
        return _completed(result, job, pods)
    result = replace(result, status=JobStatus.FAILED)
    failed = [pod for pod in pods if _has_failed(pod)]
    if not failed:
        return _failed_without_pods(result, condition, stop_of(job))
    return _failed_by(result, min(failed, key=_failure_order), stop_of(job))


def _completed(result: JobResult, job: Json, pods: Sequence[Json]) -> JobResult:
    """A program that had to leave may save its work and exit with 0."""
    taken = next((pod for pod in pods if _was_asked_to_leave(pod)), None)
    if taken is None or stop_of(job):
        return replace(result, status=JobStatus.COMPLETED, exit_code=0)
    if true_condition(taken, "DisruptionTarget"):
        result = _disrupted(replace(result, status=JobStatus.FAILED), taken)
    else:
        result = _deleted(result)
    return replace(result, exit_code=0)


def _has_succeeded(pod: Json) -> bool:
    return text_at(pod, "status", "phase") == "Succeeded"


def _was_asked_to_leave(pod: Json) -> bool:
    """Whether the cluster or a person ended the pod before its program had ended."""
    asked_at = instant(
        text_at(true_condition(pod, "DisruptionTarget"), "lastTransitionTime")
    )
    # The time until which the pod may stay.
    leaves_at = instant(text_at(pod, "metadata", "deletionTimestamp"))
    if asked_at is None and leaves_at is not None:
        grace_s = value_at(pod, "metadata", "deletionGracePeriodSeconds") or 0
        asked_at = leaves_at - grace_s
    return asked_at is not None and ended_at(pod) >= asked_at


def _deleted(result: JobResult) -> JobResult:
    message = "somebody deleted its pod"
    return replace(result, status=JobStatus.CANCELLED, error_message=message)


def _failed_without_pods(result: JobResult, condition: Json, stop: str) -> JobResult:
    """How a Job failed whose pods are gone: only its condition tells."""
    message = text_at(condition, "message")
    reason = text_at(condition, "reason")
    if stop:
        return _stopped(result, stop)
    if reason == "PodFailurePolicy" and "DisruptionTarget" in message:
        return replace(result, reason=Reason.PREEMPTED, error_message=message)
    message = f"its pods are gone ({reason or 'no reason given'}: {message})"
    return replace(result, reason=Reason.EXIT_STATUS_LOST, error_message=message)


def _failed_by(result: JobResult, pod: Json, stop: str) -> JobResult:
    """How a Job failed because of this pod."""
    ended = terminated(pod)
    code = ended.get("exitCode")
    result = replace(result, exit_code=code)
    pod_reason = text_at(pod, "status", "reason")
    if stop:
        return _stopped(result, stop)
    if ended.get("reason") == "OOMKilled":
        message = "it used more memory than it asked for"
        return replace(result, reason=Reason.OUT_OF_MEMORY, error_message=message)
    if pod_reason in _EVICTIONS or true_condition(pod, "DisruptionTarget"):
        why = text_at(pod, "status", "message")
        if pod_reason == "Evicted" and _has_any(why, _OVER_ITS_OWN_LIMIT):
            return replace(result, error_message=why.strip())
        return _disrupted(result, pod)
    if is_refused(pod):
        message = text_at(pod, "status", "message")
        message = f"{node_of(pod)} refused it ({pod_reason}: {message})"
        return replace(result, reason=Reason.PREEMPTED, error_message=message)
    if pod_reason == "DeadlineExceeded":
        return replace(result, reason=Reason.TIMED_OUT, error_message="timed out")
    if value_at(pod, "metadata", "deletionTimestamp"):
        return _deleted(result)
    message = text_at(ended, "message") or text_at(pod, "status", "message")
    if ended.get("reason") in START_ERRORS:
        return _not_started(result, message)
    if code in _NOT_STARTED and _has_any(message, _NOT_STARTED[code]):
        reason = Reason.NOT_EXECUTABLE if code == 126 else Reason.COMMAND_NOT_FOUND
        return replace(result, reason=reason, error_message=message)
    if not ended:
        why = message or pod_reason
        return replace(result, reason=Reason.EXIT_STATUS_LOST, error_message=why)
    return replace(result, error_message=f"exit code {code}")


def _not_started(result: JobResult, message: str) -> JobResult:
    """The exit code is the runtime's, and no program's."""
    reasons = [
        reason for reason, phrases in _START_FAULTS if _has_any(message, phrases)
    ]
    reason = reasons[0] if reasons else Reason.NOT_STARTED
    return replace(result, exit_code=None, reason=reason, error_message=message)


def _disrupted(result: JobResult, pod: Json) -> JobResult:
    """The cluster ended the pod."""
    status = object_at(pod, "status")
    disruption = true_condition(pod, "DisruptionTarget")
    why = text_at(disruption, "reason") or text_at(status, "reason")
    message = text_at(disruption, "message") or text_at(status, "message")
    reason = _DISRUPTIONS.get(why, Reason.PREEMPTED)
    if status.get("reason") == "NodeLost":
        reason = Reason.NODE_LOST
    return replace(
        result, exit_code=None, reason=reason, error_message=f"{why}: {message}"
    )


def _stopped(result: JobResult, stop: str) -> JobResult:
    status = JobStatus.CANCELLED if stop == Reason.CANCELLED else JobStatus.FAILED
    message = "timed out" if stop == Reason.TIMED_OUT else stop
    return replace(result, status=status, reason=stop, error_message=message)


def _has_failed(pod: Json) -> bool:
    phase = text_at(pod, "status", "phase")
    if phase == "Succeeded":
        return False
    is_deleted = bool(value_at(pod, "metadata", "deletionTimestamp"))
    is_disrupted = true_condition(pod, "DisruptionTarget") is not None
    has_ended = phase == "Failed" or bool(ended_at(pod))
    return is_deleted or is_disrupted or has_ended


def _failure_order(pod: Json) -> tuple[bool, float]:
    """A sort key: the pod that failed first comes first.

    The cluster deletes the other pods of a gang because of it; they come last.
    """
    is_deleted = bool(value_at(pod, "metadata", "deletionTimestamp"))
    is_disrupted = true_condition(pod, "DisruptionTarget") is not None
    return is_deleted and not is_disrupted, ended_at(pod)


def runs_again(job: Json) -> bool:
    """Whether the cluster runs the program again when it fails."""
    return bool(value_at(job, "spec", "backoffLimit"))


def _wanted(job: Json) -> int:
    """How many pods run the Job at once."""
    return int(value_at(job, "spec", "parallelism") or 1)


# --- a Job that was deleted, and its pods kept ---


def job_of_pods(name: str, pods: Sequence[Json]) -> Json:
    """What is known of a Job that was deleted, from pods that are still there."""
    shares = {index_of(pod) for pod in pods}
    return {"metadata": {"name": name}, "spec": {"parallelism": len(shares)}}


def result_of_orphans(result: JobResult, job: Json, pods: Sequence[Json]) -> JobResult:
    """How a Job ended that was deleted, and whose pods ran on by themselves.

    `result`: what counts unless all of them have told their end.
    """
    shares = newest_by_index(pods)
    if len(shares) < _wanted(job):
        return result
    for pod in shares:
        if not is_orphan(pod) or not has_told_its_end(pod):
            return result
    result = replace(result, started_at=earliest_start(shares), reason="")
    return _ended(result, job, shares)
