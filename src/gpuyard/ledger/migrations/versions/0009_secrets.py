"""Secrets: batches refer to some by name, and values of variables whose names look like
keys are removed from the specs of jobs and batches that are over, in tables, journal
and snapshots alike.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import sqlalchemy as sa
from alembic import op

from gpuyard.domain.secret_names import looks_like_key, without_keys

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
_OVER = ["completed", "failed", "cancelled", "timed_out"]
_PAGE = 500
Cleaner = Callable[[str, str, Any], Any]
"""Given a table, a key and the values of a row: the values without keys."""


def upgrade() -> None:
    op.add_column("batches", sa.Column("secrets", sa.JSON(), nullable=True))
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        # What is replaced must not stay in a free part of the file.
        connection.exec_driver_sql("PRAGMA secure_delete=ON")
    clean = _cleaner(connection)
    for table, key, column in (
        ("specs", "job_id", "body"),
        ("batches", "id", "environment"),
    ):
        _clean_table(connection, table, key, column, clean)
    _clean_journal(connection, clean)
    _clean_snapshots(connection, clean)


def downgrade() -> None:
    """What was removed is gone."""
    op.drop_column("batches", "secrets")


def _cleaner(connection: sa.Connection) -> Cleaner:
    live = {
        table: set(
            connection.execute(
                sa.text(f"SELECT id FROM {owner} WHERE state NOT IN :over").bindparams(
                    sa.bindparam("over", _OVER, expanding=True)
                )
            ).scalars()
        )
        for table, owner in (("specs", "jobs"), ("batches", "batches"))
    }

    def clean(table: str, key: str, values: Any) -> Any:
        if table not in live or key in live[table] or not isinstance(values, dict):
            return values
        row = cast("dict[str, Any]", values)
        body = row.get("body")
        if table == "specs" and isinstance(body, dict):
            return {**row, "body": _without_keys(cast("dict[str, Any]", body))}
        return _without_keys(row)

    return clean


def _without_keys(fields: dict[str, Any]) -> dict[str, Any]:
    given = fields.get("environment")
    if not isinstance(given, dict):
        return fields
    environment = cast("dict[str, str]", given)
    if not any(map(looks_like_key, environment)):
        return fields
    return {**fields, "environment": without_keys(environment)}


def _clean_table(
    connection: sa.Connection, table: str, key: str, column: str, clean: Cleaner
) -> None:
    chosen = sa.text(
        f"SELECT {key} AS id, CAST({column} AS TEXT) AS text FROM {table}"
        f" WHERE {key} > :after ORDER BY {key} LIMIT {_PAGE}"
    )
    changed = _update(connection, table, key, column)
    for row_id, text in _pages(connection, chosen, ""):
        values = {column: json.loads(text)} if text else {}
        cleaned = clean(table, row_id, values)
        if cleaned != values:
            connection.execute(
                changed, {"row_key": row_id, "new_value": cleaned[column]}
            )


def _clean_journal(connection: sa.Connection, clean: Cleaner) -> None:
    chosen = sa.text(
        "SELECT seq AS id, CAST(changes AS TEXT) AS text FROM events"
        " WHERE seq > :after AND CAST(changes AS TEXT) LIKE '%\"environment\"%'"
        f" ORDER BY seq LIMIT {_PAGE}"
    )
    changed = _update(connection, "events", "seq", "changes")
    for seq, text in _pages(connection, chosen, 0):
        changes = json.loads(text)
        cleaned = [
            [table, key, clean(table, key, values)] for table, key, values in changes
        ]
        if cleaned != changes:
            connection.execute(changed, {"row_key": seq, "new_value": cleaned})


def _clean_snapshots(connection: sa.Connection, clean: Cleaner) -> None:
    snapshots = sa.table(
        "snapshots", sa.column("table", sa.String), sa.column("body", sa.LargeBinary)
    )
    for table, key in (("specs", "job_id"), ("batches", "id")):
        of_table = snapshots.c.table == table
        body = connection.execute(sa.select(snapshots.c.body).where(of_table)).scalar()
        if body is None:
            continue
        rows = json.loads(zlib.decompress(body))
        cleaned = [clean(table, row[key], row) for row in rows]
        packed = zlib.compress(json.dumps(cleaned).encode(), level=6)
        connection.execute(sa.update(snapshots).where(of_table).values(body=packed))


def _update(connection: sa.Connection, table: str, key: str, column: str) -> sa.Update:
    target = sa.table(table, sa.column(key), sa.column(column, sa.JSON))
    return (
        sa.update(target)
        .where(target.c[key] == sa.bindparam("row_key"))
        .values({column: sa.bindparam("new_value", type_=sa.JSON)})
    )


def _pages(
    connection: sa.Connection, chosen: sa.TextClause, first: Any
) -> Iterator[tuple[Any, str]]:
    """All rows, in pages: some drivers hold a whole result in memory."""
    after = first
    while page := connection.execute(chosen, {"after": after}).all():
        yield from ((row.id, row.text) for row in page)
        after = page[-1].id
