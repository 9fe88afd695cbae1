"""The datasets of jobs in external queues: copies in a folder that their nodes share
with this host, each made once for all jobs that read it.

A note for each attempt, made before it is submitted, names the versions that it reads.
So no copy is removed while a job may read it, whichever server has sent that.

Jobs may write there, and this host has files that they must not read or change. So no
link is followed there, and of no note more is read than one has.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from gpuyard.config.settings import StorageSettings
from gpuyard.domain.datasets import DatasetMount, is_sha256
from gpuyard.domain.errors import InvalidInputError, ProviderError
from gpuyard.storage.blobs import BucketError
from gpuyard.storage.dataset_cache import DatasetCache
from gpuyard.storage.dataset_copies import StoredParts, have_copy
from gpuyard.storage.dataset_store import DatasetMissingError, DatasetStores
from gpuyard.storage.untrusted import folder_beneath, read_beneath, write_beneath

_UNAVAILABLE = "DATASET_UNAVAILABLE"
_NOTES = "users"
_COPIES = "copies"
# The most bytes of a note, and the most notes: more than attempts read datasets at the
# same time.
_MOST_BYTES = 1 << 16
_MOST_NOTES = 100_000


class SpoolDatasets:
    """Has the datasets of attempts in `folder` of the spool, of at most `most_gb`
    together if that is possible. All methods block.
    """

    def __init__(
        self,
        spool: Path,
        folder: str,
        most_gb: float,
        home: Path,
        storage: StorageSettings,
        provider: str,
    ) -> None:
        self._spool = spool
        self._notes = (folder, _NOTES)
        self._provider = provider
        copies = spool / folder / _COPIES
        self._cache = DatasetCache(copies, int(most_gb * 1e9), self._in_use, spool)
        self._read = StoredParts(DatasetStores(home, storage))
        # One at a time: what one needs is not removed to make room for another.
        self._lock = threading.Lock()
        # What the attempt needs whose datasets are being made.
        self._wanted = frozenset[str]()

    def have(self, name: str, mounts: Sequence[DatasetMount]) -> dict[str, Path]:
        """Have the datasets of the attempt `name` there: where they are, by variable.
        ProviderError if one is not stored, or has no room; BucketError.
        """
        if not mounts:
            return {}
        with self._lock:
            self._wanted = frozenset(mount.digest for mount in mounts)
            try:
                for mount in mounts:
                    self._have(mount)
                self._note(name, mounts)
            finally:
                self._wanted = frozenset[str]()
        return {mount.variable: self._cache.folder(mount.digest) for mount in mounts}

    def _note(self, name: str, mounts: Sequence[DatasetMount]) -> None:
        digests = "\n".join(mount.digest for mount in mounts)
        try:
            write_beneath(self._spool, Path(*self._notes, name), digests.encode())
        except OSError as error:
            raise ProviderError(str(error), self._provider, _UNAVAILABLE) from None

    def _have(self, mount: DatasetMount) -> None:
        try:
            have_copy(self._cache, mount, self._read)
        except (DatasetMissingError, InvalidInputError) as error:
            message = f"{mount.variable}: {error}"
            raise ProviderError(message, self._provider, "DATASET_MISSING") from None
        except BucketError:
            raise
        except OSError as error:
            message = f"{mount.variable}: {error}"
            raise ProviderError(message, self._provider, _UNAVAILABLE) from None

    def forget(self, name: str) -> bool:
        """The attempt reads them no longer; False if it has read none."""
        try:
            with folder_beneath(self._spool, self._notes) as notes:
                os.unlink(name, dir_fd=notes)
        except OSError:  # what a job has put there instead is none
            return False
        return True

    def _in_use(self) -> dict[str, bool]:
        """The versions that attempts read, and those that the next one is to read."""
        found = dict.fromkeys(self._wanted, False)
        for name in self._noted():
            with suppress(OSError):  # it has just been removed, or is no note
                note = read_beneath(self._spool, Path(*self._notes, name), _MOST_BYTES)
                digests = note.decode(errors="replace").split()
                found |= dict.fromkeys(filter(is_sha256, digests), True)
        return found

    def _noted(self) -> list[str]:
        """The attempts that have notes."""
        try:
            with folder_beneath(self._spool, self._notes) as notes:
                return _first_names(notes)
        except FileNotFoundError:
            return []


def _first_names(folder: int) -> list[str]:
    with os.scandir(folder) as found:
        return [entry.name for entry in islice(found, _MOST_NOTES)]
