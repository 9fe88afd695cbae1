"""What clients ask of the whole ledger: one check and one download at a time, however
many ask.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from gpuyard.domain.errors import ServerBusyError
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.replay import LedgerCheck, check
from gpuyard.ledger.transfer import backup
from gpuyard.server.backups import DOWNLOADS

if TYPE_CHECKING:
    from gpuyard.server.connections import Connection

# The download of a client that reads nothing for so long ends.
_STALLED_S = 60.0
log = structlog.get_logger(__name__)


class BackupDownload(FileResponse):
    """The answer that sends the backup `file`. `on_end()` is called when it is over:
    sent, or given up because the client has read nothing for `stalled_s`.
    """

    def __init__(
        self, file: Path, on_end: Callable[[], None], stalled_s: float
    ) -> None:
        super().__init__(
            file, media_type="application/vnd.sqlite3", filename="ledger.db"
        )
        self._on_end = on_end
        self._stalled_s = stalled_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        loop = asyncio.get_running_loop()
        deadline = asyncio.timeout(self._stalled_s)

        async def send_on(message: Message) -> None:
            deadline.reschedule(loop.time() + self._stalled_s)
            await send(message)

        try:
            async with deadline:
                await super().__call__(scope, receive, send_on)
        except TimeoutError:
            log.warning("a client does not read its backup, which is given up")
            connection: Connection | None = scope.get("gpuyard.connection")
            if connection:
                connection.transport.abort()
        finally:
            self._on_end()


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

    async def download(self) -> BackupDownload:
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
        return BackupDownload(file, end, self._stalled_s)
