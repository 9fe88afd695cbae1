"""What the server says of itself."""

from tests.support.kubernetes.errors import no_such_path
from tests.support.kubernetes.kinds import GROUPS, KINDS, VERBS
from tests.support.kubernetes.objects import Object

KUEUE = "kueue.x-k8s.io"


def answer(path: str, version: str, *, kueue: bool) -> Object:
    """`/version`, `/api`, `/apis` and what is below; 404. `kueue`: it is installed."""
    path = path.rstrip("/")
    if path == "/version":
        major, minor = version.split(".")[:2]
        return {
            "major": major,
            "minor": minor,
            "gitVersion": f"v{version}.0",
            "gitCommit": "",
            "gitTreeState": "clean",
            "buildDate": "2024-04-17T17:27:03Z",
            "goVersion": "go1.22.2",
            "compiler": "gc",
            "platform": "linux/amd64",
        }
    if path == "/api":
        return {
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        }
    if path == "/apis":
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(each) for each in GROUPS],
        }
    if path in ("/healthz", "/livez", "/readyz"):
        return {"status": "ok"}
    parts = path.split("/")[1:]
    if parts == ["apis", KUEUE] and kueue:
        return _group(KUEUE)
    if parts == ["api", "v1"]:
        return _resources("", "v1")
    if parts[0] == "apis" and len(parts) in (2, 3) and parts[1] in GROUPS:
        return _group(parts[1]) if len(parts) == 2 else _resources(parts[1], parts[2])
    raise no_such_path()


def _group(group: str) -> Object:
    version = {"groupVersion": f"{group}/v1", "version": "v1"}
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": group,
        "versions": [version],
        "preferredVersion": version,
    }


def _resources(group: str, version: str) -> Object:
    found: list[Object] = [
        {
            "name": each.plural,
            "singularName": each.kind.lower(),
            "namespaced": each.namespaced,
            "kind": each.kind,
            "verbs": VERBS,
        }
        for each in KINDS.values()
        if each.group == group
    ]
    if not group:
        found += [
            {
                "name": "pods/log",
                "singularName": "",
                "namespaced": True,
                "kind": "Pod",
                "verbs": ["get"],
            },
            {
                "name": "pods/exec",
                "singularName": "",
                "namespaced": True,
                "kind": "PodExecOptions",
                "verbs": ["create", "get"],
            },
            {
                "name": "pods/eviction",
                "singularName": "",
                "namespaced": True,
                "kind": "Eviction",
                "group": "policy",
                "version": "v1",
                "verbs": ["create"],
            },
        ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": found,
    }
