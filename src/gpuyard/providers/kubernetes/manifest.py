"""A Job: what the cluster is told of an attempt."""

import base64
import json
import os
from collections.abc import Mapping
from decimal import Decimal

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import JobConfig
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.fields import Json, text

MANAGED, ATTEMPT, JOB = "app.kubernetes.io/managed-by", "gpuyard.dev/attempt", "gpuyard.dev/job"
LIMITS, PRICE, STOP = "gpuyard.dev/limits", "gpuyard.dev/price-per-hour", "gpuyard.dev/stop"
"""Labels and annotations of a Job: whose it is, its limits, what an hour of it costs, and why it is to end."""
OURS = f"{MANAGED}=gpuyard"
QUEUE = "kueue.x-k8s.io/queue-name"
CONTAINER = "job"
# A shell starts what it does not wait for with these ignored.
_DEAF = frozenset({"INT", "QUIT"})
TERM_GRACE_S = 10.0
# Kubernetes ends a pod by itself so long after its timeout: time to pull the image, and gpuyard comes first.
_BACKSTOP_S = 3600
# No variable can be called that.
_INPUT = "gpuyard.stdin"
_WORK, _STDIN, _RESUME, _WORKSPACE = "/gpuyard/work", "/gpuyard/stdin", "/gpuyard/resume", "/workspace"
WORKSPACES = "workspaces"
"""The folder of workspaces on the volume, beside those of attempts."""
# The program is asked to save its work with its own signal, every so often and when the pod is told to leave, and gets
# TERM when its grace is over. `wait` returns whenever the shell has had a signal, so it is asked until it is right.
_GUARD = """
exec 3<"${1:-/dev/null}"
signal=$2 every=$3 grace=$4; shift 4
"$@" <&3 3<&- & child=$!
leave() {
  trap '' TERM
  [ -z "$signal" ] || kill -s "$signal" $child
  (sleep "$grace"; kill -s TERM $child) >/dev/null 2>&1 & killer=$!
}
trap leave TERM
if [ -n "$signal" ] && [ "$every" != 0 ]; then
  (while sleep "$every"; do kill -s "$signal" $child || exit; done) >/dev/null 2>&1 & timer=$!
fi
while :; do
  wait $child; code=$?
  kill -0 $child 2>/dev/null || break
done
kill -s KILL $killer $timer 2>/dev/null
exit $code
"""


def name_of(attempt_id: str) -> str:
    """What the Job of an attempt is called; the cluster itself refuses a second of that name."""
    return f"gpuyard-{attempt_id.replace('_', '-').lower()}"


def parts_of(config: JobConfig, job: Json) -> dict[str, Json]:
    """What the Job refers to, by kind as in paths. It belongs to the Job, and the cluster removes it with that."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name_of(config.attempt_id or ""),
             "uid": text(job, "metadata", "uid"), "blockOwnerDeletion": False}  # fmt: skip
    found = {"secrets": _secret_of(config), "services": _service_of(config)}
    parts = {kind: part for kind, part in found.items() if part is not None}
    for part in parts.values():
        part["metadata"]["ownerReferences"] = [owner]
    return parts


def _secret_of(config: JobConfig) -> Json | None:
    """What the job's environment and input say, which may be secret; None when they say nothing."""
    values = {name: value.encode() for name, value in config.environment.items() if name != "PATH"}
    if config.args_via_stdin is not None:
        values[_INPUT] = config.args_via_stdin
    if not values:
        return None
    name = name_of(config.attempt_id or "")
    return {
        "apiVersion": "v1", "kind": "Secret", "immutable": True,
        "metadata": {"name": name, "labels": _labels(config)},
        "data": {key: base64.b64encode(value).decode() for key, value in values.items()},
    }  # fmt: skip


def job_of(config: JobConfig, settings: KubernetesConfig, selector: Mapping[str, str], price: Decimal) -> Json:
    """The Job. `selector`: the labels of the nodes that its offer stands for; `price`: of an hour of all of it.

    ProviderError names what cannot be.
    """
    if config.checkpoint.signal in _DEAF:
        message = f"checkpoint.signal {config.checkpoint.signal} does not reach a program that a shell has started."
        raise ProviderError(f"{message} Use USR1, USR2, TERM or HUP.", settings.provider, "BAD_SIGNAL")
    nodes = int(config.provider_options.get("nodes") or 1)
    timeout_s = config.timeout_minutes * 60 if config.timeout_minutes else None
    limits = {"timeout_s": timeout_s, "grace_s": config.grace_s, "signal": config.checkpoint.signal,
              "path": config.checkpoint.path}  # fmt: skip
    spec: Json = {
        "backoffLimit": 0, "parallelism": nodes, "completions": nodes, "ttlSecondsAfterFinished": settings.ttl_s,
        "completionMode": "Indexed" if nodes > 1 else "NonIndexed",
        # One that is taken away is told from one that fails, also when its pod is gone by then.
        "podFailurePolicy": {"rules": [
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        ]},
        "template": {"metadata": {"labels": _labels(config)}, "spec": _pod(config, settings, selector, timeout_s)},
    }  # fmt: skip
    labels = _labels(config) | ({QUEUE: settings.queue} if settings.queue else {})
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name_of(config.attempt_id or ""), "labels": labels,
                     "annotations": {LIMITS: json.dumps(limits), PRICE: str(price)}},
        # Its pods wait for what it refers to, which can only be made once it is there, or for Kueue.
        "spec": spec | {"suspend": True},
    }  # fmt: skip


def _service_of(config: JobConfig) -> Json | None:
    """What lets the shares of a gang find each other by name; None for a job that is alone."""
    if int(config.provider_options.get("nodes") or 1) < 2:
        return None
    name = name_of(config.attempt_id or "")
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": _labels(config)},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True,
                 "selector": {"batch.kubernetes.io/job-name": name}},
    }  # fmt: skip


def _labels(config: JobConfig) -> dict[str, str]:
    return {MANAGED: "gpuyard", ATTEMPT: config.attempt_id or "",
            JOB: str(config.provider_options.get("job_id") or "")}  # fmt: skip


def _pod(config: JobConfig, settings: KubernetesConfig, selector: Mapping[str, str], timeout_s: float | None) -> Json:
    volumes, mounts = _volumes(config, settings)
    grace_s = config.grace_s if config.checkpoint.signal else 0.0
    pod: Json = {
        "restartPolicy": "Never",
        "containers": [_container(config, settings, mounts)],
        "volumes": volumes,
        "terminationGracePeriodSeconds": int(grace_s + TERM_GRACE_S),
        # Who is process 1 of a container ignores TERM, unless it handles it; here that is the pod's pause process.
        "shareProcessNamespace": True,
        "automountServiceAccountToken": False,
        "nodeSelector": {**settings.node_selector, **selector},
        "tolerations": [taint.model_dump(exclude_none=True) for taint in settings.tolerations],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    }  # fmt: skip
    if settings.spool and os.getuid():
        # What it writes there is ours to read and to remove.
        pod["securityContext"] |= {"runAsUser": os.getuid(), "runAsGroup": os.getgid()}
    optional = {
        "activeDeadlineSeconds": int(timeout_s) + _BACKSTOP_S if timeout_s else None,
        "priorityClassName": settings.priority_classes.get(str(config.provider_options.get("priority") or "")),
        "serviceAccountName": settings.service_account,
        "runtimeClassName": settings.runtime_class if config.gpu_spec.gpu_count else None,
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets] or None,
        "subdomain": name_of(config.attempt_id or "") if int(config.provider_options.get("nodes") or 1) > 1 else None,
    }
    return pod | {key: value for key, value in optional.items() if value is not None}


def _container(config: JobConfig, settings: KubernetesConfig, mounts: list[Json]) -> Json:
    workdir = str(config.provider_options.get("workdir") or "")
    inside = (*settings.volumes, *config.volumes)
    mounted = any(workdir == path or workdir.startswith(f"{path.rstrip('/')}/") for path in inside)
    return {
        "name": CONTAINER, "image": config.image,
        # `$(NAME)` would be replaced by Kubernetes; `$$` is a dollar.
        "command": [word.replace("$", "$$") for word in _command(config, settings)],
        "env": _environment(config, settings),
        "workingDir": workdir if mounted else _WORK,
        "volumeMounts": mounts,
        "resources": _resources(config, settings),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": not settings.writable_root},
    }  # fmt: skip


def _command(config: JobConfig, settings: KubernetesConfig) -> list[str]:
    """The program itself, or under a guard that feeds it its input and sends it its checkpoint signals."""
    checkpoint, resume = config.checkpoint, resume_path(config, settings)
    command = [*config.command, *(word.replace("{path}", resume) for word in checkpoint.resume_args if resume)]
    if not checkpoint.signal and config.args_via_stdin is None:
        return command
    stdin = f"{_STDIN}/stdin" if config.args_via_stdin is not None else ""
    grace_s = config.grace_s if checkpoint.signal else 0.0
    guard = ["/bin/sh", "-c", _GUARD, "gpuyard", stdin, checkpoint.signal or "", f"{checkpoint.every_s or 0:g}",
             f"{grace_s:g}"]  # fmt: skip
    return [*guard, *command]


def resume_path(config: JobConfig, settings: KubernetesConfig) -> str:
    """Where the checkpoint to go on from is, in the container; empty for none."""
    options = config.provider_options
    if not settings.spool or not options.get("resume_sha256"):
        return ""
    return f"{_RESUME}/{options.get('resume_name') or 'checkpoint'}"


def _environment(config: JobConfig, settings: KubernetesConfig) -> list[Json]:
    """What the job's owner says, by way of the Secret, and what is ours to say."""
    options, nodes = config.provider_options, int(config.provider_options.get("nodes") or 1)
    name = name_of(config.attempt_id or "")
    values = {"GPUYARD_JOB_ID": str(options.get("job_id") or ""), "GPUYARD_ATTEMPT_ID": config.attempt_id or "",
              "GPUYARD_ATTEMPT": str(config.token)}  # fmt: skip
    if resume := resume_path(config, settings):
        values["GPUYARD_RESUME_FROM"] = resume
    if settings.spool and options.get("workspace"):
        values["GPUYARD_WORKSPACE"] = _WORKSPACE
    usual = {"PYTHONUNBUFFERED": "1", "HOME": "/tmp"}
    values |= {key: value for key, value in usual.items() if key not in config.environment}
    if not config.gpu_spec.gpu_count:
        values |= {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
    if nodes > 1:
        values |= {"NNODES": str(nodes), "MASTER_ADDR": f"{name}-0.{name}", "MASTER_PORT": "29500"}
    given = [key for key in config.environment if key != "PATH" and key not in values]
    found: list[Json] = [{"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}} for key in given]
    found += [{"name": key, "value": value.replace("$", "$$")} for key, value in values.items()]
    if nodes > 1:
        index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        found.append({"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}})
    return found


def _resources(config: JobConfig, settings: KubernetesConfig) -> Json:
    need = config.gpu_spec
    limits: Json = {}
    if need.vcpus:
        limits["cpu"] = f"{round(need.vcpus * 1000)}m"
    if need.ram_gb:
        limits["memory"] = str(int(need.ram_gb * (1 << 30)))
    if need.gpu_count:
        limits[settings.gpu_resource] = str(need.gpu_count)
    return {"limits": limits, "requests": dict(limits)}


def _volumes(config: JobConfig, settings: KubernetesConfig) -> tuple[list[Json], list[Json]]:
    """The pod's volumes, and where they are mounted. The root of an image cannot be written."""
    volumes: list[Json] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[Json] = [{"name": "tmp", "mountPath": "/tmp"}]
    if settings.spool_claim:
        claim, _, folder = settings.spool_claim.partition("/")
        mine = "/".join(filter(None, (folder, name_of(config.attempt_id or ""))))
        volumes.append({"name": "spool", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": "spool", "mountPath": _WORK, "subPath": f"{mine}/work"})
        mounts.append({"name": "spool", "mountPath": _RESUME, "subPath": f"{mine}/resume", "readOnly": True})
        if key := config.provider_options.get("workspace"):
            place = "/".join(filter(None, (folder, WORKSPACES, str(key))))
            mounts.append({"name": "spool", "mountPath": _WORKSPACE, "subPath": place})
    else:
        volumes.append({"name": "work", "emptyDir": {}})
        mounts.append({"name": "work", "mountPath": _WORK})
    if config.gpu_spec.gpu_count:
        # Data loaders hand batches over in shared memory, of which a container has 64 MB by default.
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    if config.args_via_stdin is not None:
        items = [{"key": _INPUT, "path": "stdin"}]
        volumes.append({"name": "stdin", "secret": {"secretName": name_of(config.attempt_id or ""), "items": items}})
        mounts.append({"name": "stdin", "mountPath": _STDIN, "readOnly": True})
    for number, (inside, source) in enumerate({**settings.volumes, **config.volumes}.items()):
        volume, folder = _source(inside, source, settings)
        volumes.append({"name": f"v{number}", **volume})
        mounts.append({"name": f"v{number}", "mountPath": inside, **({"subPath": folder} if folder else {})})
    return volumes, mounts


def _source(inside: str, source: str, settings: KubernetesConfig) -> tuple[Json, str]:
    if source.startswith("pvc:"):
        claim, _, folder = source.removeprefix("pvc:").partition("/")
        return {"persistentVolumeClaim": {"claimName": claim}}, folder
    if settings.host_paths:
        return {"hostPath": {"path": source}}, ""
    message = f"volumes.{inside} is {source}, and folders of this host are not on the cluster; write pvc:NAME/FOLDER."
    raise ProviderError(message, settings.provider, "BAD_VOLUME")
