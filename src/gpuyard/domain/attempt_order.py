"""What a provider needs to know to run one attempt.

The controller makes an `AttemptOrder` from a job and its placement. S2's `JobConfig` is
for callers and providers that know S2's interface only; the two functions here are the
only place where one form becomes the other.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuyard.domain.artifacts import ArtifactOrder
from gpuyard.domain.datasets import DatasetMount
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import GpuSpec, JobConfig, without_gpu_choice
from gpuyard.domain.jobspec import CheckpointSpec

NO_GPU = GpuSpec(gpu_count=0)
# What a job may replace: unbuffered output, in lines that are long enough for many
# metrics. The runner, which travels alone, has the same.
DEFAULT_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The checkpoint to continue from: its blob, and the name it gets for the job."""

    sha256: str
    name: str = "checkpoint"
    directory: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """What one node runs of an attempt on several: `rank` counts from 0."""

    rank: int
    node_id: str
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrder:
    """One attempt of a job. Times are in seconds, memory is in GB.

    `user` is who submitted the job, if the server knows that.

    Placement: `offer` is the offer that was chosen in an external queue; `node_id` and
    `gpu_uuids` are the node and the GPUs that the scheduler has booked; of a prompt,
    the GPUs that it prefers. With `shares_gpus` other attempts may use the same GPUs.
    `nodes` is how many nodes run the attempt together; on nodes with agents, `shares`
    are those that have not ended.

    Workspace: `workspace` is its key, `workspace_folder` its folder on this host.
    `datasets` are what it reads, and `packages` is the digest of the list of those that
    its program needs; only agents know them.

    `retries`: how often the provider itself runs the program again when it fails. It is
    0 for gpuyard's own attempts: the controller retries a job with a new attempt.

    Prefetching: a `prefetched` attempt waits on its node until a place is free.
    Attempts with equal `prefetch_group` can take each other's place.

    `interactive`: its standard input stays open for what people type.

    `environment`, `volumes` (container path to host path), `labels` and
    `provider_options` are as the job's owner wrote them. `secrets` are variables whose
    values must reach nothing but the program. `carried_environment` is the digest of
    the environment to begin with, and `code` that of the code to run; a node of this
    host reads both from the home.
    """

    attempt_id: str
    name: str
    command: tuple[str, ...]
    job_id: str = ""
    project: str = ""
    user: str = ""
    token: int = 0
    priority: int | None = None
    image: str | None = None
    stdin: bytes | None = None
    interactive: bool = False
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    carried_environment: str = ""
    code: str = ""
    volumes: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    workspace: str = ""
    workspace_folder: str = ""
    datasets: tuple[DatasetMount, ...] = ()
    packages: str = ""
    artifacts: ArtifactOrder | None = None
    gpu_spec: GpuSpec = NO_GPU
    spot: bool = False
    nodes: int = 1
    shares: tuple[Share, ...] = ()
    offer: str = ""
    node_id: str = ""
    gpu_uuids: tuple[str, ...] = ()
    shares_gpus: bool = False
    prefetch_group: str = ""
    prefetched: bool = False
    retries: int = 0
    timeout_s: float | None = None
    max_silence_s: float | None = None
    log_limit_gb: float | None = None
    grace_s: float = 10.0
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    resume_from: ResumePoint | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    provider_options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def whole_environment(self) -> dict[str, str]:
        """The variables for the program, with the values of secrets."""
        return {**self.environment, **self.secrets}

    def resume_args(self, path: str) -> list[str]:
        """The words to add to the command when the checkpoint lies at `path`."""
        return [word.replace("{path}", path) for word in self.checkpoint.resume_args]


def order_from_config(config: JobConfig) -> AttemptOrder:
    """The order that an S2 `JobConfig` means; one without `attempt_id` gets a new one.

    What S2 has no field for is read from `provider_options`. Variables that choose GPUs
    are dropped with a warning.
    """
    options = config.provider_options
    (environment, dropped) = without_gpu_choice(config.environment)
    for warning in dropped:
        warnings.warn(warning, stacklevel=3)
    return AttemptOrder(
        attempt_id=config.attempt_id or new_id("attempt"),
        name=config.name,
        command=config.command,
        job_id=str(options.get("job_id") or ""),
        project=str(options.get("project") or ""),
        user=str(options.get("user") or ""),
        token=config.token,
        priority=options.get("priority"),
        image=config.image,
        stdin=config.args_via_stdin,
        interactive=bool(options.get("interactive")),
        environment=environment,
        carried_environment=str(options.get("carried_environment") or ""),
        code=str(options.get("code") or ""),
        volumes=config.volumes,
        workdir=options.get("workdir"),
        workspace=str(options.get("workspace") or ""),
        workspace_folder=str(options.get("workspace_here") or ""),
        gpu_spec=config.gpu_spec,
        spot=config.spot,
        nodes=int(options.get("nodes") or 1),
        offer=str(options.get("offer") or ""),
        node_id=str(options.get("node_id") or ""),
        gpu_uuids=tuple(options.get("gpu_uuids") or ()),
        shares_gpus=bool(options.get("shares_gpus")),
        prefetch_group=str(options.get("window") or ""),
        prefetched=bool(options.get("ahead")),
        retries=config.retry_count,
        timeout_s=config.timeout_minutes * 60 if config.timeout_minutes else None,
        max_silence_s=options.get("max_silence_s"),
        log_limit_gb=options.get("log_limit_gb"),
        grace_s=config.grace_s,
        checkpoint=config.checkpoint,
        resume_from=_resume_point(options),
        labels=config.labels,
        provider_options=options,
    )


def _resume_point(options: Mapping[str, Any]) -> ResumePoint | None:
    sha256 = options.get("resume_sha256")
    if not sha256:
        return None
    name = str(options.get("resume_name") or "checkpoint")
    return ResumePoint(str(sha256), name, bool(options.get("resume_directory")))


def config_from_order(order: AttemptOrder) -> JobConfig:
    """S2's form of an order, for a provider that has S2's calls only.

    What S2 has no field for goes into `provider_options`; the job's own options never
    replace it.
    """
    resume = order.resume_from
    options = {
        **order.provider_options,
        "job_id": order.job_id,
        "project": order.project,
        "user": order.user or None,
        "priority": order.priority,
        "carried_environment": order.carried_environment or None,
        "code": order.code or None,
        "interactive": order.interactive,
        "workdir": order.workdir,
        "workspace": order.workspace or None,
        "workspace_here": order.workspace_folder or None,
        "nodes": order.nodes,
        "offer": order.offer,
        "node_id": order.node_id,
        "gpu_uuids": list(order.gpu_uuids),
        "shares_gpus": order.shares_gpus,
        "window": order.prefetch_group,
        "ahead": order.prefetched,
        "max_silence_s": order.max_silence_s,
        "log_limit_gb": order.log_limit_gb,
        "resume_sha256": resume.sha256 if resume else None,
        "resume_name": resume.name if resume else None,
        "resume_directory": resume.directory if resume else False,
    }
    return JobConfig(
        name=order.name,
        image=order.image,
        command=order.command,
        gpu_spec=order.gpu_spec,
        environment=order.whole_environment,
        volumes=dict(order.volumes),
        timeout_minutes=order.timeout_s / 60 if order.timeout_s else None,
        attempt_id=order.attempt_id,
        token=order.token,
        args_via_stdin=order.stdin,
        checkpoint=order.checkpoint,
        labels=dict(order.labels),
        spot=order.spot,
        grace_s=order.grace_s,
        provider_options=options,
    )
