"""The answer to a request for a backup."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

if TYPE_CHECKING:
    from gpuyard.server.connections import Connection

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
            # Once it is over, it cannot be moved: waiting is what ends this task then.
            if not deadline.expired():
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
