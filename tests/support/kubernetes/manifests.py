"""Small manifests for tests."""

from typing import Any

from tests.support.kubernetes.objects import Object


def pod(
    name: str,
    script: str = "true",
    *,
    gpus: int = 0,
    container: Object | None = None,
    **spec: Any,
) -> Object:
    """A pod whose one container runs a shell script.

    `container` and `spec` say more, or otherwise.
    """
    main: Object = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sh", "-c", script],
    }
    if gpus:
        main["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
        spec.setdefault(
            "tolerations", [{"key": "nvidia.com/gpu", "operator": "Exists"}]
        )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [main | (container or {})],
            **spec,
        },
    }


def job(
    name: str, script: str = "true", *, pod_spec: Object | None = None, **spec: Any
) -> Object:
    """A Job of such pods; `gpus` and `container` are the pod's, the rest of `spec` is
    the Job's own.
    """
    parts = {key: spec.pop(key) for key in ("gpus", "container") if key in spec}
    template = {"spec": pod(name, script, **parts, **(pod_spec or {}))["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": template, **spec},
    }
