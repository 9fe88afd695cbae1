"""The environments that jobs carry, each once under its hash: thousands of jobs share
one. The specs of jobs have only their digests.
"""

import time
from collections.abc import Callable, Collection

import msgspec

from gpuyard.domain.carried_environment import CarriedEnvironment
from gpuyard.domain.contents import (
    LATELY_S,
    ContentKind,
    ContentMissingError,
    Stores,
)
from gpuyard.storage.contents import read_whole

MAX_BYTES = 500_000


class EnvironmentMissingError(FileNotFoundError):
    """There is no environment with this digest, or its file is damaged."""


class _Content(msgspec.Struct, omit_defaults=True):
    variables: dict[str, str]
    keys: list[str] = []
    user: str | None = None


class Environments:
    """The environments, which the server writes and the agent reads."""

    def __init__(self, stores: Stores, clock: Callable[[], float] = time.time) -> None:
        self._contents = stores(ContentKind.ENVIRONMENT)
        self._clock = clock

    def put(self, environment: CarriedEnvironment) -> str:
        """Store it, unless it is there; returns its digest. OSError, GpuyardError."""
        variables = dict(sorted(environment.variables.items()))
        content = _Content(variables, list(environment.keys), environment.user)
        (digest,) = self._contents.put([msgspec.json.encode(content)])
        return digest

    def get(self, digest: str) -> CarriedEnvironment:
        """The environment; EnvironmentMissingError."""
        try:
            encoded = read_whole(self._contents, digest)
            content = msgspec.json.decode(encoded, type=_Content)
        except (ContentMissingError, ValueError) as error:
            raise EnvironmentMissingError(
                f"the environment {digest[:19]} that it was submitted with is no longer"
                " stored; submit the job again"
            ) from error
        return CarriedEnvironment(content.variables, tuple(content.keys), content.user)

    def not_handed_over(self) -> set[str]:
        """The digests of those that no client has handed over lately: jobs may still
        carry them.
        """
        return self._contents.stored_before(self._clock() - LATELY_S)

    def remove(self, digests: Collection[str]) -> None:
        """Remove these, unless they were handed over again lately."""
        self._contents.remove(digests, self._clock() - LATELY_S)
