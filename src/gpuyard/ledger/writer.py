"""The one writer, with group commit: everything that arrives while a commit is on its way shares the next one.

On SQLite statements run on the event loop, in slices between which others get their turn; only COMMIT, which waits for
the disk, runs in a thread, unless the disk has lately been quicker than a thread is. On PostgreSQL, where each
statement waits for the network, the whole group runs in a thread.

A commit that fails fails everything written after it too, because those events were made believing in it: the caller
reads its memory anew from the ledger and goes on from there. One that fails for what a single put holds is made again
without that put.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from gpuyard.config.turns import share_the_interpreter
from gpuyard.domain.errors import FencedError, LedgerError, LedgerUnreachableError
from gpuyard.domain.events import Event
from gpuyard.ledger.apply import begin_group, cursor
from gpuyard.ledger.faults import ledger_error, place
from gpuyard.ledger.group import SLICE, Group, Put, Waiter, write, write_each

# Of a large commit no more events are told, since telling holds the loop; who wants the others reads the journal.
PUBLISHED = 500
# Outcomes nobody waits for may wait this long for company; a commit costs more than that on most disks.
LINGER_S = 0.005
# A thread costs some 0.1 ms. A commit is made on the loop when the last few took less than this.
QUICK_S, _QUICK_COMMITS, _SMALL = 0.001, 8, 5 * SLICE
_RECONNECT_S = 0.5
# Kilobytes: what one large commit touches stays in memory until it is written.
_CACHE = "PRAGMA cache_size=-4000"
# A server that was stopped in the middle of a group may not keep others out for longer.
_IDLE_IN_TRANSACTION = "SET idle_in_transaction_session_timeout = '3s'"

log = structlog.get_logger(__name__)
Committed = Callable[[int, Sequence[Event]], None]
Result = TypeVar("Result")


class Writer:
    """Writes groups of events, points, progress and notes.

    `on_commit(first_seq, events)` hears of each committed group, of a large one only its newest events; `on_failure()`
    of each of which not everything could be written, before anyone who waits for it does, but for a database that
    cannot be reached: then it hears when it can be again. With `epoch` set, a group is refused with FencedError once
    another server leads (on PostgreSQL).
    """

    def __init__(
        self, engine: sa.Engine, on_commit: Committed | None = None, on_failure: Callable[[], None] | None = None
    ) -> None:
        self.epoch: int | None = None
        self.commits = 0
        self.quick_s = QUICK_S
        self._engine = engine
        self._remote = engine.dialect.name == "postgresql"
        driver = engine.dialect.loaded_dbapi
        # What one put may hold that no database takes, and what else may go wrong.
        self._refusals: tuple[type[Exception], ...] = (
            driver.DatabaseError, driver.InterfaceError, ValueError, TypeError, ArithmeticError, KeyError,
        )  # fmt: skip
        self._faults: tuple[type[Exception], ...] = (
            *self._refusals, driver.Error, SQLAlchemyError, OSError, LedgerError,
        )  # fmt: skip
        self._breakdown: type[Exception] = driver.OperationalError
        self._connection: sa.Connection | None = None
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._group = Group()
        self._wake = asyncio.Event()
        self._free = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._fenced: FencedError | None = None
        self._took: deque[float] = deque(maxlen=_QUICK_COMMITS)
        # On SQLite nobody else numbers events, so the next number is known after the first group.
        self._next_seq = 0

    def start(self) -> None:
        """Begin writing; needs a running loop."""
        share_the_interpreter()
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
            if self._connection is not None:
                self._connection.close()

    def put(self, events: Sequence[Event], *, linger: bool = False) -> None:
        """Queue `events` for the next commit, in order; with `linger` it may wait a few milliseconds for others."""
        self._queue(Put(events=events, by=asyncio.current_task()), linger)

    def put_points(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Queue rows of metric series; a point that is already there is left as it is."""
        self._queue(Put(points=rows, by=asyncio.current_task()), linger=True)

    def put_progress(self, job_id: str, body: Mapping[str, Any]) -> None:
        """Queue a job's latest reading."""
        self._queue(Put(progress={job_id: body}, by=asyncio.current_task()), linger=True)

    def put_note(self, name: str, body: Mapping[str, Any]) -> None:
        """Queue a note, over the one of this name."""
        self._queue(Put(notes={name: body}, by=asyncio.current_task()), linger=True)

    def written(self, *, linger: bool = False, mine: bool = False) -> asyncio.Future[None]:
        """Done when all that was put before this call is committed; LedgerError when it could not be.

        With `mine`, what others put does not count when it alone was refused: for one who only answers for what this
        very task put, and does nothing on the strength of what others did.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        by = asyncio.current_task() if mine else None
        self._group.waiters.append(Waiter(future, len(self._group.puts), by))
        self._touch(linger)
        return future

    async def exclusively(self, work: Callable[[sa.Engine], object]) -> None:
        """Run `work` in a thread while no group is being written: for upkeep that writes by itself."""
        async with self._free:
            await asyncio.to_thread(work, self._engine)

    def _queue(self, put: Put, linger: bool) -> None:
        self._group.puts.append(put)
        self._touch(linger)

    def _touch(self, linger: bool) -> None:
        self._group.urgent = self._group.urgent or not linger
        self._wake.set()

    def _take(self) -> Group:
        group, self._group = self._group, Group()
        self._wake.clear()
        return group

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._group.urgent:
                await asyncio.sleep(LINGER_S)
            async with self._free:
                await self._commit(self._take())

    # --- a commit ---

    async def _commit(self, group: Group) -> None:
        if self._fenced:
            group.fail(self._fenced)
            return
        refused: dict[int, LedgerError] = {}
        try:
            try:
                first_seq = await self._write(group)
            except self._refusals as error:
                if isinstance(error, self._breakdown):
                    raise
                self._reset()
                first_seq, refused = await self._write_each(group)
        except self._faults as error:
            self._reset()
            await self._fail(group, ledger_error(error, place(self._engine)))
            return
        self.commits += 1
        self._tell(first_seq, [put.events for i, put in enumerate(group.puts) if i not in refused])
        if refused:
            await self._forget_later(next(iter(refused.values())))
        for waiter in group.waiters:
            waiter.answer(group.puts, refused)

    async def _write(self, group: Group) -> int:
        """Write the group; the sequence number of its first event."""
        if self._remote:
            return await _in_thread(self._write_at_once, group)
        tx = self._connect()
        first_seq = self._next_seq = self._next_seq or begin_group(tx) + 1
        try:
            for _ in write(tx, group.puts, first_seq):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._reset()
            raise
        size = sum(len(put.events) + len(put.points) for put in group.puts)
        if size <= _SMALL and len(self._took) == _QUICK_COMMITS and max(self._took) < self.quick_s:
            self._finish(tx)
        else:
            await _in_thread(self._finish, tx)
        self._next_seq += sum(len(put.events) for put in group.puts)
        return first_seq

    def _write_at_once(self, group: Group) -> int:
        tx = self._connect()
        driver: Any = tx.connection.driver_connection
        with driver.pipeline():
            first_seq = begin_group(tx, self.epoch) + 1
            for _ in write(tx, group.puts, first_seq):
                pass
        self._finish(tx)
        return first_seq

    async def _write_each(self, group: Group) -> tuple[int, dict[int, LedgerError]]:
        """Write all but the puts that hold what cannot be stored; these come back as errors by their number."""

        def work() -> tuple[int, dict[int, Exception]]:
            tx = self._connect()
            if not self._remote:
                cursor(tx).execute("BEGIN")  # else a savepoint would be a transaction of its own
            first_seq = begin_group(tx, self.epoch) + 1
            refused = write_each(tx, group.puts, first_seq, self._refusals)
            self._finish(tx)
            return first_seq, refused

        first_seq, refused = await _in_thread(work)
        errors: dict[int, LedgerError] = {}
        for number, error in refused.items():
            said = ledger_error(error, place(self._engine))
            what = f"{group.puts[number]} was not written: {said.message}"
            log.error("refused by the ledger", what=what)
            errors[number] = LedgerError(what, "Nothing else is affected.")
        return first_seq, errors

    def _finish(self, tx: sa.Connection) -> None:
        began = time.perf_counter()
        tx.commit()
        self._took.append(time.perf_counter() - began)

    # --- when it goes wrong ---

    def _connect(self) -> sa.Connection:
        """The writer's own connection, with a transaction begun."""
        if self._connection is None:
            self._connection = self._engine.connect()
            if self._remote:
                self._connection.exec_driver_sql(_IDLE_IN_TRANSACTION)
                self._connection.commit()
            else:
                cursor(self._connection).execute(_CACHE)
        if not self._connection.in_transaction():
            self._connection.begin()
        return self._connection

    def _reset(self) -> None:
        """Leave nothing of the last group behind."""
        connection, self._next_seq = self._connection, 0
        if connection is None:
            return
        if self._remote:
            # The next group gets a new one; this one may be cut, or in the middle of anything.
            self._connection = None
            connection.invalidate()
            connection.close()
            return
        connection.rollback()
        # After a COMMIT that failed SQLAlchemy takes the transaction for ended, while SQLite may hold it open: what
        # failed would be written with the next group.
        connection.connection.rollback()

    async def _fail(self, group: Group, error: LedgerError) -> None:
        log.error("a commit failed", error=str(error), puts=len(group.puts))
        if isinstance(error, FencedError):
            self._fenced = error
        if isinstance(error, LedgerUnreachableError):
            group.fail(error)
            await self._until_reachable(error)
            return
        await self._forget_later(error)
        group.fail(error)

    async def _forget_later(self, error: LedgerError) -> None:
        """What was put since the group that failed was made believing in it."""
        later = self._take()
        try:
            if self._on_failure:
                self._on_failure()
        except LedgerError as unreadable:
            await self._until_reachable(unreadable)
        later.fail(error)

    async def _until_reachable(self, error: LedgerError) -> None:
        """Refuse everything until the database can be reached again; then memory is read anew, and writing goes on."""
        while True:
            self._take().fail(error)
            await asyncio.sleep(_RECONNECT_S)
            try:
                await asyncio.to_thread(self._connect)
                self._take().fail(error)
                if self._on_failure:
                    self._on_failure()
            except self._faults as fault:
                self._reset()
                error = ledger_error(fault, place(self._engine))
            else:
                log.info("the database can be reached again")
                return

    def _tell(self, first_seq: int, written: Sequence[Sequence[Event]]) -> None:
        if not any(written) or self._on_commit is None:
            return
        newest: deque[Event] = deque()
        for events in reversed(written):
            newest.extendleft(reversed(events[-(PUBLISHED - len(newest)) :] if len(newest) < PUBLISHED else ()))
        try:
            self._on_commit(first_seq + sum(map(len, written)) - len(newest), list(newest))
        except Exception:
            log.exception("a listener of commits failed")


async def _in_thread(work: Callable[..., Result], *arguments: Any) -> Result:
    """Run `work` in a thread; one who is cancelled waits for its end: nothing may close a connection under it."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise
