"""Copies SQLite's write-ahead log into the ledger's file beside the commits.

SQLite calls this a checkpoint, and would do it within the commit that finds the log too
long. On a large ledger this commit would then wait until a thousand pages are written
at a thousand places. Here another thread writes them, on a connection of its own, while
commits go on.
"""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuyard.ledger.in_thread import finish_in_thread

# Commits that come within this time are flushed together.
PERIOD_S = 0.25
# A log of 8 MB begins anew, which needs a moment without commits.
MOST_PAGES = 2000
_FLUSH = "PRAGMA wal_checkpoint(PASSIVE)"


class LogFlush:
    """Flushes the log of the ledger at `path` a moment after commits.

    Who holds `writing` is the only one who writes. The log can begin anew only when all
    of it has been copied, so the last pages of a long one are copied without commits.
    """

    def __init__(self, path: Path, writing: asyncio.Lock) -> None:
        self._path = path
        self._writing = writing
        self._committed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "ledger-flush")
        self._connection: sqlite3.Connection | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="ledger-flush")

    def note_commit(self) -> None:
        """Flush soon."""
        self._committed.set()

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False)
        if self._connection is not None:
            self._connection.close()

    async def _run(self) -> None:
        while True:
            await self._committed.wait()
            await asyncio.sleep(PERIOD_S)
            self._committed.clear()
            if await self._flush() > MOST_PAGES:
                async with self._writing:
                    await self._flush()

    async def _flush(self) -> int:
        """Copy what the log holds now; returns its length in pages."""
        return await finish_in_thread(self._thread, self._flush_now)

    def _flush_now(self) -> int:
        try:
            if self._connection is None:
                self._connection = self._connect()
            _, pages, _ = self._connection.execute(_FLUSH).fetchone()
        except sqlite3.Error:
            # The log is as good as the file, and the next commit finds the fault, too.
            return 0
        return pages

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous=FULL")
        return connection
