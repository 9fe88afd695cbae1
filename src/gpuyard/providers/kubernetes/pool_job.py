"""The Job of a pool's node, and the Secret by which it joins the instance."""

from collections.abc import Sequence

from gpuyard.domain.offers import Offer
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.fields import Json, text_at
from gpuyard.providers.kubernetes.manifest import (
    CONTAINER,
    MANAGED,
    QUEUE,
    TERM_GRACE_S,
    pod_security,
    volume_of,
)
from gpuyard.providers.kubernetes.supply import Supply
from gpuyard.providers.pool_hands import PoolOrder

NODE = "gpuyard.dev/pool-node"
INSTANCE = "gpuyard.dev/instance"
"""Labels: the row of the node, and the instance whose it is. Others may use the same
namespace.
"""
# Not that of attempts: nobody takes the Job of a node for one of those.
_MANAGER = "gpuyard-pool"
_CODE = "JOIN_CODE"
GRACE_S = TERM_GRACE_S


def name_of(owner: str) -> str:
    """The name of a node's Job. The cluster refuses a second Job of that name."""
    return f"gpuyard-{owner.replace('_', '-').lower()}"


def selector_of(*instances: str) -> str:
    """Selects the Jobs and the pods of the nodes with one of these labels."""
    return f"{MANAGED}={_MANAGER},{INSTANCE} in ({','.join(instances)})"


def selector_of_node(owner: str) -> str:
    """Selects the Job and the pods of a node."""
    return f"{MANAGED}={_MANAGER},{NODE}={owner}"


def instance_of(job: Json) -> str:
    """The label of the instance whose node it is."""
    return text_at(job, "metadata", "labels", INSTANCE)


def job_of(
    order: PoolOrder,
    labels: dict[str, str],
    settings: KubernetesConfig,
    supply: Supply,
    image: str,
    script: str,
    lifetime_s: float,
) -> Json:
    """The Job. It is suspended until its Secret is made, which needs the Job's uid."""
    spec: Json = {
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": settings.ttl_s,
        "template": {
            "metadata": {"labels": labels},
            "spec": _pod(order, settings, supply, image, script),
        },
        "suspend": True,
    }
    if lifetime_s:
        spec["activeDeadlineSeconds"] = int(lifetime_s)
    of_queue = {QUEUE: settings.queue} if settings.queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name_of(order.owner), "labels": {**labels, **of_queue}},
        "spec": spec,
    }


def labels_of(order: PoolOrder, instance: str) -> dict[str, str]:
    """The labels of a node's objects."""
    # An id has an underscore within, which a label may have.
    return {MANAGED: _MANAGER, NODE: order.owner, INSTANCE: instance}


def secret_of(order: PoolOrder, labels: dict[str, str], job: Json) -> Json:
    """What only the node may know. The cluster removes it with the Job."""
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name_of(order.owner),
        "uid": text_at(job, "metadata", "uid"),
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "immutable": True,
        "metadata": {
            "name": name_of(order.owner),
            "labels": labels,
            "ownerReferences": [owner],
        },
        "stringData": {_CODE: order.join_code},
    }


def _pod(
    order: PoolOrder,
    settings: KubernetesConfig,
    supply: Supply,
    image: str,
    script: str,
) -> Json:
    offer = supply.offer
    volumes, mounts = _volumes(settings)
    tolerations = settings.tolerations if offer.gpus else supply.tolerations
    pod: Json = {
        "restartPolicy": "Never",
        "containers": [_container(order, settings, offer, image, script, mounts)],
        "volumes": volumes,
        "terminationGracePeriodSeconds": int(GRACE_S),
        # Process 1 ignores TERM unless it handles it.
        "shareProcessNamespace": True,
        "automountServiceAccountToken": False,
        "nodeSelector": {**settings.node_selector, **supply.selector},
        "tolerations": [taint.model_dump(exclude_none=True) for taint in tolerations],
        "securityContext": pod_security(settings),
    }
    if settings.service_account is not None:
        pod["serviceAccountName"] = settings.service_account
    if settings.runtime_class is not None and offer.gpus:
        pod["runtimeClassName"] = settings.runtime_class
    if settings.image_pull_secrets:
        secrets = [{"name": name} for name in settings.image_pull_secrets]
        pod["imagePullSecrets"] = secrets
    return pod


def _container(
    order: PoolOrder,
    settings: KubernetesConfig,
    offer: Offer,
    image: str,
    script: str,
    mounts: Sequence[Json],
) -> Json:
    name = name_of(order.owner)
    code = {"secretKeyRef": {"name": name, "key": _CODE}}
    requests: Json = {
        "cpu": f"{round(offer.cpus * 1000)}m",
        "memory": str(int(offer.memory_gb * (1 << 30))),
    }
    # Cores that nobody else uses are its own, too.
    limits: Json = {"memory": requests["memory"]}
    if offer.gpus:
        requests[settings.gpu_resource] = str(offer.gpus)
        limits[settings.gpu_resource] = str(offer.gpus)
    return {
        "name": CONTAINER,
        "image": image,
        # Kubernetes replaces `$(NAME)`, and reads `$$` as a dollar.
        "command": ["/bin/sh", "-c", script.replace("$", "$$")],
        "env": [
            {"name": _CODE, "valueFrom": code},
            {"name": "HOME", "value": "/tmp"},
            {"name": "USER", "value": "gpuyard"},
        ],
        "workingDir": "/tmp",
        "volumeMounts": list(mounts),
        "resources": {"limits": limits, "requests": requests},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": not settings.writable_root,
        },
    }


def _volumes(settings: KubernetesConfig) -> tuple[list[Json], list[Json]]:
    """The pod's volumes, and where they are mounted: what jobs write lies in /tmp, data
    loaders use shared memory, and the claims of the settings are for all jobs.
    """
    volumes: list[Json] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    mounts: list[Json] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    for number, (inside, source) in enumerate(settings.volumes.items()):
        volume, folder = volume_of(inside, source, settings)
        mount = {"name": f"v{number}", "mountPath": inside}
        if folder:
            mount["subPath"] = folder
        volumes.append({"name": f"v{number}", **volume})
        mounts.append(mount)
    return volumes, mounts
