"""Makes the names of new files last: a file that was synced is lost in a power cut as
long as its folder was not.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Return when the names in the folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make the folder, and those above it, so that they last."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)
    sync_folder(folder.parent)


class _Round:
    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: OSError | None = None


class FolderSyncs:
    """Syncs folders for many threads: those that wait for the same folder share one
    sync.
    """

    def __init__(self, sync: Callable[[Path], None] = sync_folder) -> None:
        self._sync = sync
        self._mutex = threading.Lock()
        self._turn = threading.Lock()
        self._next: dict[Path, _Round] = {}

    def sync(self, folder: Path) -> None:
        """Return after a sync of the folder that began after this call."""
        with self._mutex:
            found = self._next.get(folder)
            shared = found or self._next.setdefault(folder, _Round())
        if found is None:
            self._lead(folder, shared)
        shared.over.wait()
        if shared.error:
            raise OSError(shared.error.errno, shared.error.strerror, str(folder))

    def _lead(self, folder: Path, shared: _Round) -> None:
        with self._turn:
            # Who comes from now on may have changed the folder too late for this one.
            with self._mutex:
                del self._next[folder]
            try:
                self._sync(folder)
            except OSError as error:
                shared.error = error
            finally:
                shared.over.set()
