"""Opening a ledger: the engine, its pragmas, its lock, and the errors of a disk in our words."""

import os
import sqlite3
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from gpuyard.config.locks import lock_exclusively
from gpuyard.domain.errors import DiskFullError, LedgerError, LedgerLockedError, NetworkFilesystemError
from gpuyard.ledger.migrate import migrate
from gpuyard.ledger.netfs import network_filesystem

# Reading through the page cache's map saves a copy per page; 256 MB covers ledgers of millions of jobs.
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "busy_timeout=10000",
    "temp_store=MEMORY",
    "mmap_size=268435456",
    "cache_size=-32000",
)


def open_engine(path: Path) -> sa.Engine:
    """The engine of the SQLite ledger at `path`, migrated to this version's schema."""
    kind = network_filesystem(path)
    if kind:
        raise NetworkFilesystemError(
            f"The ledger {path} is on a network file system ({kind}), where SQLite can lose data.",
            "Set GPUYARD_HOME to a folder on a local disk.",
        )
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False})
    event.listen(engine, "connect", _set_pragmas)
    try:
        # Made before SQLite makes it, because the log beside it takes its mode from it.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        migrate(engine)
    except (DBAPIError, OSError) as error:
        raise ledger_error(error, path) from error
    path.chmod(0o600)
    return engine


def _set_pragmas(connection: sqlite3.Connection, _record: Any) -> None:
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def lock_ledger(path: Path) -> IO[str]:
    """Hold the server's lock file until the returned file is closed; LedgerLockedError names the holder."""
    file = path.open("a+")
    try:
        lock_exclusively(file)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise LedgerLockedError(
            f"Another gpuyard server (process {holder}) has this home open.",
            "Use it, stop it with `gpuyard down`, or set GPUYARD_HOME to another folder.",
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def ledger_error(error: Exception, path: Path | str = "") -> LedgerError:
    """A database error in our words."""
    text = str(getattr(error, "orig", None) or error)
    if "disk is full" in text or "No space left" in text:
        return DiskFullError(
            f"The ledger {path} cannot be written: the disk is full. Nothing that was acknowledged is lost.",
            "Free some space; `gpuyard doctor` shows what gpuyard keeps where.",
        )
    if "malformed" in text or "not a database" in text:
        return LedgerError(f"The ledger {path} is damaged: {text}.", "Restore it from a backup.")
    return LedgerError(f"The ledger {path} cannot be used: {text}.", "`gpuyard doctor` may say more.")
