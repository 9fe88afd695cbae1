"""Copies SQLite's write-ahead log into the ledger's file beside the commits.

SQLite calls this a checkpoint, and would do it within the commit that finds the log too
long. On a large ledger this commit would then wait until a thousand pages are written
at a thousand places. Here another thread writes them, on a connection of its own, while
commits go on.

SQLite before 3.51.3 can lose a commit that begins the log anew while another connection
starts a checkpoint (https://sqlite.org/wal.html#walresetbug). So a reader holds the log
while commits go on: none of them can begin it anew.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import structlog

from gpuyard.ledger.faults import ledger_error
from gpuyard.ledger.in_thread import finish_in_thread
from gpuyard.ledger.reserve import Reserve

# Commits that come within this time are flushed together.
PERIOD_S = 0.25
# A log of 8 MB begins anew, which needs a moment without commits.
MOST_PAGES = 2000
_FLUSH = "PRAGMA wal_checkpoint(PASSIVE)"
log = structlog.get_logger(__name__)
T = TypeVar("T")


class LogFlush:
    """Flushes the log of the ledger at `path` a moment after commits.

    Who holds `writing` is the only one who writes. The log can begin anew only when all
    of it has been copied, so the last pages of a long one are copied without commits.
    """

    def __init__(
        self, path: Path, writing: asyncio.Lock, reserve: Reserve | None = None
    ) -> None:
        self._path = path
        self._writing = writing
        self._reserve = reserve
        self._committed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "ledger-flush")
        self._connections: tuple[sqlite3.Connection, sqlite3.Connection] | None = None
        self._task: asyncio.Task[None] | None = None
        self._fails = False

    def start(self) -> None:
        """Begin; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="ledger-flush")

    def note_commit(self) -> None:
        """Flush soon. Only for a commit that has written something."""
        self._committed.set()

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False)
        for connection in self._connections or ():
            connection.close()

    async def _run(self) -> None:
        while True:
            await self._committed.wait()
            await asyncio.sleep(PERIOD_S)
            try:
                pages = await self._flush_beside_commits()
                if pages > MOST_PAGES:
                    await self._flush_without_commits()
            except sqlite3.Error as error:
                self._note_fault(error)
            else:
                self._fails = False

    def _note_fault(self, error: sqlite3.Error) -> None:
        """Make room on a full disk, since a log that cannot begin anew takes ever more.

        For other faults, whoever commits flushes, too, once the log is too long.
        """
        fault = ledger_error(error, self._path)
        if self._reserve is not None and self._reserve.give_back(fault):
            self._committed.set()
        elif not self._fails:
            self._fails = True
            log.warning("the ledger's log is not flushed", error=str(fault))

    async def _flush_beside_commits(self) -> int:
        """Flush what the log holds now; returns its length in pages."""
        try:
            async with self._writing:
                # There is something to flush, so the reader needs the log and not only
                # the file; what is committed from now on is for the next time.
                self._committed.clear()
                await self._in_thread(self._hold_log)
            return await self._in_thread(self._flush)
        finally:
            await self._in_thread(self._release_log)

    async def _flush_without_commits(self) -> None:
        """Flush all of the log, so that the next commit begins it anew."""
        async with self._writing:
            self._committed.clear()
            await self._in_thread(self._flush)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await finish_in_thread(self._thread, work)

    # --- in the thread ---

    def _open(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        """The connection that flushes and the reader's; opened at the first call."""
        if self._connections is None:
            self._connections = (_connect(self._path), _connect(self._path))
        return self._connections

    def _hold_log(self) -> None:
        _, reader = self._open()
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def _release_log(self) -> None:
        _, reader = self._open()
        reader.rollback()

    def _flush(self) -> int:
        flushing, _ = self._open()
        _, pages, _ = flushing.execute(_FLUSH).fetchone()
        return pages


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")
    return connection
