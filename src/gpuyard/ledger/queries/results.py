"""Reading what clients have found and left."""

import sqlalchemy as sa

from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.side_tables import results

_COLUMNS = (
    *(column for column in results.c if column.name != "file"),
    results.c.file.is_not(None).label("has_file"),
)


class ResultQueries(LedgerReader):
    """Reads of verdicts of checks and of rankings of studies."""

    def results(
        self, kind: str, limit: int, before: str | None = None, about: str | None = None
    ) -> list[Row]:
        """The newest results of a kind, newest first, without their files; older than
        the one with the id `before`.
        """
        statement = sa.select(*_COLUMNS).where(results.c.kind == kind)
        if before is not None:
            statement = statement.where(results.c.id < before)
        if about is not None:
            statement = statement.where(results.c.about == about)
        return self._rows(statement.order_by(results.c.id.desc()).limit(limit))

    def result(self, kind: str, result_id: str) -> Row | None:
        """One result, without its file."""
        is_it = sa.and_(results.c.kind == kind, results.c.id == result_id)
        return self._row(sa.select(*_COLUMNS).where(is_it))

    def result_file(self, kind: str, result_id: str) -> bytes | None:
        """The file of a result, packed; None if it has none."""
        is_it = sa.and_(results.c.kind == kind, results.c.id == result_id)
        row = self._row(sa.select(results.c.file).where(is_it))
        return row["file"] if row else None
