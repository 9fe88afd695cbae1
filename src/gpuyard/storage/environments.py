"""The environments that jobs carry, each once under its hash: thousands of jobs share
one. Files of mode 0600; the ledger has only their names.
"""

import hashlib
import io
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from gpuyard.domain.carried_environment import CarriedEnvironment
from gpuyard.storage.blobs import BlobStore

MAX_BYTES = 500_000
# A client hands its environment over again before so much time has passed.
_LATELY_S = 86400.0


class EnvironmentMissingError(FileNotFoundError):
    """There is no environment with this digest, or its file is damaged."""


class _Content(msgspec.Struct):
    variables: dict[str, str]
    keys: list[str] = []


class Environments:
    """The environments in `folder`, which the server writes and the agent reads."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._blobs = BlobStore(folder)
        self._clock = clock

    def put(self, environment: CarriedEnvironment) -> str:
        """Store it, unless it is there; returns its digest. OSError."""
        variables = dict(sorted(environment.variables.items()))
        content = _Content(variables, list(environment.keys))
        encoded = msgspec.json.encode(content)
        digest = hashlib.sha256(encoded).hexdigest()
        try:
            path = self._blobs.path(digest)
            if path.stat().st_size != len(encoded):
                path.unlink()  # damaged
            os.utime(path)
        except FileNotFoundError:
            self._blobs.put(io.BytesIO(encoded))
        return digest

    def get(self, digest: str) -> CarriedEnvironment:
        """The environment; EnvironmentMissingError."""
        try:
            encoded = self._blobs.path(digest).read_bytes()
            content = msgspec.json.decode(encoded, type=_Content)
        except (FileNotFoundError, ValueError) as error:
            raise EnvironmentMissingError(
                f"the environment {digest[:19]} that it was submitted with is no longer"
                " stored; submit the job again"
            ) from error
        return CarriedEnvironment(content.variables, tuple(content.keys))

    def not_handed_over(self) -> set[str]:
        """The digests of those that no client has handed over lately: jobs may still
        carry them.
        """
        limit = self._clock() - _LATELY_S
        return {
            path.parent.name + path.name
            for path in self._blobs.root.glob("??/*")
            if path.stat().st_mtime < limit
        }

    def remove(self, digests: Collection[str]) -> None:
        """Remove these."""
        # One that was handed over again since is somebody's.
        for digest in self.not_handed_over().intersection(digests):
            self._blobs.delete(digest)
