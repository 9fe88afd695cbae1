"""The environments that jobs carry: what a submission is told about them, and how they
differ from the server's own.
"""

import os

from gpuyard.domain.carried_environment import Difference, carried_from, difference
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.storage.environments import EnvironmentMissingError, Environments

_SHOWN = 10


def keys_left_behind(spec: JobSpec, environments: Environments) -> list[str]:
    """The warning about exported variables that look like keys and that the job does
    not get; none without any. InvalidInputError for an unknown environment.
    """
    try:
        environment = environments.get(spec.carried_environment or "")
    except EnvironmentMissingError:
        raise InvalidInputError.of(
            "carried_environment",
            f"there is no environment {spec.carried_environment}",
            "leave it out; `gpuyard run` and the Python client fill it in",
        ) from None
    given = spec.secrets.keys() | spec.environment.keys()
    names = [name for name in environment.keys if name not in given]
    if not names:
        return []
    shown = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        shown += f" and {len(names) - _SHOWN} more"
    return [
        f"the job does not get what looks like a key: {shown}; run `gpuyard secret set"
        " NAME` once for what it needs, and submit with --secret NAME"
    ]


def difference_to_server(
    digest: str, environments: Environments, never_carry: tuple[str, ...]
) -> Difference | None:
    """How an environment differs from the one that this server would give; None if it
    is no longer stored.
    """
    try:
        carried = environments.get(digest)
    except EnvironmentMissingError:
        return None
    own = carried_from(os.environ, never_carry)
    return difference(carried.variables, own.variables)
