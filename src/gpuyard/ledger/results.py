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
    result_id = results.c.id
    of_kind = results.c.kind == row["kind"]
    tx.execute(sa.delete(results).where(of_kind, result_id == row["id"]))
    tx.execute(sa.insert(results).values(**row))
    oldest = _last_kept(tx, of_kind, limits.results)
    if oldest is not None:
        tx.execute(sa.delete(results).where(of_kind, result_id < oldest))
    with_file = sa.and_(of_kind, results.c.file.is_not(None))
    oldest = _last_kept(tx, with_file, limits.files)
    if oldest is not None:
        outdated = sa.update(results).where(with_file, result_id < oldest)
        tx.execute(outdated.values(file=None))


def _last_kept(
    tx: sa.Connection, which: sa.ColumnElement[bool], most: int
) -> str | None:
    """The id of the oldest row that is kept; None if all are."""
    by_age = sa.select(results.c.id).where(which).order_by(results.c.id.desc())
    return tx.execute(by_age.offset(most - 1).limit(1)).scalar()
