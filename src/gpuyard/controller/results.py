"""What clients have found and left for others: verdicts of checks, and rankings of
studies. Only the newest are kept.
"""

import zlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from gpuyard.controller.core import Core
from gpuyard.ledger import results
from gpuyard.ledger.queries import Row
from gpuyard.ledger.results import ResultLimits


class ResultKind(StrEnum):
    """What somebody has found."""

    VERIFICATION = "verification"
    STUDY = "study"


LIMITS: Mapping[ResultKind, ResultLimits] = {
    ResultKind.VERIFICATION: ResultLimits(results=10_000, files=200),
    ResultKind.STUDY: ResultLimits(results=500, files=500),
}


class KeptResults:
    """Keeps results, and reads them."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def keep(
        self,
        kind: ResultKind,
        result_id: str,
        body: Mapping[str, Any],
        *,
        about: str,
        owner: str | None,
        project: str | None = None,
        file: str | None = None,
    ) -> Row:
        """Keep a result in place of that with its id; the row. `about`: the executor,
        or the study.
        """
        packed = zlib.compress(file.encode()) if file is not None else None
        row = {
            "kind": kind.value,
            "id": result_id,
            "about": about,
            "project": project,
            "owner": owner,
            "recorded_at": self._core.clock(),
            "body": dict(body),
        }
        limits = LIMITS[kind]
        await self._core.writer.maintain(
            lambda tx: results.keep(tx, {**row, "file": packed}, limits)
        )
        return {**row, "has_file": packed is not None}

    def newest(
        self,
        kind: ResultKind,
        limit: int,
        cursor: str | None = None,
        *,
        about: str | None = None,
        seen: Callable[[Row], bool] = lambda _: True,
    ) -> tuple[list[Row], str | None]:
        """A page of the newest results that are `seen`, newest first, and the cursor of
        the next page. Blocks on the ledger.
        """
        read = self._core.queries.results
        rows = read(kind.value, limit, cursor, about)
        after = rows[-1]["id"] if len(rows) == limit else None
        return [row for row in rows if seen(row)], after

    def find(self, kind: ResultKind, result_id: str) -> Row | None:
        """One result."""
        return self._core.queries.result(kind.value, result_id)

    def file(self, kind: ResultKind, result_id: str) -> str | None:
        """The file of a result; None if the server has none (any more)."""
        packed = self._core.queries.result_file(kind.value, result_id)
        return None if packed is None else zlib.decompress(packed).decode()
