"""The errors of disks and databases, in our words."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from gpuyard.config.database import shown
from gpuyard.domain.errors import DiskFullError, GpuyardError, LedgerError, LedgerUnreachableError

_FULL = ("disk is full", "No space left", "could not extend file", "Disk quota exceeded")
_DAMAGED = ("malformed", "not a database", "invalid page in block")
_BROKEN = ("disk I/O error", "Input/output error", "could not fsync", "could not write")
# A server that goes down says so in class 57P; one that is not there cannot say anything.
_GONE = re.compile(
    "connection (failed|refused|timeout|timed out|reset|is closed|was closed|already closed|is lost|not open)"
    "|server closed the connection|terminating connection|the database system is|could not connect|SSL SYSCALL"
    "|(could not|failed to) (receive|send|translate|resolve)|no connection to the server|consuming input failed"
    "|Name or service not known|another command is already in progress|idle-in-transaction timeout",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(r"[a-z+]+://\S*@\S*|password=\S+", re.IGNORECASE)


def ledger_error(error: Exception, where: Path | str = "") -> LedgerError:
    """A database error in our words; `where` is the ledger's path or URL, of which no password is shown."""
    if isinstance(error, LedgerError):
        return error
    text = _one_line(error)
    place = shown(where) if isinstance(where, Path) or "://" in where else where
    if any(said in text for said in _FULL):
        return DiskFullError(
            f"The ledger {place} cannot be written: the disk is full. Nothing that was acknowledged is lost.",
            "Free some space; `gpuyard doctor` shows what gpuyard keeps where.",
        )
    if isinstance(where, str) and "://" in where and (is_lost(error) or _GONE.search(text)):
        return LedgerUnreachableError(
            f"Cannot reach the database at {place}; gpuyard will try again. Nothing that was acknowledged is lost.",
            f"See that it runs and lets this machine in ({text}).",
        )
    if any(said in text for said in _DAMAGED):
        return LedgerError(f"The ledger {place} is damaged: {text}.", "Restore it from a backup.")
    if any(said in text for said in _BROKEN):
        return LedgerError(
            f"The ledger {place} cannot be written: the disk fails ({text}). Nothing that was acknowledged is lost.",
            "Look at the disk (`dmesg`), and bring the ledger to a sound one with `gpuyard ledger backup`.",
        )
    return LedgerError(f"The ledger {place} cannot be used: {text}.", "`gpuyard doctor` may say more.")


def place(engine: sa.Engine) -> Path | str:
    """Where the ledger of `engine` is: SQLite's path or PostgreSQL's URL, without its password."""
    if engine.dialect.name == "sqlite":
        return Path(str(engine.url.database))
    return engine.url.render_as_string(hide_password=True)


@contextmanager
def in_our_words(engine: sa.Engine) -> Generator[None]:
    """Work on `engine` whose faults are raised as LedgerError, the driver's own among them."""
    driver: tuple[type[Exception], ...] = (engine.dialect.loaded_dbapi.Error,)
    try:
        yield
    except (*driver, SQLAlchemyError) as error:
        raise ledger_error(error, place(engine)) from error


def is_lost(error: BaseException) -> bool:
    """Is the connection gone with this error?"""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _one_line(error: Exception) -> str:
    """What the driver says, without the statement, the parameters and any password."""
    if isinstance(error, GpuyardError):
        return error.message
    said = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    return _CREDENTIALS.sub("…", " ".join(said.split()))[:300].rstrip(".")
