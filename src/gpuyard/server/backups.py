"""Backups of the ledger on a schedule; `[backup]` says how often, how many, where."""

import asyncio
import shutil
import time
from pathlib import Path

import structlog

from gpuyard.config.ledger import BackupSettings
from gpuyard.config.paths import Home
from gpuyard.domain.errors import LedgerError
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.transfer import backup

# A server that starts has better things to do, and one that stays up for less than this
# needs no backup.
_FIRST_S = 60.0
_LOOK_S = 60.0
# The clock of a file server may be so much ahead of ours.
_SKEW_S = 3600.0
# How the folders begin in which backups wait to be sent to clients.
DOWNLOADS = ".backup-download-"
log = structlog.get_logger(__name__)


class Backups:
    """The backups of one home's ledger."""

    def __init__(self, home: Home, settings: BackupSettings, ledger: Ledger) -> None:
        self.folder = settings.path or home.backups
        self._ledger = ledger
        self._keep = settings.keep
        hours = settings.every_h
        if hours is None:
            # PostgreSQL has better ways: the guide names them.
            hours = 0.0 if ledger.shared else 24.0
        self._every_s = hours * 3600

    async def run(self) -> None:
        """Make a backup whenever one is due; one that fails is tried again."""
        if not self._every_s:
            return
        await asyncio.sleep(_FIRST_S)
        while True:
            try:
                await asyncio.to_thread(self.make_if_due)
            except Exception:
                log.exception("no backup could be made")
            await asyncio.sleep(_LOOK_S)

    def make_if_due(self) -> Path | None:
        """Make a backup if the newest one is too old, and delete the oldest; commits go
        on meanwhile. Returns the new one.
        """
        found = self.found()
        if found and -_SKEW_S < _age(found[-1]) < self._every_s:
            return None
        made_at = time.gmtime()
        file = self.folder / time.strftime("ledger-%Y%m%d-%H%M%S.db", made_at)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep()
            backup(self._ledger.engine, file)
            for oldest in self.found()[: -self._keep]:
                oldest.unlink()
        except (LedgerError, OSError) as error:
            log.warning("no backup could be made", file=str(file), error=str(error))
            return None
        return file

    def found(self) -> list[Path]:
        """The backups that are there, oldest first.

        Their times count, not their names. One from the future was made while the clock
        was wrong, so that it counts as the oldest.
        """
        latest = time.time() + _SKEW_S
        files = self.folder.glob("ledger-????????-??????.db")
        made_at = {file: file.stat().st_mtime for file in files}
        return sorted(
            made_at, key=lambda file: (made_at[file] < latest, made_at[file], file.name)
        )

    def _sweep(self) -> None:
        """Delete what a server that was killed has left half-written."""
        for leaving in self.folder.glob("ledger-*.db.partial*"):
            leaving.unlink()


def _age(file: Path) -> float:
    return time.time() - file.stat().st_mtime


def sweep_downloads(home: Home) -> None:
    """Delete the backups that a server that was killed was sending to clients."""
    for folder in home.root.glob(f"{DOWNLOADS}*"):
        shutil.rmtree(folder, ignore_errors=True)
