"""Which environment variables a job may set."""

import re
from collections.abc import Iterable

from gpuyard.domain.errors import quoted

# A person may give it, so that a run can be repeated.
SEED = "GPUYARD_SEED"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_environment(environment: Iterable[str], field: str = "environment") -> None:
    """ValueError, which names the field, for a variable that a job must not set."""
    for name in environment:
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(
                f"@{field}@{quoted(name)} is not a variable name; use letters,"
                " digits and _"
            )
        if name == "CUDA_VISIBLE_DEVICES":
            raise ValueError(
                f"@{field}.CUDA_VISIBLE_DEVICES@belongs to the scheduler, which sets"
                " it to the GPUs you get; remove it and ask with resources.gpus"
            )
        if name.startswith("GPUYARD_") and name != SEED:
            raise ValueError(
                f"@{field}.{name}@is set by gpuyard itself; choose another name"
            )
