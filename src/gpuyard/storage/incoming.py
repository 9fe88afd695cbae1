"""A blob that comes in parts: hashed and written as they come, and kept under its name
at the end.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import IO

from gpuyard.storage.streams import Blob, HashedFile

Keep = Callable[[IO[bytes], Blob], None]


class IncomingBlob:
    """Used by one thread at a time. Until the first part comes, nothing is opened; what
    is not kept leaves nothing behind. Failures are OSErrors.
    """

    def __init__(
        self,
        temporary_file: Callable[[], AbstractContextManager[IO[bytes]]],
        keep: Keep,
    ) -> None:
        self._temporary_file = temporary_file
        self._keep = keep
        self._open = ExitStack()
        self._file: IO[bytes] | None = None
        self._hashed: HashedFile | None = None

    def write(self, parts: Sequence[bytes]) -> None:
        """Add these parts."""
        hashed = self._begun()
        for part in parts:
            hashed.write(part)

    def blob(self) -> Blob:
        """Digest and size of what has come."""
        return self._begun().blob

    def keep(self) -> None:
        """Store it under its name, and let go of the file. Its name may be lost in a
        power cut until `sync_names` of its store.
        """
        blob = self.blob()
        assert self._file
        with self._open:
            self._file.flush()
            self._keep(self._file, blob)

    def close(self) -> None:
        """Let go of the file; what was not kept is gone."""
        self._open.close()

    def _begun(self) -> HashedFile:
        if self._hashed is None:
            self._file = self._open.enter_context(self._temporary_file())
            self._hashed = HashedFile(self._file)
        return self._hashed
