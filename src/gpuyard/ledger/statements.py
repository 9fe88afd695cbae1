"""SQL that is built once per table and set of columns, and run on the driver's own
cursor: for a single statement SQLAlchemy needs about thirty times as long as SQLite.
Both databases use the same SQL except for the placeholders.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
import sqlalchemy as sa

from gpuyard.domain.events import Table
from gpuyard.ledger.side_tables import LEASE, notes, points, progress, row_images
from gpuyard.ledger.tables import STATE_TABLES, key_column

ROWS_PER_INSERT = 20
LAST_SEQ = (
    "SELECT coalesce((SELECT max(seq) FROM events), (SELECT max(seq) FROM pruned), 0)"
)
_LEASE_EPOCH = f"SELECT epoch FROM lease WHERE name = '{LEASE}'"
LOCK_LEASE = f"{_LEASE_EPOCH} FOR UPDATE"
SHARE_LEASE = f"{_LEASE_EPOCH} FOR KEY SHARE"


def _plain(value: Any) -> Any:
    """A plain value for one that JSON cannot express."""
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    raise TypeError(f"{type(value).__name__} cannot be kept as JSON")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def to_json(value: Any) -> str:
    """JSON as both databases store it; `msgspec.Raw` is JSON already and is kept as it
    is.
    """
    return _encoder.encode(value).decode()


@dataclass(frozen=True, slots=True)
class Insert:
    """An INSERT of whole rows. `json` are the positions of values stored as JSON, and
    `text` those that must not hold NUL. `many` inserts `ROWS_PER_INSERT` rows at once,
    where that is faster.
    """

    sql: str
    json: tuple[int, ...] = ()
    text: tuple[int, ...] = ()
    many: str = ""

    def run(self, cursor: Any, rows: Iterable[Sequence[Any]]) -> None:
        """Insert `rows`, each a value per column."""
        encoded = list(self._encoded(rows))
        in_groups = 0
        if self.many:
            in_groups = len(encoded) - len(encoded) % ROWS_PER_INSERT
        for start in range(0, in_groups, ROWS_PER_INSERT):
            group = encoded[start : start + ROWS_PER_INSERT]
            cursor.execute(self.many, list(chain.from_iterable(group)))
        if in_groups < len(encoded):
            cursor.executemany(self.sql, encoded[in_groups:])

    def _encoded(self, rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        if not self.json and not self.text:
            yield from rows
            return
        for row in rows:
            values = list(row)
            for i in self.json:
                if values[i] is not None:
                    values[i] = to_json(values[i])
            for i in self.text:
                # PostgreSQL's text cannot hold this character.
                if values[i] and "\0" in values[i]:
                    values[i] = values[i].replace("\0", "\ufffd")
            yield values


@lru_cache(maxsize=1024)
def upsert(name: Table, columns: tuple[str, ...], dialect: str) -> Insert:
    """Writes `columns` of rows of a state table, and leaves the other columns. The key
    is each row's first value.
    """
    table = STATE_TABLES[name]
    key = key_column(table).name
    if not columns:
        return _insert(table, (key,), dialect, f"ON CONFLICT ({key}) DO NOTHING")
    changed = ", ".join(f'"{column}" = excluded."{column}"' for column in columns)
    conflict = f"ON CONFLICT ({key}) DO UPDATE SET {changed}"
    return _insert(table, (key, *columns), dialect, conflict)


@lru_cache(maxsize=64)
def insert(table: sa.Table, columns: tuple[str, ...], dialect: str) -> Insert:
    """Inserts new rows, a value per column in this order."""
    return _insert(table, columns, dialect, "")


@lru_cache(maxsize=4)
def insert_points(dialect: str) -> Insert:
    """Inserts points of series, a value per column in the table's order; an existing
    point stays.
    """
    columns = tuple(points.columns.keys())
    return _insert(points, columns, dialect, "ON CONFLICT DO NOTHING")


@lru_cache(maxsize=4)
def upsert_progress(dialect: str) -> Insert:
    """Writes each job's latest reading: its id and the reading."""
    conflict = "ON CONFLICT (job_id) DO UPDATE SET body = excluded.body"
    return _insert(progress, ("job_id", "body"), dialect, conflict)


@lru_cache(maxsize=4)
def upsert_notes(dialect: str) -> Insert:
    """Writes notes: the name of each and its body."""
    conflict = "ON CONFLICT (name) DO UPDATE SET body = excluded.body"
    return _insert(notes, ("name", "body"), dialect, conflict)


@lru_cache(maxsize=4)
def upsert_image(dialect: str) -> Insert:
    """Writes images of rows: the table, the key and the packed row."""
    columns = tuple(row_images.columns.keys())
    conflict = 'ON CONFLICT ("table", "key") DO UPDATE SET body = excluded.body'
    return _insert(row_images, columns, dialect, conflict)


@lru_cache(maxsize=4)
def remove_image(dialect: str) -> str:
    """Removes images of rows, given the table and the key."""
    mark = _mark(dialect)
    return f'DELETE FROM row_images WHERE "table" = {mark} AND "key" = {mark}'


@lru_cache(maxsize=64)
def remove(name: Table, dialect: str) -> str:
    """Removes rows of a state table, given the key."""
    table = STATE_TABLES[name]
    mark = _mark(dialect)
    return f'DELETE FROM "{table.name}" WHERE "{key_column(table).name}" = {mark}'


def _mark(dialect: str) -> str:
    return "?" if dialect == "sqlite" else "%s"


def _insert(
    table: sa.Table, columns: tuple[str, ...], dialect: str, conflict: str
) -> Insert:
    unknown = set(columns) - set(table.columns.keys())
    if unknown:
        raise ValueError(f"{table.name} has no column {', '.join(sorted(unknown))}")
    is_sqlite = dialect == "sqlite"
    placeholders = ", ".join([_mark(dialect)] * len(columns))
    names = ", ".join(f'"{column}"' for column in columns)
    into = f'INSERT INTO "{table.name}" ({names}) VALUES'
    kinds = [table.c[column].type for column in columns]
    json = tuple(i for i, kind in enumerate(kinds) if isinstance(kind, sa.JSON))
    many = ""
    text: tuple[int, ...] = ()
    if is_sqlite:
        # For each row of a statement of its own, SQLite's driver lets other threads run
        # and has to wait for its turn.
        all_rows = ", ".join([f"({placeholders})"] * ROWS_PER_INSERT)
        many = f"{into} {all_rows} {conflict}"
    else:
        text = tuple(i for i, kind in enumerate(kinds) if isinstance(kind, sa.String))
    return Insert(f"{into} ({placeholders}) {conflict}", json, text, many)
