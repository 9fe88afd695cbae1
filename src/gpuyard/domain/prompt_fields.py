"""Which fields of a job mean nothing to a prompt."""

from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.domain.jobspec import JobSpec

# A prompt is no program, and goes where its model is. Where a program would find its
# files and its variables is passed over, because clients fill that in.
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
)


def refuse_foreign_fields(spec: JobSpec) -> None:
    """InvalidInputError for the fields of a prompt that nobody would heed."""
    fields = JobSpec.model_fields
    faults = [
        Fault(name, "does not belong to a prompt, which its model answers", "remove it")
        for name in _FOREIGN
        if getattr(spec, name) != fields[name].get_default(call_default_factory=True)
    ]
    if faults:
        raise InvalidInputError(faults)
