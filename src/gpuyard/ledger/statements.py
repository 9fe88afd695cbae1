"""SQL made once per shape of row and run on the driver's own cursor: SQLAlchemy spends some thirty times as long on a
single statement as SQLite does. Both databases read the same words but for the mark of a parameter.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
import sqlalchemy as sa

from gpuyard.domain.events import Table
from gpuyard.ledger.tables import LEASE, STATE_TABLES, key_column, notes, points, progress

MANY = 20
LAST_SEQ = "SELECT coalesce((SELECT max(seq) FROM events), (SELECT max(seq) FROM snapshots), 0)"
_LEASE_EPOCH = f"SELECT epoch FROM lease WHERE name = '{LEASE}'"
LOCK_LEASE = f"{_LEASE_EPOCH} FOR UPDATE"
SHARE_LEASE = f"{_LEASE_EPOCH} FOR KEY SHARE"


def _plain(value: Any) -> Any:
    """What JSON has no form for, but has a plain twin."""
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    raise TypeError(f"{type(value).__name__} cannot be kept as JSON")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def to_json(value: Any) -> str:
    """JSON as both databases keep it; what is JSON already (`msgspec.Raw`) goes in as it is."""
    return _encoder.encode(value).decode()


@dataclass(frozen=True, slots=True)
class Insert:
    """An INSERT of whole rows. `json` are the positions of values kept as JSON; `text` those that may hold no NUL;
    `many` inserts `MANY` rows at once, where that is better."""

    sql: str
    json: tuple[int, ...] = ()
    text: tuple[int, ...] = ()
    many: str = ""

    def run(self, cursor: Any, rows: Iterable[Sequence[Any]]) -> None:
        """Insert `rows`, each a value per column."""
        values = list(self._encoded(rows))
        whole = len(values) - len(values) % MANY if self.many else 0
        for start in range(0, whole, MANY):
            cursor.execute(self.many, list(chain.from_iterable(values[start : start + MANY])))
        if whole < len(values):
            cursor.executemany(self.sql, values[whole:])

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
                # PostgreSQL's text holds every character but this one.
                if values[i] and "\0" in values[i]:
                    values[i] = values[i].replace("\0", "\ufffd")
            yield values


@lru_cache(maxsize=1024)
def upsert(name: Table, columns: tuple[str, ...], dialect: str) -> Insert:
    """Writes `columns` of rows of a state table by key, which is each row's first value, and leaves other columns."""
    table = STATE_TABLES[name]
    key = key_column(table).name
    if not columns:
        return _insert(table, (key,), dialect, f"ON CONFLICT ({key}) DO NOTHING")
    changed = ", ".join(f'"{column}" = excluded."{column}"' for column in columns)
    return _insert(table, (key, *columns), dialect, f"ON CONFLICT ({key}) DO UPDATE SET {changed}")


@lru_cache(maxsize=64)
def insert(table: sa.Table, columns: tuple[str, ...], dialect: str) -> Insert:
    """Inserts new rows, a value per column in this order."""
    return _insert(table, columns, dialect, "")


@lru_cache(maxsize=4)
def insert_points(dialect: str) -> Insert:
    """Inserts points of series, a value per column in the table's order; one that is there already stays."""
    return _insert(points, tuple(points.columns.keys()), dialect, "ON CONFLICT DO NOTHING")


@lru_cache(maxsize=4)
def upsert_progress(dialect: str) -> Insert:
    """Writes each job's latest reading: its id and the reading."""
    conflict = "ON CONFLICT (job_id) DO UPDATE SET body = excluded.body"
    return _insert(progress, ("job_id", "body"), dialect, conflict)


@lru_cache(maxsize=4)
def upsert_notes(dialect: str) -> Insert:
    """Writes notes: the name of each and its body."""
    return _insert(notes, ("name", "body"), dialect, "ON CONFLICT (name) DO UPDATE SET body = excluded.body")


def _insert(table: sa.Table, columns: tuple[str, ...], dialect: str, conflict: str) -> Insert:
    unknown = set(columns) - set(table.columns.keys())
    if unknown:
        raise ValueError(f"{table.name} has no column {', '.join(sorted(unknown))}")
    marks = ", ".join(["?" if dialect == "sqlite" else "%s"] * len(columns))
    names = ", ".join(f'"{column}"' for column in columns)
    into = f'INSERT INTO "{table.name}" ({names}) VALUES'
    # For each row of its own statement SQLite's driver lets other threads have the interpreter, and waits for its turn.
    many = f"{into} {', '.join([f'({marks})'] * MANY)} {conflict}" if dialect == "sqlite" else ""
    kinds = [table.c[column].type for column in columns]
    json = tuple(i for i, kind in enumerate(kinds) if isinstance(kind, sa.JSON))
    text = tuple(i for i, kind in enumerate(kinds) if isinstance(kind, sa.String)) if dialect != "sqlite" else ()
    return Insert(f"{into} ({marks}) {conflict}", json, text, many)
