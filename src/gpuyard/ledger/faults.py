"""Turns errors of disks and databases into LedgerError, with texts of our own."""

import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from gpuyard.config.database import shown
from gpuyard.domain.errors import (
    DiskFullError,
    GpuyardError,
    LedgerBusyError,
    LedgerError,
    LedgerUnreachableError,
)

_PATIENCE_S = 10.0
_PAUSE_S = 0.05
Result = TypeVar("Result")
_FULL = (
    "disk is full",
    "No space left",
    "could not extend file",
    "Disk quota exceeded",
)
_DAMAGED = ("malformed", "not a database", "invalid page in block")
HOW_TO_RESTORE = (
    "Restore it from a backup with `gpuyard ledger restore FILE`; those that gpuyard"
    " made are in `backups` in the home, unless [backup] names another folder. Jobs"
    " that run go on."
)
_BROKEN = ("disk I/O error", "Input/output error", "could not fsync", "could not write")
# A PostgreSQL server that shuts down reports class 57P; one that is gone reports
# nothing, so the client library's texts count.
_GONE = re.compile(
    "connection (failed|refused|timeout|timed out|reset|is closed|was closed|already"
    " closed|is lost|not open)|server closed the connection|terminating connection|the"
    " database system is|could not connect|SSL SYSCALL|(could not|failed to)"
    " (receive|send|translate|resolve)|no connection to the server|consuming input"
    " failed|Name or service not known|another command is already in"
    " progress|idle-in-transaction timeout",
    re.IGNORECASE,
)
# Less than this is as good as nothing.
_NOTHING_BYTES = 1 << 20
_CREDENTIALS = re.compile(r"[a-z+]+://\S*@\S*|password=\S+", re.IGNORECASE)


def ledger_error(error: Exception, where: Path | str = "") -> LedgerError:
    """A database error in our words; `where` is the ledger's path or URL, of which no
    password is shown.
    """
    if isinstance(error, LedgerError):
        return error
    text = _one_line(error)
    place = shown(where) if isinstance(where, Path) or "://" in where else where
    if any(phrase in text for phrase in _FULL) or _broke_on_full_disk(text, where):
        return DiskFullError(
            f"The ledger {place} cannot be written: the disk is full. Nothing that was"
            " acknowledged is lost.",
            "Free some space; `gpuyard doctor` shows what gpuyard keeps where.",
        )
    if is_busy(error):
        return LedgerBusyError(
            f"Another program holds the ledger {place} locked; gpuyard will try again."
            " Nothing that was acknowledged is lost.",
            "End what has it open (`fuser` names it): only gpuyard may write there.",
        )
    is_url = isinstance(where, str) and "://" in where
    if is_url and (is_lost(error) or _GONE.search(text)):
        return LedgerUnreachableError(
            f"Cannot reach the database at {place}; gpuyard will try again. Nothing"
            " that was acknowledged is lost.",
            f"See that it runs and lets this machine in ({text}).",
        )
    if any(phrase in text for phrase in _DAMAGED):
        return LedgerError(f"The ledger {place} is damaged: {text}.", HOW_TO_RESTORE)
    if any(phrase in text for phrase in _BROKEN):
        return LedgerError(
            f"The ledger {place} cannot be written: the disk fails ({text}). Nothing"
            " that was acknowledged is lost.",
            "Look at the disk (`dmesg`), and bring the ledger to a sound one with"
            " `gpuyard ledger backup`.",
        )
    return LedgerError(
        f"The ledger {place} cannot be used: {text}.", "`gpuyard doctor` may say more."
    )


def place(engine: sa.Engine) -> Path | str:
    """Where the ledger of `engine` is: SQLite's path or PostgreSQL's URL, without its
    password.
    """
    if engine.dialect.name == "sqlite":
        return Path(str(engine.url.database))
    return engine.url.render_as_string(hide_password=True)


def free_bytes(folder: Path) -> int:
    """The bytes that this user can still write on the disk of `folder`."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _broke_on_full_disk(text: str, where: Path | str) -> bool:
    """True for an error of the disk where nothing is free: SQLite reports some
    failures on a full disk like that.
    """
    is_broken = any(phrase in text for phrase in _BROKEN)
    if not is_broken or not isinstance(where, Path):
        return False
    try:
        return free_bytes(where.parent) < _NOTHING_BYTES
    except OSError:
        return False


@contextmanager
def as_ledger_errors(engine: sa.Engine) -> Generator[None]:
    """Raise the errors of work on `engine` as LedgerError, also those of the driver."""
    driver: tuple[type[Exception], ...] = (engine.dialect.loaded_dbapi.Error,)
    try:
        yield
    except (*driver, SQLAlchemyError) as error:
        raise ledger_error(error, place(engine)) from error


def is_busy(error: BaseException) -> bool:
    """True when another program holds SQLite's lock."""
    cause = getattr(error, "orig", None) or error
    name = getattr(cause, "sqlite_errorname", "")
    return name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def patiently(work: Callable[[], Result]) -> Result:
    """Do `work`, again while another program holds SQLite's lock, for ten seconds: for
    starts, when nothing else waits.
    """
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return work()
        except DBAPIError as error:
            if not is_busy(error) or time.monotonic() > until:
                raise
        time.sleep(_PAUSE_S)


def is_lost(error: BaseException) -> bool:
    """True when the connection was lost with this error."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _one_line(error: Exception) -> str:
    """The driver's message without the statement, the parameters and any password."""
    if isinstance(error, GpuyardError):
        return error.message
    cause = getattr(error, "orig", None) or error
    text = str(cause).strip() or type(error).__name__
    one_line = " ".join(text.split())
    return _CREDENTIALS.sub("…", one_line)[:300].rstrip(".")
