"""Objects are plain JSON; what stands in the store is never changed in place."""

import secrets
import uuid
from collections.abc import Iterable
from typing import Any

Object = dict[str, Any]
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def clone(value: Any) -> Any:
    """A deep copy of JSON."""
    if isinstance(value, dict):
        return {key: clone(each) for key, each in value.items()}
    if isinstance(value, list):
        return [clone(each) for each in value]
    return value


def suffix(length: int = 5) -> str:
    """The random end of a generated name, from the letters that Kubernetes takes."""
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


def new_uid() -> str:
    return str(uuid.uuid4())


def name(obj: Object) -> str:
    return obj["metadata"]["name"]


def namespace(obj: Object) -> str:
    """Empty for what has none."""
    return obj["metadata"].get("namespace", "")


def uid(obj: Object) -> str:
    return obj["metadata"]["uid"]


def labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def annotations(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def deleting(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def phase(obj: Object) -> str:
    return obj.get("status", {}).get("phase", "")


def ended(pod: Object) -> bool:
    """Whether a pod has reached its last phase."""
    return phase(pod) in ("Succeeded", "Failed")


def containers(pod: Object) -> list[Object]:
    """All of them, those that come first too."""
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def condition(obj: Object, kind: str) -> Object | None:
    """The condition of that type."""
    return next(
        (
            each
            for each in obj.get("status", {}).get("conditions") or ()
            if each["type"] == kind
        ),
        None,
    )


def holds(obj: Object, kind: str) -> bool:
    """Whether that condition is true."""
    found = condition(obj, kind)
    return found is not None and found["status"] == "True"


def set_condition(
    draft: Object,
    kind: str,
    status: str,
    stamp: str,
    *,
    reason: str = "",
    message: str = "",
) -> None:
    """Write a condition; its transition time changes only with its status."""
    conditions = draft.setdefault("status", {}).setdefault("conditions", [])
    found = condition(draft, kind)
    if found is None:
        found = {
            "type": kind,
            "status": status,
            "lastProbeTime": None,
            "lastTransitionTime": stamp,
        }
        conditions.append(found)
    if found["status"] != status:
        found |= {"status": status, "lastTransitionTime": stamp}
    for key, value in (("reason", reason), ("message", message)):
        if value:
            found[key] = value
        else:
            found.pop(key, None)


def owner(obj: Object) -> Object | None:
    """The reference to what controls it."""
    references: Iterable[Object] = obj["metadata"].get("ownerReferences") or ()
    return next((each for each in references if each.get("controller")), None)


def owned_by(child: Object, parent: Object) -> bool:
    reference = owner(child)
    return reference is not None and reference["uid"] == uid(parent)
