"""SQLite files as a whole: copied page by page, looked through for damage, restored."""

import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from gpuyard.domain.errors import LedgerError
from gpuyard.ledger.faults import ledger_error

# 1 MB in each step of a copy, and a pause in which commits have the disk.
_PAGES = 256
_PAUSE_S = 0.002
# A restored ledger starts so many terms later than its backup: nodes refuse a term that
# is older than one they have seen.
_TERMS = 1000
_COMPANIONS = ("-wal", "-shm")


def copy_pages(source: sa.Engine, file: Path) -> None:
    """Copy the ledger as it is at one moment into the SQLite file `file`; commits go on
    meanwhile.
    """
    with source.connect() as connection, closing(sqlite3.connect(file)) as target:
        origin: Any = connection.connection.driver_connection
        # One moment for all steps: without it, each commit would start the copy anew.
        origin.execute("BEGIN")
        origin.execute("SELECT count(*) FROM sqlite_master").fetchone()
        try:
            origin.backup(target, pages=_PAGES, progress=_pause)
        finally:
            origin.rollback()
        # So that the backup is one file, without a log beside it.
        target.execute("PRAGMA journal_mode=DELETE")


def _pause(_status: int, _left: int, _pages: int) -> None:
    time.sleep(_PAUSE_S)


def damage_of(path: Path) -> str | None:
    """What is wrong with the SQLite file at `path`; None when nothing is. It is only
    read, beside a server or not. LedgerError when it cannot be.
    """
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        raise ledger_error(error, path) from error
    except sqlite3.Error as error:
        return str(error)
    return None if found == "ok" else " ".join(str(found).split())


def check_backup(file: Path) -> None:
    """LedgerError when `file` is damaged, or no ledger at all."""
    fault = damage_of(file)
    if fault:
        raise LedgerError(
            f"The backup {file} is damaged: {fault}.", "Take another backup."
        )
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master").fetchall()
    if not {("events",), ("lease",)} <= set(found):
        raise LedgerError(f"The file {file} is no backup of a ledger.", "Name another.")


def restore(backup: Path, ledger: Path) -> Path | None:
    """Put `backup` in the place of the SQLite file `ledger`, whose lock the caller
    holds; returns where the former one is now.

    LedgerError when the backup is damaged, is none or cannot be written; nothing is
    changed then.
    """
    check_backup(backup)
    draft = ledger.with_name(f"{ledger.name}.restoring")
    try:
        draft.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        shutil.copyfile(backup, draft)
        _begin_later(draft, ledger)
        with draft.open("rb+") as written:
            os.fsync(written.fileno())
        draft.rename(_restored(ledger))
    except (OSError, sqlite3.Error) as error:
        draft.unlink(missing_ok=True)
        raise ledger_error(error, ledger) from error
    return finish_restore(ledger)


def finish_restore(ledger: Path) -> Path | None:
    """Take what `restore` has made ready, also when it was killed since; returns where
    the former ledger is now.
    """
    restored = _restored(ledger)
    if not restored.exists():
        return None
    kept = ledger.with_name(f"{ledger.name}.before-restore-{time.time_ns()}")
    if ledger.exists():
        os.link(ledger, kept)
    # The log of the former ledger must never be taken for one of the new.
    for suffix in _COMPANIONS:
        companion = ledger.with_name(ledger.name + suffix)
        if companion.exists():
            companion.rename(kept.with_name(kept.name + suffix))
    restored.rename(ledger)
    folder = os.open(ledger.parent, os.O_DIRECTORY)
    os.fsync(folder)
    os.close(folder)
    return kept if kept.exists() else None


def _restored(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.restored")


def _begin_later(draft: Path, former: Path) -> None:
    """Let the next server's term come after all terms that nodes may have seen."""
    with closing(sqlite3.connect(draft)) as connection, connection:
        (epoch,) = connection.execute("SELECT max(epoch) FROM lease").fetchone()
        later = max(int(epoch or 0) + _TERMS, _epoch_of(former))
        connection.execute("UPDATE lease SET epoch = ?", (later,))


def _epoch_of(ledger: Path) -> int:
    """The term of a ledger that may be damaged or absent."""
    try:
        with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
            (epoch,) = connection.execute("SELECT max(epoch) FROM lease").fetchone()
            return int(epoch or 0)
    except sqlite3.Error:
        return 0
