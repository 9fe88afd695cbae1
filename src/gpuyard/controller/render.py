"""From a JobSpec and a placement to the JobConfig a provider is given."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpuyard.controller.resident import gpus_of
from gpuyard.domain.jobconfig import GpuSpec, JobConfig
from gpuyard.domain.jobspec import JobKind, JobSpec
from gpuyard.domain.shape import Shape
from gpuyard.domain.wire import ASK, SCRIPT
from gpuyard.scheduler.view import LiveAttempt


@lru_cache(maxsize=4096)
def _window(shape: Shape) -> str:
    """Equal for attempts of which one can take the place of another on a node."""
    return json.dumps(shape.to_row())


def _work(spec: JobSpec) -> tuple[tuple[str, ...], bytes | None]:
    """The command, and what stands on its standard input."""
    match spec.kind:
        case JobKind.LLM:
            return (ASK, str(spec.model)), (spec.prompt or "").encode()
        case JobKind.SCRIPT | JobKind.WORKER:
            order = {**spec.provider_options.get("script", {}), "script": spec.script, "args": spec.args}
            return (SCRIPT,), json.dumps(order).encode()
        case _:
            return spec.command, None if spec.stdin is None else spec.stdin.encode()


def render(
    spec: JobSpec, shape: Shape, attempt: LiveAttempt, checkpoint: dict[str, Any] | None, workspaces: Path
) -> JobConfig:
    """The provider's form of `spec`. `checkpoint` is the ledger row to resume from, if any; `workspaces` the folder
    that holds them on this host."""
    place = attempt.placements[0]
    need = spec.resources
    options: dict[str, Any] = {
        **spec.provider_options,
        "job_id": attempt.job_id,
        "node_id": place.node_id,
        "gpu_uuids": list(place.gpu_uuids),
        "shares_gpus": spec.kind is JobKind.MODEL,
        "workdir": spec.workdir,
        "max_silence_s": spec.max_silence_s,
        "priority": spec.priority,
        # Set here in any case, so that a spec's own options can never stand for them.
        "resume_sha256": None,
        "resume_name": None,
        "resume_directory": False,
        "window": _window(shape),
        "ahead": place.ahead,
        "offer": place.offer,
        "nodes": shape.nodes,
        "workspace": shape.workspace or None,
        "workspace_here": str(workspaces / shape.workspace) if shape.workspace else None,
    }
    if spec.kind is JobKind.MODEL:  # beside another model on its GPU it books nothing, and uses it all the same
        options["gpu_uuids"] = list(gpus_of(spec.provider_options))
    if checkpoint:
        options["resume_sha256"] = checkpoint["sha256"]
        options["resume_name"] = checkpoint["path"].rsplit("/", 1)[-1]
        options["resume_directory"] = bool(checkpoint["directory"])
    command, stdin = _work(spec)
    return JobConfig(
        name=spec.name,
        image=spec.image,
        command=command,
        args_via_stdin=stdin,
        gpu_spec=GpuSpec(gpu_type=need.gpus.gpu_class, gpu_count=need.gpus.count, memory_gb=need.gpus.memory_gb,
                         vcpus=need.cpus, ram_gb=need.memory_gb),
        environment=spec.environment,
        volumes=spec.volumes,
        timeout_minutes=spec.timeout_s / 60 if spec.timeout_s else None,
        attempt_id=attempt.id,
        token=attempt.token,
        checkpoint=spec.checkpoint,
        labels=dict(spec.labels),
        spot=spec.spot,
        grace_s=spec.checkpoint.grace_s,
        provider_options=options,
    )  # fmt: skip
