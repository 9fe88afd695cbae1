"""Writes an artifact that is being downloaded, and checks that it is whole."""

import hashlib
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuyard.domain.artifacts import Artifact, is_inside
from gpuyard.domain.errors import GpuyardError, RefusedError


class DamagedError(GpuyardError):
    """What has arrived is not what the job has left."""

    code = "damaged"
    status = 502
    exit_code = 4


class ArtifactDownload:
    """A file below `folder`, at the path of its artifact: there whole or not at all.

    RefusedError if the path leads out of the folder; OSError.
    """

    def __init__(self, artifact: Artifact, folder: Path) -> None:
        if not is_inside(artifact.path):
            raise RefusedError(f"{artifact.path} leads out of a folder.")
        self._artifact = artifact
        self.target = folder / artifact.path
        self._partial = self.target.with_name(f"{self.target.name}.partial")
        self._digest = hashlib.sha256()

    def __enter__(self) -> Self:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._partial.open("wb")
        return self

    def write(self, part: bytes) -> None:
        """The next bytes. OSError names the file."""
        self._digest.update(part)
        try:
            self._file.write(part)
        except OSError as error:
            raise _named(error, self.target) from None

    def finish(self) -> Path:
        """All bytes have come; DamagedError if they are not the right ones."""
        try:
            self._file.close()
        except OSError as error:
            raise _named(error, self.target) from None
        if self._digest.hexdigest() != self._artifact.sha256:
            raise DamagedError(
                f"{self._artifact.path} has arrived damaged: its SHA-256 is not"
                f" {self._artifact.sha256}.",
                "Get it again; if that fails, too, it is damaged where it is stored.",
            )
        return self._partial.replace(self.target)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # of what is still in its buffer
            self._file.close()
        self._partial.unlink(missing_ok=True)


def _named(error: OSError, path: Path) -> OSError:
    """The error, with the file: one of a write says only what happened."""
    return OSError(error.errno, error.strerror, str(path))
