"""Checks that the account has the rights it needs on the cluster."""

import asyncio
import re
from dataclasses import dataclass

from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.fields import value_at

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# How the API server refuses what no Role allows. Admission refuses in other words.
_NO_RIGHT = re.compile(r"cannot \w+ resource ")


@dataclass(frozen=True, slots=True)
class _Right:
    verb: str
    resource: str
    group: str = ""

    @property
    def title(self) -> str:
        return f"{self.verb} {self.resource}"


_LIST_NODES = _Right("list", "nodes")
_GET_NAMESPACE = _Right("get", "namespaces")
_RIGHTS = (
    _Right("create", "jobs", "batch"),
    _Right("watch", "jobs", "batch"),
    _Right("patch", "jobs", "batch"),
    _Right("delete", "jobs", "batch"),
    _Right("get", "jobs", "batch"),
    _Right("list", "jobs", "batch"),
    _Right("list", "pods"),
    _Right("watch", "pods"),
    _Right("patch", "pods"),
    _Right("delete", "pods"),
    _Right("get", "pods/log"),
    _Right("create", "secrets"),
    _Right("delete", "secrets"),
    _Right("create", "services"),
    _Right("delete", "services"),
    _Right("list", "events"),
    _GET_NAMESPACE,
    _LIST_NODES,
)


async def missing_rights(api: KubernetesApi, settings: KubernetesConfig) -> list[str]:
    """The rights that the account lacks, each as `verb resource`."""
    wanted = list(_RIGHTS)
    if settings.pools:
        # The settings say what there is, so the account need not see the nodes.
        wanted.remove(_LIST_NODES)
    checks = [_has(api, right, settings.namespace) for right in wanted]
    answers = await asyncio.gather(*checks)
    missing: list[str] = []
    for right, is_allowed in zip(wanted, answers, strict=True):
        if not is_allowed:
            missing.append(right.title)
    return missing


async def _has(api: KubernetesApi, right: _Right, namespace: str) -> bool:
    name, _, subresource = right.resource.partition("/")
    attributes = {
        "group": right.group,
        "resource": name,
        "subresource": subresource,
        "verb": right.verb,
    }
    if right is not _LIST_NODES:
        attributes["namespace"] = namespace
    if right is _GET_NAMESPACE:
        attributes["name"] = namespace
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await api.call("POST", _REVIEWS, review)
    return bool(value_at(answer, "status", "allowed"))


def is_about_rights(message: str) -> bool:
    """Whether the API server refused a request because no Role allows it."""
    return _NO_RIGHT.search(message) is not None
