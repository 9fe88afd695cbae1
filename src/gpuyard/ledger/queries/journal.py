"""Reading the journal, notes and the epoch."""

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from gpuyard.ledger.faults import ledger_error, patiently, place
from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.side_tables import LEASE, lease, notes
from gpuyard.ledger.tables import events, jobs


class JournalQueries(LedgerReader):
    """Reads of the journal and of notes; counts epochs."""

    def events_after(
        self, seq: int, limit: int, job_id: str | None = None
    ) -> list[Row]:
        """Journal rows after `seq`, in order."""
        statement = (
            sa.select(events)
            .where(events.c.seq > seq)
            .order_by(events.c.seq)
            .limit(limit)
        )
        if job_id:
            statement = statement.where(events.c.job_id == job_id)
        return self._rows(statement)

    def event(self, seq: int) -> Row | None:
        """The journal row of this number."""
        return self._row(sa.select(events).where(events.c.seq == seq))

    def newest_events(
        self, limit: int, job_id: str | None = None, since: float | None = None
    ) -> list[Row]:
        """The newest journal rows, in order; none before `since` (UTC seconds)."""
        statement = sa.select(events).order_by(events.c.seq.desc()).limit(limit)
        if job_id:
            statement = statement.where(events.c.job_id == job_id)
        if since is not None:
            statement = statement.where(events.c.at >= since)
        return self._rows(statement)[::-1]

    def events_of(self, kinds: Iterable[str], seq: int, limit: int) -> list[Row]:
        """Journal rows of these kinds after `seq`, in order, without their changes."""
        columns = (
            events.c.seq,
            events.c.at,
            events.c.kind,
            events.c.job_id,
            events.c.info,
        )
        wanted = sa.select(*columns).where(
            events.c.seq > seq, events.c.kind.in_(list(kinds))
        )
        return self._rows(wanted.order_by(events.c.seq).limit(limit))

    def job_ends(
        self, kinds: Iterable[str], seq: int, until: int
    ) -> list[tuple[float, str, str | None]]:
        """When jobs have ended (UTC seconds), by which kind of event, and of which
        project they are: the events of these kinds after `seq`, up to `until`.
        """
        ends = (
            sa.select(events.c.at, events.c.kind, jobs.c.project)
            .join(jobs, jobs.c.id == events.c.job_id)
            .where(events.c.seq > seq, events.c.seq <= until)
            .where(events.c.kind.in_(list(kinds)))
        )
        return [(row["at"], row["kind"], row["project"]) for row in self._rows(ends)]

    def seq_before(self, at: float) -> int:
        """A number such that what happened at `at` (UTC seconds) or later has a greater
        one. It looks at few rows, for the journal is in the order of time.
        """
        low = self.first_seq() - 1
        high = self.last_seq()
        while low < high:
            middle = (low + high + 1) // 2
            row = self._row(
                sa.select(events.c.seq, events.c.at)
                .where(events.c.seq >= middle)
                .order_by(events.c.seq)
                .limit(1)
            )
            if row is None or row["at"] >= at:
                high = middle - 1
            else:
                low = row["seq"]
        return low

    def first_seq(self) -> int:
        """The first sequence number that was not pruned; 0 for an empty journal."""
        row = self._row(sa.select(sa.func.min(events.c.seq).label("seq")))
        return int(row["seq"] or 0) if row else 0

    def last_seq(self) -> int:
        """The journal's last sequence number, 0 when it is empty."""
        row = self._row(sa.select(sa.func.max(events.c.seq).label("seq")))
        return int(row["seq"] or 0) if row else 0

    def journal_length(self) -> int:
        """How many events the journal spans."""
        # Two subqueries: SQLite would scan every row for a minimum and a maximum in one
        # query.
        ends = [
            sa.select(end(events.c.seq)).scalar_subquery()
            for end in (sa.func.min, sa.func.max)
        ]
        row = self._row(sa.select(ends[0].label("first"), ends[1].label("last")))
        return row["last"] - row["first"] + 1 if row and row["last"] else 0

    def note(self, name: str) -> Row:
        """The note of this name, empty when there is none."""
        row = self._row(sa.select(notes.c.body).where(notes.c.name == name))
        return row["body"] if row else {}

    def next_epoch(self) -> int:
        """Start a new epoch and return it: one per server that ever wrote this ledger.

        Call it before the writer starts.
        """
        counted = (
            sa.update(lease)
            .where(lease.c.name == LEASE)
            .values(epoch=lease.c.epoch + 1)
        )

        def count() -> int:
            with self._engine.begin() as connection:
                found = connection.execute(counted.returning(lease.c.epoch))
                return int(found.scalar_one())

        try:
            return patiently(count)
        except DBAPIError as error:
            raise ledger_error(error, place(self._engine)) from error
