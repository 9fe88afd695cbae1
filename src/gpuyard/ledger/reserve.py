"""The reserve: a file in the home that keeps room on its disk.

When the disk is full, the ledger gets a part of this room for each write that fails. So
jobs can still be cancelled, and their ends recorded. New jobs are refused until the
file is whole again.
"""

import os
from contextlib import suppress
from pathlib import Path

import structlog

from gpuyard.domain.errors import DiskFullError, LedgerError
from gpuyard.ledger.faults import free_bytes

# So much is given back at a time. Whoever fills the disk takes what is free, so that
# there must be something left for the next write.
STEP_BYTES = 4 << 20
log = structlog.get_logger(__name__)


class Reserve:
    """The reserve at `path`, of `size` bytes when it is whole; 0 for none."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._left = _size_of(path)
        self._gave_back = False

    @property
    def is_spent(self) -> bool:
        """True from the first part that was given back until the file is whole
        again.
        """
        return self._gave_back

    def fill(self) -> None:
        """Make the file whole, if as much again stays free. Blocks on the disk."""
        self._left = _size_of(self._path)  # somebody may have removed it
        if self._left == self._size:
            self._gave_back = False
            return
        # Beside the old one, a part of which may be given back meanwhile.
        draft = self._path.with_name(f"{self._path.name}.new")
        try:
            draft.unlink(missing_ok=True)
            if self._size == 0:
                self._path.unlink(missing_ok=True)
            elif free_bytes(self._path.parent) < self.room_to_fill:
                return
            else:
                _allocate(draft, self._size)
                draft.rename(self._path)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            log.warning("the reserve on the disk is not made", error=str(error))
            return
        self._left = _size_of(self._path)
        self._gave_back = False

    @property
    def room_to_fill(self) -> int:
        """So many bytes must be free before the file is made whole."""
        return 2 * self._size

    def give_back(self, error: LedgerError) -> bool:
        """Free a part of the file if `error` comes from a full disk; False when that is
        not the cause, or nothing is left.
        """
        if self._left == 0 or not isinstance(error, DiskFullError):
            return False
        left = max(self._left - STEP_BYTES, 0)
        try:
            os.truncate(self._path, left)
        except OSError as fault:
            log.warning("the reserve cannot be given back", error=str(fault))
            return False
        self._left = left
        self._gave_back = True
        log.warning("the disk is full: a part of the reserve is given back", left=left)
        return True

    def make_room(self) -> None:
        """Give back a part when less than that is free: a server that starts needs
        it.
        """
        with suppress(OSError):
            if free_bytes(self._path.parent) < STEP_BYTES:
                self.give_back(DiskFullError("The disk is full."))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _allocate(path: Path, size: int) -> None:
    """A file of this size whose blocks are taken from the disk, not only promised."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
        os.fsync(file)
    finally:
        os.close(file)
