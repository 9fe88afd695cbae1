"""S2's forms, accepted as they are: GpuSpec, JobConfig and the answers of a provider.

A JobConfig that a person submits becomes a JobSpec.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any

from pydantic import Field

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import CheckpointSpec, JobSpec
from gpuyard.domain.spec_values import GpuCount, Name
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.validation import parse_model, parse_spec


class GpuSpec(StrictModel):
    """A size in S2's words; `gpu_type` is a validated alias of a GPU class (`A100`).

    Memory in GB.
    """

    gpu_type: str | None = None
    gpu_count: GpuCount = 1
    memory_gb: float | None = Field(default=None, gt=0)
    vcpus: float | None = Field(default=None, gt=0)
    ram_gb: float | None = Field(default=None, gt=0)


class JobConfig(StrictModel):
    """S2's eight fields, plus what the controller adds.

    `volumes` maps container path to host path.
    """

    name: Name
    image: str | None = None
    command: tuple[str, ...] = Field(min_length=1)
    gpu_spec: GpuSpec = GpuSpec(gpu_count=0)
    environment: dict[str, str] = Field(default_factory=dict)
    volumes: dict[str, str] = Field(default_factory=dict)
    timeout_minutes: float | None = Field(default=None, gt=0)
    retry_count: int = Field(default=0, ge=0, le=100)

    idempotency_key: Name | None = None
    attempt_id: str | None = None
    token: int = 0
    args_via_stdin: bytes | None = None
    checkpoint: CheckpointSpec = CheckpointSpec()
    labels: dict[str, str] = Field(default_factory=dict)
    spot: bool = False
    grace_s: float = 10.0
    provider_options: dict[str, Any] = Field(default_factory=dict)


class JobStatus(StrEnum):
    """S2's words for the state of a job."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def is_live(self) -> bool:
        """True for a job that waits or runs."""
        return self in (JobStatus.PENDING, JobStatus.RUNNING)

    @property
    def is_over(self) -> bool:
        """True for the three ends of a job."""
        return self in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class JobResult:
    """A provider's report on a job. Times are UTC seconds; `exit_code` is None until
    the job has ended by itself.

    `reason` is one word for programs: why it waits, in the external queue's own word,
    or why it ended (`timed_out`, `preempted`, `node_lost`, `out_of_memory`, …). `node`
    and `gpus` are where it runs, as the external queue names them. `usage` is what it
    has used, by names that end with the unit. `ran_s`: for how many seconds it ran, if
    that was measured by a clock that nobody sets. `paid_s`: for how many seconds its
    place is paid for, if not for those in which it ran.
    """

    job_id: str
    status: JobStatus
    created_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    logs: str | None = None
    exit_code: int | None = None
    error_message: str | None = None
    reason: str = ""
    node: str = ""
    gpus: tuple[str, ...] = ()
    usage: Mapping[str, float] = field(default_factory=dict[str, float])
    ran_s: float | None = None
    paid_s: float | None = None


@dataclass(frozen=True, slots=True)
class CostInfo:
    """What a job has cost so far at a provider."""

    job_id: str
    total_cost: Decimal
    currency: str
    cost_breakdown: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    billing_period: str = ""


# The names in S2 of fields of a JobSpec, so that an error names the field that was
# sent.
_S2_NAMES = {
    "stdin": "args_via_stdin",
    "timeout_s": "timeout_minutes",
    "resources.cpus": "gpu_spec.vcpus",
    "resources.memory_gb": "gpu_spec.ram_gb",
    "resources.gpus": "gpu_spec",
    "resources.gpus.count": "gpu_spec.gpu_count",
    "resources.gpus.memory_gb": "gpu_spec.memory_gb",
    "resources.gpus.gpu_class": "gpu_spec.gpu_type",
}


# By these a container would get GPUs that others have.
_GPU_CHOICE = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})


def is_job_config(data: Any) -> bool:
    """True when a submitted body is S2's form and not a JobSpec: only S2 has these two
    keys.
    """
    return isinstance(data, Mapping) and (
        "gpu_spec" in data or "timeout_minutes" in data
    )


def without_gpu_choice(
    environment: Mapping[str, str],
) -> tuple[dict[str, str], list[str]]:
    """The variables without those that choose GPUs, and a warning for each of these."""
    kept = {
        name: value for name, value in environment.items() if name not in _GPU_CHOICE
    }
    warnings = [
        f"environment.{name} was dropped: the scheduler sets it to the GPUs it assigns"
        for name in environment
        if name in _GPU_CHOICE
    ]
    return kept, warnings


def spec_from_config(data: Any) -> tuple[JobSpec, list[str]]:
    """The JobSpec of an S2 JobConfig, and warnings about what was dropped."""
    config = data if isinstance(data, JobConfig) else parse_model(JobConfig, data)
    (environment, warnings) = without_gpu_choice(config.environment)
    gpu = config.gpu_spec
    gpus = {
        "count": gpu.gpu_count,
        "memory_gb": gpu.memory_gb,
        "gpu_class": gpu.gpu_type,
    }
    body: dict[str, Any] = {
        "name": config.name,
        "image": config.image,
        "command": list(config.command),
        "environment": environment,
        "volumes": config.volumes,
        "retry_count": config.retry_count,
        "spot": config.spot,
        "timeout_s": config.timeout_minutes * 60 if config.timeout_minutes else None,
        "resources": {
            "cpus": gpu.vcpus,
            "memory_gb": gpu.ram_gb,
            "gpus": gpus if gpu.gpu_count else {"count": 0},
        },
        "labels": config.labels,
        "provider_options": config.provider_options,
        "checkpoint": config.checkpoint,
        "idempotency_key": config.idempotency_key,
        "stdin": _text(config.args_via_stdin),
    }
    try:
        return parse_spec(body), warnings
    except InvalidInputError as error:
        faults = [
            replace(fault, field=_S2_NAMES.get(fault.field, fault.field))
            for fault in error.faults
        ]
        raise InvalidInputError(faults) from None


def _text(stdin: bytes | None) -> str | None:
    try:
        return None if stdin is None else stdin.decode()
    except UnicodeDecodeError:
        raise InvalidInputError.of(
            "args_via_stdin", "is not UTF-8", "let the program read it from a file"
        ) from None
