"""What a pod's own state says."""

from collections.abc import Iterable

from gpuyard.providers.kubernetes.fields import (
    Json,
    object_at,
    objects_at,
    text_at,
    value_at,
)
from gpuyard.providers.kubernetes.manifest import CONTAINER
from gpuyard.providers.kubernetes.times import instant

INDEX = "batch.kubernetes.io/job-completion-index"
# The container runtime could not start the container.
START_ERRORS = ("StartError", "ContainerCannotRun")
# A kubelet that finds that its node cannot take a pod refuses it: its device plugin has
# lost a GPU, or the scheduler counted wrong.
_REFUSED_BY_NODE = ("UnexpectedAdmissionError", "NodeAffinity", "TopologyAffinityError")
_OUT_OF = "OutOf"


def container_of(pod: Json) -> Json:
    """The status of the job's own container: the cluster may add others."""
    for status in objects_at(pod, "status", "containerStatuses"):
        if status.get("name") == CONTAINER:
            return status
    return {}


def terminated(pod: Json) -> Json:
    """How its container ended; empty while it has not."""
    return object_at(container_of(pod), "state", "terminated")


def started_at(pod: Json) -> float | None:
    """When its program began; None when it has not, or could not be started."""
    ended = terminated(pod)
    if ended.get("reason") in START_ERRORS:
        return None
    running_since = text_at(container_of(pod), "state", "running", "startedAt")
    return instant(running_since or text_at(ended, "startedAt"))


def ended_at(pod: Json) -> float:
    """When its program ended; 0 if that is not known."""
    return instant(text_at(terminated(pod), "finishedAt")) or 0.0


def index_of(pod: Json) -> int:
    """The pod's index in its gang; 0 for a job of one pod."""
    return int(value_at(pod, "metadata", "annotations", INDEX) or 0)


def order_of(pod: Json) -> tuple[int, str]:
    """A sort key: the pods of one index in the order in which they were made."""
    return index_of(pod), text_at(pod, "metadata", "creationTimestamp")


def is_live(pod: Json) -> bool:
    """False once nothing of the pod runs any more."""
    if text_at(pod, "status", "phase") in ("Pending", "Running", "Unknown"):
        return True
    # At its deadline a pod can be marked failed before its program has exited.
    is_late = text_at(pod, "status", "reason") == "DeadlineExceeded"
    return is_late and value_at(container_of(pod), "state", "running") is not None


def gone(pod: Json) -> Json:
    """The last known state of a pod that is gone, marked failed if it was live."""
    if not is_live(pod):
        return pod
    status = {**object_at(pod, "status"), "phase": "Failed"}
    return {**pod, "status": status}


def has_begun(pod: Json) -> bool:
    """Whether its program has been started."""
    return started_at(pod) is not None


def is_running(pod: Json) -> bool:
    """Whether its program runs now."""
    return value_at(container_of(pod), "state", "running") is not None


def is_placed(pod: Json) -> bool:
    """Whether it has a node."""
    return bool(node_of(pod))


def node_of(pod: Json) -> str:
    """The name of its node; empty when it has none."""
    return text_at(pod, "spec", "nodeName")


def is_refused(pod: Json) -> bool:
    """Whether its node did not take it, although the scheduler had chosen the node."""
    reason = text_at(pod, "status", "reason")
    return reason in _REFUSED_BY_NODE or reason.startswith(_OUT_OF)


def is_orphan(pod: Json) -> bool:
    """Whether its Job was deleted and the pod was to be kept (`--cascade=orphan`)."""
    owners = objects_at(pod, "metadata", "ownerReferences")
    is_deleted = bool(value_at(pod, "metadata", "deletionTimestamp"))
    return not owners and not is_deleted


def newest_by_index(pods: Iterable[Json]) -> list[Json]:
    """The last pod of each share: a program that runs again does so in a new pod."""
    newest: dict[int, Json] = {}
    for pod in sorted(pods, key=order_of):
        newest[index_of(pod)] = pod
    return list(newest.values())


def earliest_start(pods: Iterable[Json]) -> float | None:
    """When the first of their programs began; None if none has."""
    starts = [started_at(pod) for pod in pods]
    return min((at for at in starts if at is not None), default=None)


def has_told_its_end(pod: Json) -> bool:
    """Whether it is over, and known how it ended."""
    is_over = text_at(pod, "status", "phase") in ("Succeeded", "Failed")
    return is_over and (bool(terminated(pod)) or is_refused(pod))


def true_condition(item: Json, kind: str) -> Json | None:
    """The object's condition of this kind, if it is true."""
    for condition in objects_at(item, "status", "conditions"):
        if condition.get("type") == kind and condition.get("status") == "True":
            return condition
    return None


def refusing_nodes(pods: Iterable[Json]) -> list[str]:
    """The nodes that did not take a pod."""
    return [node_of(pod) for pod in pods if is_refused(pod)]
