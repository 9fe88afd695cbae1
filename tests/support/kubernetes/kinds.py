"""The kinds of objects that the cluster knows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of discovery.

    `fields`: what a field selector may ask for, beside name and namespace.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    fields: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`jobs.batch`, as messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


_POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_EVENT_FIELDS = (
    *(
        f"involvedObject.{key}"
        for key in (
            "kind",
            "namespace",
            "name",
            "uid",
            "apiVersion",
            "resourceVersion",
            "fieldPath",
        )
    ),
    "reason",
    "reportingComponent",
    "source",
    "type",
)

KINDS = {
    each.plural: each
    for each in (
        Kind(
            "",
            "v1",
            "namespaces",
            "Namespace",
            namespaced=False,
            fields=("status.phase",),
        ),
        Kind(
            "", "v1", "nodes", "Node", namespaced=False, fields=("spec.unschedulable",)
        ),
        Kind("", "v1", "pods", "Pod", fields=_POD_FIELDS),
        Kind("", "v1", "events", "Event", fields=_EVENT_FIELDS),
        Kind("", "v1", "secrets", "Secret", fields=("type",)),
        Kind("", "v1", "configmaps", "ConfigMap"),
        Kind("", "v1", "services", "Service"),
        Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
        Kind("", "v1", "resourcequotas", "ResourceQuota"),
        Kind("batch", "v1", "jobs", "Job", fields=("status.successful",)),
        Kind(
            "scheduling.k8s.io",
            "v1",
            "priorityclasses",
            "PriorityClass",
            namespaced=False,
        ),
    )
}
BY_KIND = {each.kind: each for each in KINDS.values()}
GROUPS = ("batch", "scheduling.k8s.io", "authorization.k8s.io")
VERBS = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
]
