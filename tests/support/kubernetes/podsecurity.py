"""Pod Security admission: what a namespace with the label
`pod-security.kubernetes.io/enforce: restricted` refuses of pods.

Jobs are let in whatever their template says, and then their pods are not.
"""

from tests.support.kubernetes import errors
from tests.support.kubernetes.kinds import KINDS
from tests.support.kubernetes.objects import Object, labels

ENFORCE = "pod-security.kubernetes.io/enforce"
_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)


def check(space: Object, pod: Object) -> None:
    """403 for a pod that the namespace does not let in."""
    if labels(space).get(ENFORCE) != "restricted":
        return
    found = list(_violations(pod["spec"]))
    if found:
        called = pod["metadata"].get("name") or pod["metadata"].get("generateName", "")
        why = f'violates PodSecurity "restricted:latest": {", ".join(found)}'
        raise errors.forbidden(KINDS["pods"], called, why)


def _violations(spec: Object) -> list[str]:
    whole = spec.get("securityContext") or {}
    (container,) = spec["containers"]
    named = f'container "{container["name"]}"'
    own = container.get("securityContext") or {}
    both = {**whole, **own}
    found: list[str] = []
    if own.get("allowPrivilegeEscalation") is not False:
        found.append(
            f"allowPrivilegeEscalation != false ({named} must set"
            " securityContext.allowPrivilegeEscalation=false)"
        )
    if "ALL" not in (own.get("capabilities") or {}).get("drop", ()):
        found.append(
            f"unrestricted capabilities ({named} must set"
            ' securityContext.capabilities.drop=["ALL"])'
        )
    kinds = {kind for volume in spec.get("volumes") or () for kind in volume} - {"name"}
    if kinds - _VOLUMES:
        types = ", ".join(f'"{kind}"' for kind in sorted(kinds - _VOLUMES))
        found.append(f"restricted volume types (volumes use {types})")
    if not both.get("runAsNonRoot"):
        found.append(
            f"runAsNonRoot != true (pod or {named} must set"
            " securityContext.runAsNonRoot=true)"
        )
    if both.get("runAsUser") == 0:
        found.append("runAsUser=0 (pod must not set runAsUser=0)")
    profile = (both.get("seccompProfile") or {}).get("type")
    if profile not in ("RuntimeDefault", "Localhost"):
        found.append(
            f"seccompProfile (pod or {named} must set"
            ' securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")'
        )
    return found
