"""Makes the order for a provider from the spec of a job and its placement."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpuyard.domain.arrays import task_environment
from gpuyard.domain.artifacts import ArtifactOrder
from gpuyard.domain.attempt_order import AttemptOrder, ResumePoint, Share
from gpuyard.domain.datasets import DatasetMount
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.domain.jobspec import JobKind, JobSpec, Resources
from gpuyard.domain.own_options import ModelPlace, WorkerOrder
from gpuyard.domain.shape import Shape
from gpuyard.domain.tasks import task_id_of
from gpuyard.domain.wire import SCRIPT
from gpuyard.scheduler.attempts import LiveAttempt

# Of an attempt's id and fencing token and of a batch's id; see `Launching`.
WorkerToken = Callable[[str, int, str], str]


def no_token(_attempt_id: str, _fence: int, _batch_id: str) -> str:
    """What a worker gets where no server has a key."""
    return ""


def order_for(
    spec: JobSpec,
    shape: Shape,
    attempt: LiveAttempt,
    checkpoint: Mapping[str, Any] | None,
    workspaces: Path,
    secrets: Mapping[str, str] | None = None,
    worker_token: WorkerToken = no_token,
    array_index: int | None = None,
    datasets: Sequence[DatasetMount] = (),
) -> AttemptOrder:
    """The order for one attempt.

    `checkpoint`: the row of the ledger to resume from, if any. `workspaces`: the folder
    of this host that holds the workspaces. `secrets`: the values, by variable.
    `worker_token` makes the token of a batch's worker. `array_index`: which task of an
    array it is. `datasets`: what its node needs to know of those.
    """
    placement = attempt.placements[0]
    command, stdin = _program(spec, attempt, worker_token)
    workspace_folder = str(workspaces / shape.workspace) if shape.workspace else ""
    return AttemptOrder(
        attempt_id=attempt.id,
        job_id=attempt.job_id,
        project=spec.project or "",
        user=spec.user or "",
        name=spec.name,
        token=attempt.token,
        priority=spec.priority,
        image=spec.image,
        command=command,
        stdin=stdin,
        interactive=spec.interactive,
        environment={**spec.environment, **task_environment(array_index)},
        secrets=secrets or {},
        carried_environment=spec.carried_environment or "",
        code=spec.submitted_code or "",
        volumes=spec.volumes,
        workdir=spec.workdir,
        workspace=shape.workspace or "",
        workspace_folder=workspace_folder,
        datasets=tuple(datasets),
        packages=spec.packages or "",
        artifacts=_artifacts(spec),
        gpu_spec=_gpu_spec(spec.resources),
        spot=spec.spot,
        nodes=shape.nodes,
        shares=_shares(attempt),
        offer=placement.offer,
        node_id=placement.node_id,
        gpu_uuids=_gpu_uuids(spec, attempt),
        shares_gpus=spec.kind is JobKind.MODEL,
        prefetch_group=_prefetch_group(shape),
        prefetched=placement.prefetched,
        timeout_s=spec.timeout_s,
        max_silence_s=spec.max_silence_s,
        log_limit_gb=spec.log_limit_gb,
        grace_s=spec.checkpoint.grace_s,
        checkpoint=spec.checkpoint,
        resume_from=_resume_point(checkpoint) if checkpoint else None,
        labels=spec.labels,
        provider_options=spec.provider_options,
    )


def _program(
    spec: JobSpec, attempt: LiveAttempt, worker_token: WorkerToken
) -> tuple[tuple[str, ...], bytes | None]:
    """The command and its standard input; of a prompt, its model and its text."""
    match spec.kind:
        case JobKind.LLM:
            prompt = spec.prompt or ""
            return (str(spec.model),), prompt.encode()
        case JobKind.SCRIPT | JobKind.WORKER:
            order = WorkerOrder.read(spec.provider_options)
            script = {
                **order.fields,
                "script": spec.script,
                "args": spec.args,
                "task_id": task_id_of(attempt.job_id, spec.name, spec.labels),
            }
            if spec.kind is JobKind.WORKER:
                # It goes by standard input alone: others can read the environment and
                # the command line of a process.
                token = worker_token(attempt.id, attempt.token, order.batch)
                script["token"] = token
            return (SCRIPT,), json.dumps(script).encode()
        case _:
            stdin = None if spec.stdin is None else spec.stdin.encode()
            return spec.command, stdin


def _shares(attempt: LiveAttempt) -> tuple[Share, ...]:
    """What its nodes are to run, if those are several with agents."""
    if attempt.offer or len(attempt.placements) == 1:
        return ()
    return tuple(
        Share(rank, placement.node_id, placement.gpu_uuids)
        for rank, placement in enumerate(attempt.placements)
        if placement.end is None
    )


def _gpu_uuids(spec: JobSpec, attempt: LiveAttempt) -> tuple[str, ...]:
    """The GPUs that it runs on."""
    match spec.kind:
        case JobKind.LLM:
            return spec.resources.gpus.uuid
        case JobKind.MODEL:
            # A model that shares its GPU may have booked none itself.
            return ModelPlace.read(spec.provider_options).gpus
        case _:
            return attempt.placements[0].gpu_uuids


def _gpu_spec(resources: Resources) -> GpuSpec:
    """What it needs, in the terms of S2."""
    gpus = resources.gpus
    return GpuSpec(
        gpu_type=gpus.gpu_class,
        gpu_count=gpus.count,
        memory_gb=gpus.memory_gb,
        vcpus=resources.cpus,
        ram_gb=resources.memory_gb,
    )


def _artifacts(spec: JobSpec) -> ArtifactOrder | None:
    if not spec.artifacts:
        return None
    return ArtifactOrder(list(spec.artifacts), spec.artifacts_always)


def _resume_point(checkpoint: Mapping[str, Any]) -> ResumePoint:
    name = checkpoint["path"].rsplit("/", 1)[-1]
    return ResumePoint(checkpoint["sha256"], name, bool(checkpoint["directory"]))


@lru_cache(maxsize=4096)
def _prefetch_group(shape: Shape) -> str:
    """Equal for attempts that can take each other's place on a node."""
    return json.dumps(shape.to_row())
