"""Copies a whole ledger between SQLite and PostgreSQL, and makes backups."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from gpuyard.domain.errors import InvalidInputError, LedgerError, RefusedError
from gpuyard.ledger.apply import begin_group, cursor
from gpuyard.ledger.faults import as_ledger_errors, ledger_error, place
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.pages import copy_pages
from gpuyard.ledger.prune import consistent_read
from gpuyard.ledger.replay import check, refuse_a_leader
from gpuyard.ledger.schema import metadata
from gpuyard.ledger.side_tables import content_parts, contents, lease, servers
from gpuyard.ledger.statements import insert

_ROWS_AT_ONCE = 1000
# The servers and the lease belong to a database, not to the ledger in it. Environments
# may hold what nobody shall find in a backup.
_LEFT_OUT = (lease, servers, contents, content_parts)
_TABLES = [table for table in metadata.sorted_tables if table not in _LEFT_OUT]


def copy(
    source: sa.Engine, target: sa.Engine, *, replace: bool = False
) -> dict[str, int]:
    """Copy everything as it is at one moment, in one transaction; returns how many rows
    each table got.

    RefusedError when the target holds something and `replace` is not set, or when a
    server works on it. The copy is then checked: LedgerError when it differs from its
    journal.
    """
    with (
        as_ledger_errors(source),
        as_ledger_errors(target),
        consistent_read(source) as origin,
        target.begin() as tx,
    ):
        if target.dialect.name == "sqlite":
            tx.exec_driver_sql("BEGIN IMMEDIATE")
        begin_group(tx)
        refuse_a_leader(tx)
        _empty(tx, replace)
        copied = {table.name: _copy_table(origin, tx, table) for table in _TABLES}
        epoch = origin.execute(sa.select(lease.c.epoch)).scalar_one()
        # Never lower: nodes refuse an epoch that is older than one they have seen.
        tx.execute(
            sa.update(lease)
            .where(lease.c.epoch < epoch)
            .values(epoch=epoch, holder=None, url=None)
        )
        counted = {table.name: _count(tx, table) for table in _TABLES}
        if counted != copied:
            raise LedgerError(
                f"The copy holds {counted} rows instead of {copied}.",
                "Nothing was changed; try again.",
            )
    report = check(target)
    if not report.ok:
        found = "; ".join(str(difference) for difference in report.differences[:3])
        if not found:
            found = f"{report.gaps} events missing"
        raise LedgerError(
            f"The copy was made but differs from its journal: {found}.",
            "So does the original: see `gpuyard ledger check`.",
        )
    return copied


def backup(source: sa.Engine, file: Path) -> None:
    """Write the ledger as it is at one moment into a new SQLite file, which appears
    whole or not at all.

    Commits continue meanwhile. InvalidInputError when `file` exists; LedgerError when
    it cannot be written.
    """
    if file.exists():
        raise InvalidInputError.of(
            "FILE", f"{file} exists already", "give the name of a new file"
        )
    partial = file.with_name(file.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        if source.dialect.name == "sqlite":
            copy_pages(source, partial)
        else:
            _copy_into(source, partial)
        with partial.open("rb+") as written:
            os.fsync(written.fileno())
        partial.rename(file)
    except (OSError, sqlite3.Error, DBAPIError) as error:
        raise ledger_error(error, file) from error
    finally:
        for name in ("", "-wal", "-shm"):
            partial.with_name(partial.name + name).unlink(missing_ok=True)


def _copy_into(source: sa.Engine, file: Path) -> None:
    ledger = Ledger.open(file)
    try:
        copy(source, ledger.engine)
    finally:
        ledger.close()
    with closing(sqlite3.connect(file)) as target:
        target.execute("PRAGMA journal_mode=DELETE")


def _count(tx: sa.Connection, table: sa.Table) -> int:
    return tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def _empty(tx: sa.Connection, replace: bool) -> None:
    for table in _TABLES:
        if replace:
            tx.execute(sa.delete(table))
            continue
        any_row = sa.select(sa.literal(1)).select_from(table).limit(1)
        if tx.execute(any_row).first():
            where = place(tx.engine)
            name = where if isinstance(where, Path) else tx.engine.url.database
            raise RefusedError(
                f"The ledger {name} is not empty (table {table.name}).",
                "Copy into a new one, or add --replace to overwrite what it holds.",
            )


def _copy_table(origin: sa.Connection, tx: sa.Connection, table: sa.Table) -> int:
    statement = insert(table, tuple(table.columns.keys()), tx.dialect.name)
    copied = 0
    for rows in _parts(origin, table):
        statement.run(cursor(tx), rows)
        copied += len(rows)
    return copied


def _parts(origin: sa.Connection, table: sa.Table) -> Iterator[Sequence[Any]]:
    chosen = sa.select(table).order_by(*table.primary_key.columns)
    yield from (
        origin.execution_options(yield_per=_ROWS_AT_ONCE).execute(chosen).partitions()
    )
