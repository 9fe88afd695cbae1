"""The pods that a Job makes."""

from tests.support.kubernetes.indexes import INDEX
from tests.support.kubernetes.objects import (
    Object,
    annotations,
    clone,
    labels,
    name,
    namespace,
    suffix,
    uid,
)

TRACKING = "batch.kubernetes.io/job-tracking"
_VARIABLE = "JOB_COMPLETION_INDEX"


def job_labels(job: Object) -> dict[str, str]:
    """What says whose a pod is, the old names too."""
    prefix = "batch.kubernetes.io/"
    return {
        f"{prefix}controller-uid": uid(job),
        "controller-uid": uid(job),
        f"{prefix}job-name": name(job),
        "job-name": name(job),
    }


def pod_of(job: Object, index: int | None) -> Object:
    """The next pod of a Job; `index` for an indexed one."""
    template: Object = clone(job["spec"]["template"])
    meta = template.setdefault("metadata", {})
    stem = name(job) if index is None else f"{name(job)}-{index}"
    pod: Object = {
        "metadata": {
            "name": f"{stem[:57]}-{suffix()}",
            "generateName": f"{stem}-",
            "namespace": namespace(job),
            "labels": {**labels({"metadata": meta}), **job_labels(job)},
            "annotations": dict(annotations({"metadata": meta})),
            "finalizers": [TRACKING],
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": name(job),
                    "uid": uid(job),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": template["spec"],
    }
    if index is not None:
        _index(pod, name(job), index)
    return pod


def _index(pod: Object, job: str, index: int) -> None:
    pod["metadata"]["annotations"][INDEX] = pod["metadata"]["labels"][INDEX] = str(
        index
    )
    pod["spec"]["hostname"] = f"{job}-{index}"
    source = {
        "fieldRef": {
            "fieldPath": f"metadata.annotations['{INDEX}']",
            "apiVersion": "v1",
        }
    }
    for container in [
        *pod["spec"].get("initContainers", ()),
        *pod["spec"]["containers"],
    ]:
        variables = container.setdefault("env", [])
        if all(each["name"] != _VARIABLE for each in variables):
            variables.append({"name": _VARIABLE, "valueFrom": source})
