"""Writes what clients have found and left, and removes the oldest of it.

It is outside the journal: nothing that gpuyard decides follows from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from gpuyard.ledger.side_tables import results


@dataclass(frozen=True, slots=True)
class ResultLimits:
    """How many results of a kind are kept, and of how many the file: the newest."""

    results: int
    files: int


def keep(tx: sa.Connection, row: Mapping[str, Any], limits: ResultLimits) -> None:
    """Write a row in place of the one with its kind and id. Ids sort by age."""
    kind = row["kind"]
    is_same = sa.and_(results.c.kind == kind, results.c.id == row["id"])
    tx.execute(sa.delete(results).where(is_same))
    tx.execute(sa.insert(results).values(**row))
    of_kind = results.c.kind == kind
    last = _last_kept(tx, of_kind, limits.results)
    if last is not None:
        tx.execute(sa.delete(results).where(of_kind, results.c.id < last))
    has_file = sa.and_(of_kind, results.c.file.is_not(None))
    last = _last_kept(tx, has_file, limits.files)
    if last is not None:
        too_old = sa.and_(has_file, results.c.id < last)
        tx.execute(sa.update(results).where(too_old).values(file=None))


def _last_kept(
    tx: sa.Connection, which: sa.ColumnElement[bool], most: int
) -> str | None:
    """The id of the oldest row that is kept; None if all are."""
    by_age = sa.select(results.c.id).where(which).order_by(results.c.id.desc())
    return tx.execute(by_age.offset(most - 1).limit(1)).scalar()
