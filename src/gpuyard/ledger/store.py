"""Opening a ledger: the engine of either database, SQLite's pragmas and its lock."""

import os
import sqlite3
from pathlib import Path
from typing import IO, Any

import msgspec
import sqlalchemy as sa
import structlog
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError

from gpuyard.config.locks import lock_exclusively, open_lock
from gpuyard.config.netfs import network_filesystem
from gpuyard.domain.errors import LedgerError, LedgerLockedError, NetworkFilesystemError
from gpuyard.ledger.faults import HOW_TO_RESTORE, ledger_error, patiently
from gpuyard.ledger.migrate import migrate, outdated_schema
from gpuyard.ledger.pages import copy_pages, damage_of, finish_restore
from gpuyard.ledger.statements import to_json

# Statements run on the event loop, which may not wait for the lock of another program:
# who gets no lock at once tries again later (`writer.py`).
# Not mapped into memory: mapped pages count as the server's memory, and a list is read
# no faster from them. The system caches the file. SQLite's own cache needs to hold only
# what a listing touches; the writer asks for a larger one.
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "busy_timeout=20",
    "journal_size_limit=16777216",
    # `log_flush.py` keeps the log short; beyond 32 MB, a commit does it, too.
    "wal_autocheckpoint=8000",
    "temp_store=MEMORY",
    "cache_size=-1000",
)
# In seconds, `tcp_user_timeout` in ms. A database that is gone without notice (a cut
# cable) is noticed within about ten seconds.
_CONNECT = {
    "application_name": "gpuyard",
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


_LOOKED_THROUGH_BYTES = 64 << 20
log = structlog.get_logger(__name__)


def open_engine(where: Path | str) -> sa.Engine:
    """The engine of the ledger at `where`, SQLite's path or PostgreSQL's URL, migrated
    to this version's schema.
    """
    return _open_sqlite(where) if isinstance(where, Path) else _open_postgresql(where)


def _open_sqlite(path: Path) -> sa.Engine:
    kind = network_filesystem(path)
    if kind:
        raise NetworkFilesystemError(
            f"The ledger {path} is on a network file system ({kind}), where SQLite can"
            " lose data.",
            "Set GPUYARD_HOME to a folder on a local disk.",
        )
    engine = sa.create_engine(
        f"sqlite:///{path}",
        connect_args={"check_same_thread": False},
        json_serializer=to_json,
        json_deserializer=msgspec.json.decode,
    )
    event.listen(engine, "connect", _set_pragmas)
    try:
        # The file is made here, before SQLite makes it, because its log takes the mode
        # from it.
        finish_restore(path)
        _refuse_damage(path)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        patiently(lambda: _keep_as_it_was(engine, path))
        patiently(lambda: migrate(engine))
    except (DBAPIError, OSError) as error:
        raise ledger_error(error, path) from error
    path.chmod(0o600)
    return engine


def _refuse_damage(path: Path) -> None:
    """LedgerError when the file is damaged; a large one is not looked through at each
    start, but by `gpuyard doctor`.
    """
    if not path.is_file() or not 0 < path.stat().st_size <= _LOOKED_THROUGH_BYTES:
        return
    fault = damage_of(path)
    if fault:
        raise LedgerError(f"The ledger {path} is damaged: {fault}.", HOW_TO_RESTORE)


def _keep_as_it_was(engine: sa.Engine, path: Path) -> None:
    """Save a ledger that is about to be migrated as `ledger.db.schema-NUMBER`."""
    schema = outdated_schema(engine)
    if schema is None:
        return
    kept = path.with_name(f"{path.name}.schema-{schema}")
    partial = kept.with_name(kept.name + ".partial")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        copy_pages(engine, partial)
    except BaseException:
        partial.unlink()  # on a full disk it would keep the room that there was
        raise
    with partial.open("rb+") as written:
        os.fsync(written.fileno())
    partial.rename(kept)
    log.info("the ledger is saved before it is migrated", file=str(kept))


def _open_postgresql(url: str) -> sa.Engine:
    try:
        address = sa.make_url(url).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        raise LedgerError(
            "The database's address cannot be read.", "See `[ledger] url`."
        ) from None
    engine = sa.create_engine(
        address,
        connect_args=_CONNECT,
        json_serializer=to_json,
        json_deserializer=msgspec.json.decode,
    )
    event.listen(engine, "connect", _commit_durably)
    try:
        migrate(engine)
    except DBAPIError as error:
        raise ledger_error(error, url) from None
    return engine


def _commit_durably(connection: Any, _record: Any) -> None:
    """Undo `synchronous_commit=off`: gpuyard acknowledges what is committed."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        if cursor.fetchone()[0] == "off":
            log.warning(
                "PostgreSQL has synchronous_commit=off, which loses acknowledged jobs"
                " in a crash: gpuyard's own sessions turn it on"
            )
            cursor.execute("SET synchronous_commit = on")
    connection.commit()


def _set_pragmas(connection: sqlite3.Connection, _record: Any) -> None:
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def lock_ledger(path: Path) -> IO[str]:
    """Hold the server's lock file until the returned file is closed; LedgerLockedError
    names the holder.
    """
    file = open_lock(path)
    try:
        lock_exclusively(file)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise LedgerLockedError(
            f"Another gpuyard server (process {holder}) has this home open.",
            "Use it, stop it with `gpuyard down`, or set GPUYARD_HOME to another"
            " folder.",
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
