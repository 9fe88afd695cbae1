"""Builds the Job of an attempt, and the objects that it refers to."""

import base64
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from gpuyard.domain.attempt_order import DEFAULT_ENVIRONMENT, AttemptOrder
from gpuyard.domain.datasets import DatasetMount
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import without_gpu_choice
from gpuyard.providers.kubernetes.config import KubernetesConfig, Toleration
from gpuyard.providers.kubernetes.fields import Json, text_at

MANAGED = "app.kubernetes.io/managed-by"
ATTEMPT = "gpuyard.dev/attempt"
JOB = "gpuyard.dev/job"
LIMITS = "gpuyard.dev/limits"
PRICE = "gpuyard.dev/price-per-hour"
STOP = "gpuyard.dev/stop"
"""Labels and annotations of a Job: its attempt and job, its limits, its price per hour,
and why it is being stopped.
"""
OURS = f"{MANAGED}=gpuyard"
QUEUE = "kueue.x-k8s.io/queue-name"
CONTAINER = "job"
# A shell starts background programs with these signals ignored.
_IGNORED_SIGNALS = frozenset({"INT", "QUIT"})
TERM_GRACE_S = 10.0
# Kubernetes ends a pod this long after its timeout: it needs time to pull the image,
# and gpuyard ends the pod first.
_BACKSTOP_S = 3600
# The key of standard input in the Secret; no environment variable can have this name.
_STDIN_KEY = "gpuyard.stdin"
_WORK = "/gpuyard/work"
_STDIN = "/gpuyard/stdin"
_RESUME = "/gpuyard/resume"
_WORKSPACE = "/workspace"
DATASETS = "datasets"
WORKSPACES = "workspaces"
"""The folder of workspaces on the volume, beside the folders of attempts."""
# A shell script that runs the program. It sends the checkpoint signal at each interval,
# once the program handles it, and when the pod is ended, and TERM after the grace.
# `wait` also returns when the shell gets a signal, so it is repeated until the program
# has ended.
_GUARD = """
exec 3<"${1:-/dev/null}"
signal=$2 every=$3 grace=$4 number=$5; shift 5
"$@" <&3 3<&- & child=$!
handles() {
  [ -r /proc/$child/status ] || return 0
  while read -r name mask; do
    [ "$name" != SigCgt: ] || return $(((0x$mask >> (number - 1) & 1) == 0))
  done < /proc/$child/status
}
leave() {
  trap '' TERM
  [ -z "$signal" ] || kill -s "$signal" $child
  (sleep "$grace"; kill -s TERM $child) >/dev/null 2>&1 & killer=$!
}
trap leave TERM
if [ -n "$signal" ] && [ "$every" != 0 ]; then
  (while sleep "$every"; do
    if handles; then kill -s "$signal" $child || exit; fi
  done) >/dev/null 2>&1 & timer=$!
fi
while :; do
  wait $child; code=$?
  kill -0 $child 2>/dev/null || break
done
kill -s KILL $killer $timer 2>/dev/null
exit $code
"""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the pods of a Job may run, and at what price per hour of the whole Job.

    `selector`: the labels that select the nodes. `avoided`: names of nodes that have
    just refused a pod.
    """

    selector: Mapping[str, str] = field(default_factory=dict[str, str])
    tolerations: Sequence[Toleration] = ()
    avoided: Sequence[str] = ()
    price: Decimal = Decimal(0)


def name_of(attempt_id: str) -> str:
    """The name of an attempt's Job. The cluster refuses a second Job of that name."""
    return f"gpuyard-{attempt_id.replace('_', '-').lower()}"


def parts_of(order: AttemptOrder, job: Json) -> dict[str, Json]:
    """The objects that the Job refers to, by their kind in API paths.

    The Job owns them, so the cluster removes them with the Job.
    """
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name_of(order.attempt_id),
        "uid": text_at(job, "metadata", "uid"),
        "blockOwnerDeletion": False,
    }
    optional = {"secrets": _secret_of(order), "services": _service_of(order)}
    parts = {kind: part for kind, part in optional.items() if part is not None}
    for part in parts.values():
        part["metadata"]["ownerReferences"] = [owner]
    return parts


def _secret_of(order: AttemptOrder) -> Json | None:
    """The job's environment and standard input, which may be secret.

    None when it has neither.
    """
    values = {name: value.encode() for name, value in _own_variables(order).items()}
    if order.stdin is not None:
        values[_STDIN_KEY] = order.stdin
    if not values:
        return None
    data = {key: base64.b64encode(value).decode() for key, value in values.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "immutable": True,
        "metadata": {"name": name_of(order.attempt_id), "labels": _labels(order)},
        "data": data,
    }


def _own_variables(order: AttemptOrder) -> dict[str, str]:
    """The job's own variables, without this host's PATH and without a choice of GPUs,
    which the cluster makes.
    """
    (variables, _) = without_gpu_choice(order.whole_environment)
    variables.pop("PATH", None)
    return variables


def job_of(order: AttemptOrder, settings: KubernetesConfig, target: Target) -> Json:
    """The Job of an attempt. ProviderError names what the cluster cannot do."""
    _refuse_impossible(order, settings.provider)
    nodes = order.nodes
    limits = {
        "timeout_s": order.timeout_s,
        "grace_s": order.grace_s,
        "signal": order.checkpoint.signal,
        "path": order.checkpoint.path,
    }
    disrupted = {
        "action": "Count" if order.retries else "FailJob",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    spec: Json = {
        "backoffLimit": order.retries,
        "parallelism": nodes,
        "completions": nodes,
        "ttlSecondsAfterFinished": settings.ttl_s,
        "completionMode": "Indexed" if nodes > 1 else "NonIndexed",
        # The Job then says that its pod was evicted, even when the pod is gone.
        "podFailurePolicy": {"rules": [disrupted]},
        "template": {
            "metadata": {"labels": _labels(order)},
            "spec": _pod(order, settings, target),
        },
        # Its pods wait until the objects that it refers to are made, which need the
        # Job's uid. With Kueue they wait for Kueue.
        "suspend": True,
    }
    labels = _labels(order)
    if settings.queue:
        labels[QUEUE] = settings.queue
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name_of(order.attempt_id),
            "labels": labels,
            "annotations": {LIMITS: json.dumps(limits), PRICE: str(target.price)},
        },
        "spec": spec,
    }


def _refuse_impossible(order: AttemptOrder, provider: str) -> None:
    if order.checkpoint.signal in _IGNORED_SIGNALS:
        message = (
            f"checkpoint.signal {order.checkpoint.signal} does not reach a program"
            " that a shell has started. Use USR1, USR2, TERM or HUP."
        )
        raise ProviderError(message, provider, "BAD_SIGNAL")
    if order.retries and order.nodes > 1:
        message = (
            f"retry_count is {order.retries}, and a job on several nodes runs once;"
            " submit it to the gpuyard server, which tries it again."
        )
        raise ProviderError(message, provider, "UNSUPPORTED")


def _service_of(order: AttemptOrder) -> Json | None:
    """The Service by which the pods of a gang find each other by name.

    None for a job of one pod.
    """
    if order.nodes < 2:
        return None
    name = name_of(order.attempt_id)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": _labels(order)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": name},
        },
    }


def _labels(order: AttemptOrder) -> dict[str, str]:
    return {
        MANAGED: "gpuyard",
        ATTEMPT: order.attempt_id,
        JOB: order.job_id,
    }


def _pod(order: AttemptOrder, settings: KubernetesConfig, target: Target) -> Json:
    volumes, mounts = _volumes(order, settings)
    grace_s = order.grace_s if order.checkpoint.signal else 0.0
    pod: Json = {
        "restartPolicy": "Never",
        "containers": [_container(order, settings, mounts)],
        "volumes": volumes,
        "terminationGracePeriodSeconds": int(grace_s + TERM_GRACE_S),
        # Process 1 ignores TERM unless it handles it. With this, process 1 is the pod's
        # pause process and not the job's program.
        "shareProcessNamespace": True,
        "automountServiceAccountToken": False,
        "nodeSelector": {**settings.node_selector, **target.selector},
        "tolerations": [
            taint.model_dump(exclude_none=True) for taint in target.tolerations
        ],
        "securityContext": pod_security(settings),
    }
    if target.avoided:
        pod["affinity"] = {"nodeAffinity": _anywhere_but(target.avoided)}
    if order.timeout_s:
        pod["activeDeadlineSeconds"] = int(order.timeout_s) + _BACKSTOP_S
    priority_class = settings.priority_classes.get(str(order.priority or ""))
    if priority_class is not None:
        pod["priorityClassName"] = priority_class
    if settings.service_account is not None:
        pod["serviceAccountName"] = settings.service_account
    if settings.runtime_class is not None and order.gpu_spec.gpu_count:
        pod["runtimeClassName"] = settings.runtime_class
    if settings.image_pull_secrets:
        secrets = [{"name": name} for name in settings.image_pull_secrets]
        pod["imagePullSecrets"] = secrets
    if order.nodes > 1:
        pod["subdomain"] = name_of(order.attempt_id)
    return pod


def pod_security(settings: KubernetesConfig) -> Json:
    """As the Pod Security Standard `restricted` wants it, unless the user is root."""
    security: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    user = settings.user
    if user is not None:
        group = os.getgid() if user == os.getuid() else user
        security |= {"runAsUser": user, "runAsGroup": group}
    if user:
        security["runAsNonRoot"] = True
    if settings.group is not None:
        security |= {
            "fsGroup": settings.group,
            # Otherwise each start goes through all files of a volume.
            "fsGroupChangePolicy": "OnRootMismatch",
        }
    return security


def _anywhere_but(nodes: Sequence[str]) -> Json:
    fields = [
        {"key": "metadata.name", "operator": "NotIn", "values": [name]}
        for name in nodes
    ]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _container(
    order: AttemptOrder, settings: KubernetesConfig, mounts: list[Json]
) -> Json:
    workdir = order.workdir or ""
    volumes = (*settings.volumes, *order.volumes)
    is_mounted = any(
        workdir == path or workdir.startswith(f"{path.rstrip('/')}/")
        for path in volumes
    )
    return {
        "name": CONTAINER,
        "image": order.image,
        # Kubernetes replaces `$(NAME)`, and reads `$$` as a dollar.
        "command": [word.replace("$", "$$") for word in _command(order, settings)],
        "env": _environment(order, settings),
        "workingDir": workdir if is_mounted else _WORK,
        "volumeMounts": mounts,
        "resources": _resources(order, settings),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": not settings.writable_root,
        },
    }


def _command(order: AttemptOrder, settings: KubernetesConfig) -> list[str]:
    """The program; in a guard script if it has input or a checkpoint signal."""
    checkpoint = order.checkpoint
    command = list(order.command)
    if resume := resume_path(order, settings):
        command += order.resume_args(resume)
    if not checkpoint.signal and order.stdin is None:
        return command
    stdin = f"{_STDIN}/stdin" if order.stdin is not None else ""
    grace_s = order.grace_s if checkpoint.signal else 0.0
    guard = [
        "/bin/sh",
        "-c",
        _GUARD,
        "gpuyard",
        stdin,
        checkpoint.signal or "",
        f"{checkpoint.every_s or 0:g}",
        f"{grace_s:g}",
        str(_number_of(checkpoint.signal)),
    ]
    return [*guard, *command]


def _number_of(name: str | None) -> int:
    """The number of a signal on Linux; 0 for none."""
    return signal.Signals[f"SIG{name}"].value if name else 0


def resume_path(order: AttemptOrder, settings: KubernetesConfig) -> str:
    """The checkpoint to continue from, in the container; empty when there is none."""
    if not settings.spool or order.resume_from is None:
        return ""
    return f"{_RESUME}/{order.resume_from.name}"


def _environment(order: AttemptOrder, settings: KubernetesConfig) -> list[Json]:
    """The job's own variables, which come from the Secret, and gpuyard's."""
    nodes = order.nodes
    name = name_of(order.attempt_id)
    values = {
        "GPUYARD_JOB_ID": order.job_id,
        "GPUYARD_ATTEMPT_ID": order.attempt_id,
        "GPUYARD_ATTEMPT": str(order.token),
    }
    if resume := resume_path(order, settings):
        values["GPUYARD_RESUME_FROM"] = resume
    if settings.spool and order.workspace:
        values["GPUYARD_WORKSPACE"] = _WORKSPACE
    if settings.spool:
        values |= {mount.variable: mount.path for mount in order.datasets}
    given = _own_variables(order)
    defaults = {**DEFAULT_ENVIRONMENT, "HOME": "/tmp"}
    if settings.user:
        # Programs look for their user in the image, which does not know this one.
        defaults["USER"] = "gpuyard"
    values |= {name: value for name, value in defaults.items() if name not in given}
    if not order.gpu_spec.gpu_count:
        values |= {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
    if nodes > 1:
        values |= {
            "NNODES": str(nodes),
            "MASTER_ADDR": f"{name}-0.{name}",
            "MASTER_PORT": "29500",
        }
    variables: list[Json] = []
    for key in given:
        if key not in values:
            reference = {"secretKeyRef": {"name": name, "key": key}}
            variables.append({"name": key, "valueFrom": reference})
    for key, value in values.items():
        variables.append({"name": key, "value": value.replace("$", "$$")})
    if nodes > 1:
        index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        reference = {"fieldRef": {"fieldPath": index}}
        variables.append({"name": "NODE_RANK", "valueFrom": reference})
    return variables


def _resources(order: AttemptOrder, settings: KubernetesConfig) -> Json:
    need = order.gpu_spec
    limits: Json = {}
    if need.vcpus:
        limits["cpu"] = f"{round(need.vcpus * 1000)}m"
    if need.ram_gb:
        limits["memory"] = str(int(need.ram_gb * (1 << 30)))
    if need.gpu_count:
        limits[settings.gpu_resource] = str(need.gpu_count)
    return {"limits": limits, "requests": dict(limits)}


def _volumes(
    order: AttemptOrder, settings: KubernetesConfig
) -> tuple[list[Json], list[Json]]:
    """The pod's volumes, and where they are mounted.

    /tmp and the work folder need volumes: an image's root file system is read-only.
    """
    volumes: list[Json] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[Json] = [{"name": "tmp", "mountPath": "/tmp"}]
    if settings.spool_claim:
        claim = settings.spool_claim.partition("/")[0]
        volumes.append({"name": "spool", "persistentVolumeClaim": {"claimName": claim}})
        mounts += _spool_mounts(order, settings.spool_claim)
    else:
        volumes.append({"name": "work", "emptyDir": {}})
        mounts.append({"name": "work", "mountPath": _WORK})
    if order.gpu_spec.gpu_count:
        # Data loaders pass batches in shared memory. A container has 64 MB by default.
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    if order.stdin is not None:
        items = [{"key": _STDIN_KEY, "path": "stdin"}]
        secret = {"secretName": name_of(order.attempt_id), "items": items}
        volumes.append({"name": "stdin", "secret": secret})
        mounts.append({"name": "stdin", "mountPath": _STDIN, "readOnly": True})
    sources = {**settings.volumes, **order.volumes}
    for number, (inside, source) in enumerate(sources.items()):
        name = f"v{number}"
        volume, folder = volume_of(inside, source, settings)
        mount = {"name": name, "mountPath": inside}
        if folder:
            mount["subPath"] = folder
        volumes.append({"name": name, **volume})
        mounts.append(mount)
    return volumes, mounts


def _spool_mounts(order: AttemptOrder, spool_claim: str) -> list[Json]:
    """The attempt's folders on the spool volume, and its workspace."""
    root = spool_claim.partition("/")[2]
    prefix = f"{root}/" if root else ""
    folder = f"{prefix}{name_of(order.attempt_id)}"
    work = {"name": "spool", "mountPath": _WORK, "subPath": f"{folder}/work"}
    resume = {
        "name": "spool",
        "mountPath": _RESUME,
        "subPath": f"{folder}/resume",
        "readOnly": True,
    }
    mounts: list[Json] = [work, resume]
    mounts += [_dataset_mount(mount, prefix) for mount in order.datasets]
    if order.workspace:
        path = f"{prefix}{WORKSPACES}/{order.workspace}"
        mounts.append({"name": "spool", "mountPath": _WORKSPACE, "subPath": path})
    return mounts


def _dataset_mount(mount: DatasetMount, prefix: str) -> Json:
    return {
        "name": "spool",
        "mountPath": mount.path,
        "subPath": f"{prefix}{DATASETS}/copies/{mount.digest}/files",
        "readOnly": True,
    }


def volume_of(inside: str, source: str, settings: KubernetesConfig) -> tuple[Json, str]:
    """A volume from `pvc:NAME/FOLDER` or a path of the nodes, and the folder in it."""
    if source.startswith("pvc:"):
        claim, _, folder = source.removeprefix("pvc:").partition("/")
        return {"persistentVolumeClaim": {"claimName": claim}}, folder
    if settings.host_paths:
        return {"hostPath": {"path": source}}, ""
    message = (
        f"volumes.{inside} is {source}, and folders of this host are not on the"
        " cluster; write pvc:NAME/FOLDER."
    )
    raise ProviderError(message, settings.provider, "BAD_VOLUME")
