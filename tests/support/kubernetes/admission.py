"""Admission: what a new object must still pass, and who changes it on the way in."""

import base64

from tests.support.kubernetes import defaults, errors, podsecurity, validation
from tests.support.kubernetes.kinds import KINDS
from tests.support.kubernetes.objects import (
    Object,
    clone,
    deleting,
    labels,
    name,
    new_uid,
    suffix,
)
from tests.support.kubernetes.options import Options
from tests.support.kubernetes.quotas import Quotas
from tests.support.kubernetes.store import Store

QUEUE = "kueue.x-k8s.io/queue-name"
_CLASSES = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}
_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class Admission:
    """The way into the store for all that is new."""

    def __init__(self, store: Store, options: Options) -> None:
        self._store = store
        self._options = options
        self._quotas = Quotas(store)
        self.pod_refusal = ""

    def create(
        self, plural: str, space: str, body: Object, *, dry: bool = False
    ) -> Object:
        """Put a manifest in; returns the object. 403, 404, 409, 422."""
        kind = KINDS[plural]
        obj = clone(body)
        meta = obj.setdefault("metadata", {})
        meta.pop("resourceVersion", None)
        if kind.namespaced:
            meta["namespace"] = space
            self._check_namespace(plural, space, meta.get("name", ""))
        meta |= {"name": meta.get("name") or _generated(meta), "uid": new_uid()}
        defaults.fill(plural, obj)
        if plural == "jobs" and self._options.kueue and QUEUE in labels(obj):
            obj["spec"]["suspend"] = True
        validation.check(kind, obj)
        if plural == "pods":
            self._prioritize(obj)
            self._tolerate(obj)
            self._ask_webhook(obj)
            podsecurity.check(self._store.get("namespaces", "", space), obj)
        self._quotas.check(plural, obj)
        if plural == "secrets":
            _encode(obj)
        if dry:
            return obj
        made = self._store.create(plural, obj)
        if plural == "persistentvolumeclaims":
            self._bind(made)
        return made

    def _check_namespace(self, plural: str, space: str, called: str) -> None:
        found = self._store.find("namespaces", "", space)
        if found is None:
            raise errors.not_found(KINDS["namespaces"], space)
        if deleting(found):
            why = (
                f"unable to create new content in namespace {space} because it is being"
                " terminated"
            )
            raise errors.forbidden(KINDS[plural], called, why)

    def _ask_webhook(self, pod: Object) -> None:
        if self.pod_refusal:
            why = f'admission webhook "policy.test" denied the request: {self.pod_refusal}'
            raise errors.ApiError(403, "Forbidden", why)

    def _prioritize(self, pod: Object) -> None:
        spec = pod["spec"]
        found = None
        wanted = spec.get("priorityClassName")
        classes = {name(each): each for each in self._store.all("priorityclasses")}
        if wanted and wanted not in classes and wanted not in _CLASSES:
            why = f"no PriorityClass with name {wanted} was found"
            raise errors.forbidden(KINDS["pods"], pod["metadata"].get("name", ""), why)
        found = (
            classes.get(wanted)
            if wanted
            else next(
                (each for each in classes.values() if each.get("globalDefault")), None
            )
        )
        spec["priority"] = found["value"] if found else _CLASSES.get(wanted or "", 0)
        if found and not wanted:
            spec["priorityClassName"] = name(found)
        spec["preemptionPolicy"] = (found or {}).get(
            "preemptionPolicy", "PreemptLowerPriority"
        )

    def _tolerate(self, pod: Object) -> None:
        tolerations = pod["spec"].setdefault("tolerations", [])
        for key in _TAINTS:
            if all(each.get("key") not in (key, None) for each in tolerations):
                tolerations.append(
                    {
                        "key": key,
                        "operator": "Exists",
                        "effect": "NoExecute",
                        "tolerationSeconds": self._options.toleration_s,
                    }
                )

    def _bind(self, claim: Object) -> None:
        """There is always a volume for a claim."""
        wanted = (claim["spec"].get("resources") or {}).get("requests") or {}
        with self._store.edit("persistentvolumeclaims", claim) as draft:
            draft["spec"]["volumeName"] = f"pvc-{claim['metadata']['uid']}"
            draft["status"] = {
                "phase": "Bound",
                "capacity": wanted,
                "accessModes": claim["spec"].get("accessModes"),
            }


def _generated(meta: Object) -> str:
    return meta["generateName"][:58] + suffix() if meta.get("generateName") else ""


def _encode(secret: Object) -> None:
    """`stringData` becomes `data`."""
    for key, value in (secret.pop("stringData", None) or {}).items():
        secret.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()
