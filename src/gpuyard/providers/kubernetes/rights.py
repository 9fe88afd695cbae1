"""Checks that the account has the rights it needs on the cluster."""

from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.fields import value_at

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_RIGHTS = (
    ("batch", "jobs", "create"),
    ("batch", "jobs", "watch"),
    ("batch", "jobs", "patch"),
    ("batch", "jobs", "delete"),
    ("batch", "jobs", "get"),
    ("batch", "jobs", "list"),
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("", "pods", "patch"),
    ("", "pods", "delete"),
    ("", "pods/log", "get"),
    ("", "secrets", "create"),
    ("", "services", "create"),
    ("", "events", "list"),
)


async def missing_rights(api: KubernetesApi, namespace: str) -> list[str]:
    """The rights that the account lacks in the namespace, each as `verb resource`."""
    missing: list[str] = []
    for group, resource, verb in _RIGHTS:
        name, _, subresource = resource.partition("/")
        attributes = {
            "namespace": namespace,
            "group": group,
            "resource": name,
            "subresource": subresource,
            "verb": verb,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await api.call("POST", _REVIEWS, review)
        if not value_at(answer, "status", "allowed"):
            missing.append(f"{verb} {resource}")
    return missing
