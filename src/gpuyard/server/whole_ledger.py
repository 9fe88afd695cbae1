"""What clients ask of the whole ledger: one check and one download at a time, however
many ask.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.domain.errors import ServerBusyError
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.replay import LedgerCheck, check
from gpuyard.ledger.transfer import backup
from gpuyard.server.backups import DOWNLOADS

if TYPE_CHECKING:
    from gpuyard.server.backup_download import BackupDownload

# The download of a client that reads nothing for so long ends.
_STALLED_S = 60.0


class WholeLedger:
    """Checks and backups of `ledger` for clients. Backups that are being downloaded are
    in `folder`.
    """

    def __init__(
        self, ledger: Ledger, folder: Path, stalled_s: float = _STALLED_S
    ) -> None:
        self._ledger = ledger
        self._folder = folder
        self._stalled_s = stalled_s
        self._checking: asyncio.Task[LedgerCheck] | None = None
        self._downloading = False

    async def check(self) -> LedgerCheck:
        """The result of a check. Who asks while one runs gets the result of that one.

        LedgerError.
        """
        if self._checking is None or self._checking.done():
            work = asyncio.to_thread(check, self._ledger.engine)
            self._checking = asyncio.create_task(work, name="check-the-ledger")
        # The others still want it when one of those who asked is gone.
        return await asyncio.shield(self._checking)

    async def download(self) -> "BackupDownload":
        """The ledger as it is now, as a SQLite file to be sent to a client.

        LedgerError; ServerBusyError while another download is under way, because each
        takes as much of the disk as the ledger.
        """
        if self._downloading:
            raise ServerBusyError(
                "Another backup is being downloaded.", "Try again when that is done."
            )
        self._downloading = True
        folder = tempfile.TemporaryDirectory(prefix=DOWNLOADS, dir=self._folder)

        def end() -> None:
            folder.cleanup()
            self._downloading = False

        file = Path(folder.name) / "ledger.db"
        try:
            await asyncio.to_thread(backup, self._ledger.engine, file)
        except BaseException:
            end()
            raise
        # Late: jobs are scheduled before what answers requests is imported.
        from gpuyard.server.backup_download import BackupDownload

        return BackupDownload(file, end, self._stalled_s)
