"""What the cluster says of a Job, its pods and its events, in our words."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.providers.kubernetes.fields import Json, at, name_of, rows, table, text
from gpuyard.providers.kubernetes.manifest import LIMITS, PRICE, STOP

INDEX = "batch.kubernetes.io/job-completion-index"
# What the cluster did to a pod, by the reason of its DisruptionTarget condition.
_DISRUPTIONS = {"DeletionByTaintManager": "node_lost", "DeletionByPodGC": "node_lost"}
_BAD_IMAGE = ("not found", "manifest unknown", "does not exist", "denied", "unauthorized", "invalid reference")
_IMAGE_TROUBLE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
# By exit code, what the runtime, or the shell that guards the program, says when there is nothing to run.
_NO_PROGRAM = ("executable file not found", "no such file or directory")
_NOT_STARTED = {126: ("ermission denied",), 127: (": not found", *_NO_PROGRAM), 128: _NO_PROGRAM}


@dataclass(frozen=True, slots=True)
class Limits:
    """What of a job has to outlive gpuyard: seconds, the signal that makes it save its work, and where that goes."""

    timeout_s: float | None
    grace_s: float
    signal: str | None
    path: str | None


def limits_of(job: Json) -> Limits:
    """As it was written down with the Job."""
    found = json.loads(text(_annotations(job), LIMITS) or "{}")
    return Limits(at(found, "timeout_s"), float(at(found, "grace_s") or 0.0), at(found, "signal"), at(found, "path"))


def stop_of(job: Json) -> str:
    """Why we asked it to end; empty when nobody did."""
    return text(_annotations(job), STOP)


def price_of(job: Json) -> Decimal:
    """What an hour of it costs; 0 where nobody said."""
    return Decimal(text(_annotations(job), PRICE) or 0)


def _annotations(item: Json) -> Json:
    return table(item, "metadata", "annotations")


def result_of(job: Json, pods: Iterable[Json], events: Sequence[Json]) -> JobResult:
    """Where a Job is. `pods` are those that are, or that were the last we saw of it; `events` the newest last."""
    shares = sorted(pods, key=index_of)
    result = JobResult(name_of(job), JobStatus.PENDING, instant(text(job, "metadata", "creationTimestamp")))
    begun = [began for pod in shares if (began := _started_at(pod)) is not None]
    wanted = int(at(job, "spec", "parallelism") or 1)
    over = _over(job) and not any(map(is_live, shares))  # its last pod may still be on its way out
    if begun and (len(begun) >= wanted or _over(job)):
        nodes = [node for pod in shares if (node := text(pod, "spec", "nodeName"))]
        result = replace(result, status=JobStatus.RUNNING, started_at=max(begun), node=nodes[0] if nodes else "")
    if is_put_back(job, shares):
        return replace(result, status=JobStatus.FAILED, reason="preempted", error_message="its queue has put it back")
    if over:
        return _ended(result, job, shares)
    if result.status is JobStatus.PENDING:
        return _waiting(result, job, shares, events)
    return result


def waits_for_us(job: Json) -> bool:
    """It is there, and has not been let begin."""
    return bool(at(job, "spec", "suspend")) and not text(job, "status", "startTime") and not _over(job)


def is_put_back(job: Json, pods: Iterable[Json]) -> bool:
    """Kueue has taken its pods away, to admit it again some day: then it would run a second time."""
    suspended = bool(at(job, "spec", "suspend")) and not _over(job) and not stop_of(job)
    return suspended and any(map(has_begun, pods))


def _over(job: Json) -> bool:
    """The cluster has let go of it."""
    return _condition(job, "Complete") is not None or _condition(job, "Failed") is not None


def _condition(item: Json, kind: str) -> Json | None:
    return next(
        (one for one in rows(item, "status", "conditions") if one.get("type") == kind and one.get("status") == "True"),
        None,
    )


# --- while it waits ---


def _waiting(result: JobResult, job: Json, pods: Sequence[Json], events: Sequence[Json]) -> JobResult:
    """Why it has not begun, in the cluster's own words."""
    said = [text(event, "message") for event in events]
    for pod in pods:
        state = table(_container(pod), "state", "waiting")
        reason, message = text(state, "reason"), text(state, "message")
        told = [message, *said]
        bad = [line for line in told if any(word in line for word in _BAD_IMAGE)]
        if reason == "InvalidImageName" or (reason in _IMAGE_TROUBLE and bad):
            why = bad[-1] if bad else message
            return replace(result, status=JobStatus.FAILED, reason="no_image", error_message=why)
        if reason and reason != "ContainerCreating":
            return replace(result, reason=reason, error_message=": ".join(filter(None, (reason, message))))
    for pod in pods:
        placed = (one for one in rows(pod, "status", "conditions") if one.get("type") == "PodScheduled")
        unplaced = next((one for one in placed if one.get("status") == "False"), None)
        if unplaced:
            reason = text(unplaced, "reason")
            return replace(result, reason=reason, error_message=f"{reason}: {text(unplaced, 'message')}")
    if at(job, "spec", "suspend"):
        return replace(result, reason="Suspended", error_message=": ".join(["Suspended", *said[-1:]]))
    reason = "ContainerCreating" if pods else "NoPod"
    usual = "its container is being made" if pods else "it has no pod yet"
    return replace(result, reason=reason, error_message=said[-1] if said else usual)


# --- when it is over ---


def _ended(result: JobResult, job: Json, pods: Sequence[Json]) -> JobResult:
    stop, done = stop_of(job), _condition(job, "Complete")
    at_fault = min(filter(_failed, pods), key=_suspicion, default=None)
    last = max((_ended_at(pod) for pod in pods if _ended_at(pod)), default=0.0)
    over = done or _condition(job, "Failed") or {}
    result = replace(result, completed_at=last or instant(text(over, "lastTransitionTime")))
    if done:
        return replace(result, status=JobStatus.COMPLETED, exit_code=0)
    result = replace(result, status=JobStatus.FAILED)
    if at_fault is None:
        return _without_pods(result, over, stop)
    return _blamed(result, at_fault, stop)


def _without_pods(result: JobResult, over: Json, stop: str) -> JobResult:
    """Its pods are gone, so nobody can say how it ended but for what the Job itself remembers."""
    said = text(over, "message")
    if stop:
        return _stopped(result, stop)
    if over.get("reason") == "PodFailurePolicy" and "DisruptionTarget" in said:
        return replace(result, reason="preempted", error_message=said)
    message = f"its pods are gone ({text(over, 'reason') or 'no reason given'}: {said})"
    return replace(result, reason="exit_status_lost", error_message=message)


def _blamed(result: JobResult, pod: Json, stop: str) -> JobResult:
    status, ended = table(pod, "status"), _terminated(pod)
    code = ended.get("exitCode")
    result = replace(result, exit_code=code)
    disruption = _condition(pod, "DisruptionTarget")
    if stop:
        return _stopped(result, stop)
    if ended.get("reason") == "OOMKilled":
        return replace(result, reason="out_of_memory", error_message="it used more memory than it asked for")
    if disruption or status.get("reason") in ("Evicted", "NodeLost", "NodeShutdown", "Preempting"):
        why = text(disruption, "reason") or text(status, "reason")
        said = text(disruption, "message") or text(status, "message")
        reason = "node_lost" if status.get("reason") == "NodeLost" else _DISRUPTIONS.get(why, "preempted")
        return replace(result, exit_code=None, reason=reason, error_message=f"{why}: {said}")
    if status.get("reason") == "DeadlineExceeded":
        return replace(result, reason="timed_out", error_message="timed out")
    if at(pod, "metadata", "deletionTimestamp"):
        return replace(result, status=JobStatus.CANCELLED, error_message="somebody deleted its pod")
    said = text(ended, "message") or text(status, "message")
    if code in _NOT_STARTED and any(word in said for word in _NOT_STARTED[code]):
        reason = "not_executable" if code == 126 else "command_not_found"
        return replace(result, reason=reason, error_message=said)
    if not ended:
        return replace(result, reason="exit_status_lost", error_message=said or text(status, "reason"))
    return replace(result, error_message=f"exit code {code}")


def _stopped(result: JobResult, stop: str) -> JobResult:
    status = JobStatus.CANCELLED if stop == "cancelled" else JobStatus.FAILED
    return replace(result, status=status, reason=stop, error_message="timed out" if stop == "timed_out" else stop)


def _failed(pod: Json) -> bool:
    deleted = bool(at(pod, "metadata", "deletionTimestamp"))
    return text(pod, "status", "phase") != "Succeeded" and (deleted or bool(_ended_at(pod)) or _lost(pod))


def _suspicion(pod: Json) -> tuple[bool, float]:
    """Of a gang the share that went wrong first comes first; those that were deleted because of it come last."""
    deleted = bool(at(pod, "metadata", "deletionTimestamp")) and _condition(pod, "DisruptionTarget") is None
    return deleted, _ended_at(pod)


def _lost(pod: Json) -> bool:
    return text(pod, "status", "phase") == "Failed" or _condition(pod, "DisruptionTarget") is not None


# --- pods ---


def _container(pod: Json) -> Json:
    statuses = rows(pod, "status", "containerStatuses")
    return statuses[0] if statuses else {}


def _terminated(pod: Json) -> Json:
    return table(_container(pod), "state", "terminated")


def _started_at(pod: Json) -> float | None:
    """When its program began; None when it has not, or never did."""
    ended = _terminated(pod)
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        return None
    return instant(text(_container(pod), "state", "running", "startedAt") or text(ended, "startedAt"))


def _ended_at(pod: Json) -> float:
    return instant(text(_terminated(pod), "finishedAt")) or 0.0


def index_of(pod: Json) -> int:
    """Which share of a gang it is; 0 for a job that is alone."""
    return int(at(_annotations(pod), INDEX) or 0)


def is_live(pod: Json) -> bool:
    """False once nothing of it runs any more."""
    if text(pod, "status", "phase") in ("Pending", "Running", "Unknown"):
        return True
    # At its deadline a pod may be called failed before its program has left.
    late = text(pod, "status", "reason") == "DeadlineExceeded"
    return late and at(_container(pod), "state", "running") is not None


def gone(pod: Json) -> Json:
    """The pod as one that is not there any more, whatever it was at when it was last seen."""
    return {**pod, "status": {**table(pod, "status"), "phase": "Failed"}} if is_live(pod) else pod


def has_begun(pod: Json) -> bool:
    """Its program has been started."""
    return _started_at(pod) is not None


def is_placed(pod: Json) -> bool:
    """It has a node."""
    return bool(text(pod, "spec", "nodeName"))


def instant(stamp: str) -> float | None:
    """A time of Kubernetes' as UTC seconds; None for none."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp() if stamp else None
