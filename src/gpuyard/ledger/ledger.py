"""The ledger as the rest of gpuyard holds it: opened, read through `queries`, written
through a `Writer`.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa

from gpuyard.domain.contents import ContentKind
from gpuyard.ledger.faults import as_ledger_errors
from gpuyard.ledger.prune import Pruner
from gpuyard.ledger.queries import Queries
from gpuyard.ledger.reserve import Reserve
from gpuyard.ledger.slices import in_slices
from gpuyard.ledger.store import open_engine
from gpuyard.ledger.writer import Committed, Writer

if TYPE_CHECKING:
    from gpuyard.ledger.contents import LedgerContents

T = TypeVar("T")


class Ledger:
    """An open ledger, in SQLite or PostgreSQL.

    `reserve`: what keeps room for it on its disk, if anything does.
    """

    def __init__(self, engine: sa.Engine, reserve: Reserve | None = None) -> None:
        self.engine = engine
        self.reserve = reserve
        self.queries = Queries(engine)

    @classmethod
    def open(cls, where: Path | str, reserve: Reserve | None = None) -> "Ledger":
        """Open the ledger at `where`, the path of a SQLite file or the URL of a
        PostgreSQL database.

        It is created if there is none, and migrated to this version's schema;
        LedgerError when it cannot be used.
        """
        if reserve:
            reserve.make_room()
        return cls(open_engine(where), reserve)

    @property
    def shared(self) -> bool:
        """True when several servers may have it open; then the lease decides which of
        them writes.
        """
        return self.engine.dialect.name == "postgresql"

    def writer(
        self,
        on_commit: Committed | None = None,
        on_failure: Callable[[], None] | None = None,
    ) -> Writer:
        """Its one writer."""
        return Writer(self.engine, on_commit, on_failure, self.reserve)

    def contents(
        self, kind: ContentKind, clock: Callable[[], float] = time.time
    ) -> "LedgerContents":
        """What jobs take along, of one kind; only where the ledger is `shared`."""
        # Late: it needs SQLAlchemy's dialect of PostgreSQL, which a file does not.
        from gpuyard.ledger.contents import LedgerContents

        return LedgerContents(self.engine, kind, clock)

    def read(self, work: Callable[..., T], *arguments: object) -> T:
        """What `work` reads on a connection of its own. LedgerError."""
        with as_ledger_errors(self.engine), self.engine.connect() as connection:
            return work(connection, *arguments)

    async def prune(
        self, writer: Writer, keep: int, before: float | None = None
    ) -> int:
        """Keep the newest `keep` events of the journal, and of these those since
        `before`; returns how many were pruned. LedgerError.

        It writes in small slices, between which commits go on.
        """
        return await in_slices(writer, Pruner(keep, before).run_slice)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
