"""The database of verification: a SQLite file, or a schema in PostgreSQL.

Servers may share the PostgreSQL database; the schema is `verification`. Transactions
are short and synchronous; asynchronous code runs them in threads.
"""

import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from gpuyard.config.database import shown
from gpuyard.config.netfs import network_filesystem
from gpuyard.domain.errors import GpuyardError
from gpuyard.verification.tables import SCHEMA_VERSION, metadata, versions

SCHEMA = "verification"
# FULL: a sample that was taken stays taken, even when the machine crashes.
_PRAGMAS = (
    "busy_timeout=30000",
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "temp_store=MEMORY",
)
_CONNECT = {
    "application_name": "gpuyard verification",
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# A server that hangs in a transaction may block others for at most this long.
_IDLE_IN_TRANSACTION = "SET idle_in_transaction_session_timeout = '10s'"


class DatabaseError(GpuyardError):
    """The database cannot be opened, read or written. Committed data is safe."""

    code = "verification_database"
    exit_code = 4


class Database:
    """An open database. `Database.open` creates missing tables."""

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self.name = name
        self._engine = engine

    @classmethod
    def open(cls, where: Path | str) -> "Database":
        """Open the SQLite file or PostgreSQL URL `where`; DatabaseError."""
        database = cls(
            _sqlite(where) if isinstance(where, Path) else _postgresql(where),
            shown(where),
        )
        try:
            database._make_tables()
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        """Close its connections."""
        self._engine.dispose()

    @property
    def sqlite(self) -> bool:
        """Whether it is a SQLite file."""
        return self._engine.dialect.name == "sqlite"

    @contextmanager
    def reading(self) -> Generator[sa.Connection]:
        """A transaction that only reads."""
        with self._explained(), self._engine.connect() as tx:
            yield tx

    @contextmanager
    def writing(self, lock: str | None = None) -> Generator[sa.Connection]:
        """A transaction that is committed at the end, or rolled back on an exception.

        Only one transaction with the same `lock` runs at a time; in SQLite only one
        that writes.
        """
        with (
            self._explained(),
            self._engine.connect().execution_options(gpuyard_writes=True) as tx,
            tx.begin(),
        ):
            if lock is not None and not self.sqlite:
                key = sa.func.hashtextextended(f"gpuyard verification {lock}", 0)
                tx.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
            yield tx

    def _make_tables(self) -> None:
        with self.writing(lock="schema") as tx:
            if not self.sqlite and not sa.inspect(tx).has_schema(SCHEMA):
                tx.execute(sa.schema.CreateSchema(SCHEMA))
            metadata.create_all(tx)
            found = tx.scalar(sa.select(sa.func.max(versions.c.version)))
            if found is None:
                tx.execute(versions.insert().values(version=SCHEMA_VERSION))
            elif found > SCHEMA_VERSION:
                raise DatabaseError(
                    f"The verification database {self.name} was written by a newer"
                    " gpuyard.",
                    "Install that version or a later one.",
                )

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            # The driver's own message contains neither the URL's password nor the
            # parameters, which are prompts and seeds.
            reason = str(getattr(error, "orig", None) or type(error).__name__)
            said = " ".join(reason.split())[:300].rstrip(".?")
            raise DatabaseError(
                f"The verification database {self.name} cannot be used: {said}."
            ) from error


def insert_many(
    tx: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> None:
    """Insert rows, a value per column, by the driver's own means: SQLAlchemy takes as
    long again for each.
    """
    sqlite = tx.dialect.name == "sqlite"
    marks = ", ".join(["?" if sqlite else "%s"] * len(columns))
    name = table.name if sqlite else f"{SCHEMA}.{table.name}"
    tx.exec_driver_sql(
        f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({marks})",
        [tuple(row) for row in rows],
    )


def _sqlite(path: Path) -> sa.Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if kind := network_filesystem(path):
            raise DatabaseError(
                f"The verification database {path} is on a network file system"
                f" ({kind}), where SQLite can lose data.",
                "Name a PostgreSQL database under `[verification] database`.",
            )
        # Made before SQLite makes it, because the log beside it takes its mode from it.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise DatabaseError(
            f"The verification database {path} cannot be opened: {error.strerror}."
        ) from error
    options = {"check_same_thread": False, "isolation_level": None}
    engine = sa.create_engine(
        f"sqlite:///{path}", connect_args=options, poolclass=QueuePool
    )
    event.listen(engine, "connect", _set_pragmas)
    event.listen(engine, "begin", _begin)
    return engine


def _postgresql(url: str) -> sa.Engine:
    try:
        address = sa.make_url(url).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        raise DatabaseError(
            "The verification database's address cannot be read.",
            "See `[verification] database`.",
        ) from None
    engine = sa.create_engine(address, connect_args=_CONNECT, pool_pre_ping=True)
    event.listen(engine, "connect", _set_limit)
    return engine.execution_options(schema_translate_map={None: SCHEMA})


def _set_pragmas(connection: sqlite3.Connection, _record: Any) -> None:
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _set_limit(connection: Any, _record: Any) -> None:
    connection.execute(_IDLE_IN_TRANSACTION)
    connection.commit()


def _begin(tx: sa.Connection) -> None:
    """Python's driver begins a transaction too late, and one that begins to write later
    on may be refused.
    """
    writes = tx.get_execution_options().get("gpuyard_writes")
    tx.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
