"""What a container's command and variables are, once references and `$(NAME)` are
resolved.
"""

import base64
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from tests.support.kubernetes import quantity
from tests.support.kubernetes.objects import (
    Object,
    annotations,
    labels,
    name,
    namespace,
)
from tests.support.kubernetes.store import Store


class ConfigError(Exception):
    """The container cannot be made: what it refers to is not there."""


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` as Kubernetes resolves it: `$$` is a dollar, an unknown name stays as
    it is.
    """

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return known.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^()]*)\)", value, text)


def variables(
    store: Store, pod: Object, container: Object, base: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment; ConfigError."""
    # A plain Python comes first, so that it is neither a virtual environment nor a shim
    # that is started.
    found = {
        "PATH": f"{sys.base_prefix}/bin:{os.environ['PATH']}",
        "HOME": "/root",
        "HOSTNAME": hostname(pod),
        **base,
    }
    own: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        own |= _all(store, pod, source)
    for each in container.get("env") or ():
        if each.get("valueFrom"):
            value = _reference(store, pod, container, each["valueFrom"])
            if value is not None:
                own[each["name"]] = value
        else:
            own[each["name"]] = expand(each.get("value") or "", {**base, **own})
    return {**found, **own}


def hostname(pod: Object) -> str:
    return pod["spec"].get("hostname") or name(pod)[:63]


def _all(store: Store, pod: Object, source: Object) -> dict[str, str]:
    kind = "secretRef" if "secretRef" in source else "configMapRef"
    data = read(store, pod, kind, source[kind])
    return {
        source.get("prefix", "") + key: value.decode()
        for key, value in (data or {}).items()
    }


def read(
    store: Store, pod: Object, kind: str, reference: Object
) -> dict[str, bytes] | None:
    """What a secret or config map holds; None where it may be missing and is.

    ConfigError.
    """
    secret = kind.startswith("secret")
    plural = "secrets" if secret else "configmaps"
    called = reference.get("name") or reference.get("secretName", "")
    found = store.find(plural, namespace(pod), called)
    if found is None:
        if reference.get("optional"):
            return None
        raise ConfigError(f'{plural[:-1]} "{called}" not found')
    if secret:
        return {
            key: base64.b64decode(value)
            for key, value in (found.get("data") or {}).items()
        }
    binary = {
        key: base64.b64decode(value)
        for key, value in (found.get("binaryData") or {}).items()
    }
    return {
        **{key: value.encode() for key, value in (found.get("data") or {}).items()},
        **binary,
    }


def _reference(
    store: Store, pod: Object, container: Object, source: Object
) -> str | None:
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource(container, source["resourceFieldRef"])
    kind = "secretKeyRef" if "secretKeyRef" in source else "configMapKeyRef"
    reference = source[kind]
    data = read(store, pod, kind, reference)
    if data is not None and reference["key"] in data:
        return data[reference["key"]].decode()
    if reference.get("optional"):
        return None
    what = "Secret" if kind == "secretKeyRef" else "ConfigMap"
    raise ConfigError(
        f"couldn't find key {reference['key']} in"
        f" {what} {namespace(pod)}/{reference['name']}"
    )


def _field(pod: Object, path: str) -> str:
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return (labels(pod) if match[1] == "labels" else annotations(pod)).get(
            match[2], ""
        )
    value: Any = pod
    for key in path.split("."):
        value = value.get(key, "") if isinstance(value, dict) else ""
    return str(value)


def _resource(container: Object, reference: Object) -> str:
    part, _, resource = reference["resource"].partition(".")
    value = ((container.get("resources") or {}).get(part) or {}).get(resource, "0")
    divisor = quantity.parse(reference.get("divisor") or "1") or 1
    return str(-int(-quantity.parse(value) // divisor))


def check_user(pod: Object) -> None:
    """ConfigError for a program that must not be root and would be: all images here
    are root's.
    """
    who = pod["spec"].get("securityContext") or {}
    if who.get("runAsNonRoot") and not who.get("runAsUser"):
        raise ConfigError("container has runAsNonRoot and image will run as root")
