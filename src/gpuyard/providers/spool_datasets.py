"""The datasets of jobs in external queues: copies in a folder that their nodes share
with this host, each made once for all jobs that read it.

A note for each attempt, made before it is submitted, names the versions that it reads.
So no copy is removed while a job may read it, whichever server has sent that.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from gpuyard.config.settings import StorageSettings
from gpuyard.domain.datasets import DatasetMount
from gpuyard.domain.errors import InvalidInputError, ProviderError
from gpuyard.storage.blobs import BucketError
from gpuyard.storage.dataset_cache import DatasetCache
from gpuyard.storage.dataset_copies import StoredParts, have_copy
from gpuyard.storage.dataset_store import DatasetMissingError, DatasetStores


class SpoolDatasets:
    """Has the datasets of attempts below `root`, of at most `most_gb` together if that
    is possible. All methods block.
    """

    def __init__(
        self,
        root: Path,
        most_gb: float,
        home: Path,
        storage: StorageSettings,
        provider: str,
    ) -> None:
        self._notes = root / "users"
        self._provider = provider
        self._cache = DatasetCache(root / "copies", int(most_gb * 1e9), self._in_use)
        self._read = StoredParts(DatasetStores(home, storage))
        # One at a time: what one needs is not removed to make room for another.
        self._lock = threading.Lock()

    def have(self, name: str, mounts: Sequence[DatasetMount]) -> dict[str, Path]:
        """Have the datasets of the attempt `name` there: where they are, by variable.
        ProviderError if one is not stored, or has no room; BucketError.
        """
        if not mounts:
            return {}
        with self._lock:
            self._notes.mkdir(parents=True, exist_ok=True, mode=0o700)
            for mount in mounts:
                self._have(mount)
            digests = "\n".join(mount.digest for mount in mounts)
            (self._notes / name).write_text(digests)
        return {mount.variable: self._cache.folder(mount.digest) for mount in mounts}

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
            code = "DATASET_UNAVAILABLE"
            raise ProviderError(message, self._provider, code) from None

    def forget(self, name: str) -> bool:
        """The attempt reads them no longer; False if it has read none."""
        try:
            (self._notes / name).unlink()
        except FileNotFoundError:
            return False
        return True

    def _in_use(self) -> dict[str, bool]:
        """The versions that attempts read."""
        if not self._notes.is_dir():
            return {}
        notes = [note.read_text() for note in self._notes.iterdir()]
        return dict.fromkeys("\n".join(notes).split(), True)
