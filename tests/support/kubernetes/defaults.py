"""What the server fills in where a manifest says nothing."""

from tests.support.kubernetes.objects import Object, uid
from tests.support.kubernetes.pods import job_labels

_POD = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
}
_CONTAINER = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
}
_MODE = 0o644


def fill_pod_spec(spec: Object) -> None:
    for key, value in _POD.items():
        spec.setdefault(key, dict(value) if isinstance(value, dict) else value)
    for container in [
        *(spec.get("initContainers") or ()),
        *(spec.get("containers") or ()),
    ]:
        for key, value in _CONTAINER.items():
            container.setdefault(key, dict(value) if isinstance(value, dict) else value)
        latest = ":" not in container.get("image", "").rpartition("/")[2] or container[
            "image"
        ].endswith(":latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        _requests(container["resources"])
    for volume in spec.get("volumes") or ():
        for kind in ("secret", "configMap"):
            if kind in volume:
                volume[kind].setdefault("defaultMode", _MODE)


def _requests(resources: Object) -> None:
    """A limit without a request is its request."""
    for resource, value in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(resource, value)


def fill_pod(pod: Object) -> None:
    fill_pod_spec(pod["spec"])
    pod["spec"].setdefault("serviceAccountName", "default")
    pod["spec"].setdefault("enableServiceLinks", True)
    pod["status"] = {"phase": "Pending", "qosClass": _qos(pod)}


def _qos(pod: Object) -> str:
    resources = [
        each.get("resources") or {} for each in pod["spec"].get("containers") or ()
    ]
    wanted = [
        {
            key: (each.get(part) or {}).get(key)
            for key in ("cpu", "memory")
            for part in ("requests", "limits")
        }
        for each in resources
    ]
    if not any(
        (each.get(part) or {}).get(key)
        for each in resources
        for part in ("requests", "limits")
        for key in ("cpu", "memory")
    ):
        return "BestEffort"
    equal = all(each.get("requests") == each.get("limits") for each in resources)
    return (
        "Guaranteed"
        if equal and all(all(each.values()) for each in wanted)
        else "Burstable"
    )


def fill_job(job: Object) -> None:
    spec = job["spec"]
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    for key, value in (
        ("parallelism", 1),
        ("backoffLimit", 6),
        ("completionMode", "NonIndexed"),
        ("suspend", False),
    ):
        if spec.get(key) is None:
            spec[key] = value
    replaced = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", replaced)
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for wanted in rule.get("onPodConditions") or ():
            wanted.setdefault("status", "True")
    template = spec.setdefault("template", {})
    fill_pod_spec(template.setdefault("spec", {}))
    _label(job)
    job["status"] = {}


def _label(job: Object) -> None:
    """What tells its pods from those of others."""
    key = "batch.kubernetes.io/controller-uid"
    job["spec"]["selector"] = {"matchLabels": {key: uid(job)}}
    meta = job["spec"]["template"].setdefault("metadata", {})
    own = meta.get("labels") or {}
    if own and not job["metadata"].get("labels"):
        job["metadata"]["labels"] = dict(own)
    meta |= {"labels": {**own, **job_labels(job)}, "creationTimestamp": None}
    job["metadata"]["generation"] = 1


def fill(plural: str, obj: Object) -> None:
    """A new object of any kind."""
    if obj.get("spec") is None and plural in ("pods", "jobs"):
        obj["spec"] = {}
    if plural == "pods":
        fill_pod(obj)
    elif plural == "jobs":
        fill_job(obj)
    elif plural == "namespaces":
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}
        obj["metadata"]["labels"] = {
            **(obj["metadata"].get("labels") or {}),
            "kubernetes.io/metadata.name": obj["metadata"].get("name", ""),
        }
    elif plural == "secrets":
        obj.setdefault("type", "Opaque")
    elif plural == "persistentvolumeclaims":
        spec = obj.setdefault("spec", {})
        spec.setdefault("storageClassName", "standard")
        spec.setdefault("volumeMode", "Filesystem")
        obj["status"] = {"phase": "Pending"}
    elif plural == "resourcequotas":
        obj["status"] = {"hard": dict(obj["spec"].get("hard") or {}), "used": {}}
