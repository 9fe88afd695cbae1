"""The one writer, with group commit: everything that arrives while a commit is on its way shares the next one.

On SQLite statements run on the event loop, batched; only COMMIT, which waits for the disk, runs in a thread. On
PostgreSQL, where each statement waits for the network, the whole group does. A commit that fails fails everything
written after it too, because those events were made believing in it: the caller reads its memory anew from the ledger
and goes on from there.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import SQLAlchemyError

from gpuyard.domain.errors import LedgerError
from gpuyard.domain.events import Event
from gpuyard.ledger.apply import apply, hold_order
from gpuyard.ledger.faults import ledger_error
from gpuyard.ledger.store import place
from gpuyard.ledger.tables import points, progress

# Outcomes nobody waits for may wait this long for company; a commit costs more than that on most disks.
LINGER_S = 0.005

log = structlog.get_logger(__name__)
Committed = Callable[[int, Sequence[Event]], None]


@dataclass(slots=True)
class _Group:
    """What the next commit will hold."""

    events: list[Event] = field(default_factory=list[Event])
    points: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    progress: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    waiters: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])
    urgent: bool = False

    def __bool__(self) -> bool:
        return bool(self.events or self.points or self.progress or self.waiters)


class Writer:
    """Writes groups of events, points and progress.

    With `epoch` set, a group is refused with FencedError once another server leads (on PostgreSQL).

    `on_commit(first_seq, events)` hears of each committed group, `on_failure()` of one that could not be written,
    before anyone who waits for it does.
    """

    def __init__(
        self, engine: sa.Engine, on_commit: Committed | None = None, on_failure: Callable[[], None] | None = None
    ) -> None:
        self._engine = engine
        self._remote = engine.dialect.name == "postgresql"
        self._connection = engine.connect()
        self.epoch: int | None = None
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._group = _Group()
        self._wake = asyncio.Event()
        self._free = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.commits = 0

    def start(self) -> None:
        """Begin writing; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="ledger-writer")

    async def close(self) -> None:
        """Write what is waiting and stop; LedgerError when it could not be written."""
        try:
            if self._task is not None:
                await self.written()
        finally:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            self._connection.close()

    def put(self, events: Sequence[Event], *, linger: bool = False) -> None:
        """Queue `events` for the next commit, in order; with `linger` it may wait a few milliseconds for others."""
        self._group.events.extend(events)
        self._touch(linger)

    def put_points(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Queue rows of metric series; a point that is already there is left as it is."""
        self._group.points.extend(rows)
        self._touch(linger=True)

    def put_progress(self, job_id: str, body: Mapping[str, Any]) -> None:
        """Queue a job's latest reading."""
        self._group.progress[job_id] = body
        self._touch(linger=True)

    def written(self, *, linger: bool = False) -> asyncio.Future[None]:
        """Done when all that was put before this call is committed; LedgerError when it could not be."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._group.waiters.append(future)
        self._touch(linger)
        return future

    async def exclusively(self, work: Callable[[sa.Engine], object]) -> None:
        """Run `work` in a thread while no group is being written: for upkeep that writes by itself."""
        async with self._free:
            await asyncio.to_thread(work, self._engine)

    def _touch(self, linger: bool) -> None:
        self._group.urgent = self._group.urgent or not linger
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._group.urgent:
                await asyncio.sleep(LINGER_S)
            group, self._group = self._group, _Group()
            self._wake.clear()
            if group:
                async with self._free:
                    await self._commit(group)

    async def _commit(self, group: _Group) -> None:
        try:
            if self._remote:
                last = await asyncio.to_thread(self._write, group)
            else:
                last = self._execute(group)
                if self._connection.in_transaction():
                    await asyncio.to_thread(self._connection.commit)
        except (SQLAlchemyError, OSError, ValueError, TypeError, ArithmeticError, LedgerError) as error:
            # A value that no database takes is among them: whoever waits must hear of it, and the writer go on.
            self._fail(group, ledger_error(error, place(self._engine)))
            return
        self.commits += 1
        if group.events and self._on_commit:
            try:
                self._on_commit(last - len(group.events) + 1, group.events)
            except Exception:
                log.exception("a listener of commits failed")
        for waiter in group.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _write(self, group: _Group) -> int:
        if self._connection.invalidated:
            self._connection.rollback()  # SQLAlchemy's word for: now connect anew
        hold_order(self._connection, self.epoch)
        last = self._execute(group)
        self._connection.commit()
        return last

    def _execute(self, group: _Group) -> int:
        last = apply(self._connection, group.events) if group.events else 0
        if group.points:
            self._connection.execute(_insert_points, [_checked(row) for row in group.points])
        if group.progress:
            rows = [{"job_id": job_id, "body": body} for job_id, body in group.progress.items()]
            self._connection.execute(_upsert_progress, rows)
        return last

    def _fail(self, group: _Group, error: LedgerError) -> None:
        log.error("a commit failed", error=str(error), events=len(group.events))
        self._connection.rollback()
        # After a COMMIT that failed SQLAlchemy takes the transaction for ended, while SQLite may hold it open: what
        # failed would be written with the next group.
        if not self._connection.invalidated:
            self._connection.connection.rollback()
        later, self._group = self._group, _Group()
        if self._on_failure:
            self._on_failure()
        for waiter in group.waiters + later.waiters:
            if not waiter.done():
                waiter.set_exception(error)


def _checked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if not math.isfinite(row["value"]):
        raise ValueError(f"{row['name']} is {row['value']}, which is no number to keep")
    return row


# Both databases read the same words for these.
_insert_points = postgresql.insert(points).on_conflict_do_nothing()
_insert_progress = postgresql.insert(progress)
_upsert_progress = _insert_progress.on_conflict_do_update(
    index_elements=["job_id"], set_={"body": _insert_progress.excluded.body}
)
