"""What all queries share: running a statement and turning its rows into dicts."""

from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from gpuyard.ledger.faults import is_lost, ledger_error, place

Row = dict[str, Any]
T = TypeVar("T")
ReadResult = Callable[[sa.CursorResult[Any]], list[T]]


class LedgerReader:
    """Runs read statements on one ledger, each in a transaction of its own."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        remote = engine.dialect.name == "postgresql"
        self._mark = "%s" if remote else "?"
        # On PostgreSQL a transaction would take three round trips instead of one.
        self._reads = (
            engine.execution_options(isolation_level="AUTOCOMMIT") if remote else engine
        )

    def _rows(
        self, statement: sa.Executable | str, values: tuple[Any, ...] = ()
    ) -> list[Row]:
        return self._results(statement, values, _as_dicts)

    def _row(self, statement: sa.Select[*tuple[Any, ...]]) -> Row | None:
        rows = self._rows(statement.limit(1))
        return rows[0] if rows else None

    def _results(
        self,
        statement: sa.Executable | str,
        values: tuple[Any, ...],
        read: ReadResult[T],
    ) -> list[T]:
        """Run the statement and `read` its result; `values` belong to an SQL text."""
        try:
            try:
                return self._execute(statement, values, read)
            except DBAPIError as error:
                if not is_lost(error):
                    raise
            # The database may have been restarted since the pool last used it.
            return self._execute(statement, values, read)
        except DBAPIError as error:
            raise ledger_error(error, place(self._engine)) from error

    def _execute(
        self,
        statement: sa.Executable | str,
        values: tuple[Any, ...],
        read: ReadResult[T],
    ) -> list[T]:
        with self._reads.connect() as connection:
            if isinstance(statement, str):
                return read(connection.exec_driver_sql(statement, values))
            return read(connection.execute(statement))


def _as_dicts(result: sa.CursorResult[Any]) -> list[Row]:
    """As `dict` of each of `mappings()`, which asks for all names again in each row and
    takes three times as long.
    """
    names = tuple(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result.all()]
