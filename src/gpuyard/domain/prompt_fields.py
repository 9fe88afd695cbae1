"""Which fields of a job mean nothing to a prompt."""

from typing import NoReturn

from gpuyard.domain.carried_environment import FILLED_IN
from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.domain.jobspec import GpuRequest, JobSpec, Resources

# A prompt is no program, and goes where its model is. What clients fill in, where a
# program would find its files and its variables, is passed over.
_FOREIGN = (
    "args",
    "image",
    "resources",
    "tier",
    "secrets",
    "volumes",
    "max_silence_s",
    "log_limit_gb",
    "max_price",
    "allowed",
    "provider",
    "provider_options",
    "checkpoint",
    "artifacts",
    "artifacts_always",
    "spot",
    "strategy",
    "preemptible",
    "clean_env",
    "live",
)
_FAULT = "does not belong to a prompt, which its model answers"


def refuse_gpus(field: str) -> NoReturn:
    """InvalidInputError for GPUs that somebody wants for a prompt."""
    fault = "does not belong to a prompt: its model has the GPUs"
    raise InvalidInputError.of(field, fault, "leave it out")


def refuse_foreign_fields(spec: JobSpec) -> None:
    """InvalidInputError for the fields of a prompt that nobody would heed. Of its
    `resources`, only the UUIDs of GPUs are heeded.
    """
    preferred = spec.resources.gpus.uuid
    if preferred:
        gpus = GpuRequest(count=len(preferred), uuid=preferred)
        if spec.resources == Resources(gpus=gpus):
            spec = spec.model_copy(update={"resources": Resources()})
    fields = JobSpec.model_fields
    faults = [
        Fault(name, _FAULT, "remove it")
        for name in _FOREIGN
        if getattr(spec, name) != fields[name].get_default(call_default_factory=True)
    ]
    faults += [
        Fault(f"environment.{name}", _FAULT, "remove it")
        for name in spec.environment
        if name not in FILLED_IN
    ]
    if faults:
        raise InvalidInputError(faults)
