"""The one writer of the ledger, with group commit.

Everything that is added while a commit is under way shares the next commit.

On SQLite, statements run on the event loop, in slices between which other tasks run.
Only COMMIT, which waits for the disk, runs in a thread, unless recent commits took less
time than a thread costs. On PostgreSQL, where each statement waits for the network, the
whole group runs in a thread. The thread is the writer's own: however much others have
to do in theirs, no commit waits for it.

When a commit fails, everything added after it fails too, because it was computed from
state that was never stored. The caller then reads its state from the ledger again and
continues from there. When a single batch cannot be stored, only that batch is refused
and the others are committed.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from gpuyard.config.gil import shorten_gil_interval
from gpuyard.domain.errors import FencedError, LedgerError, LedgerUnreachableError
from gpuyard.domain.events import Event
from gpuyard.ledger.apply import begin_group, cursor
from gpuyard.ledger.faults import as_ledger_errors, is_busy, ledger_error, place
from gpuyard.ledger.group import (
    CommitGroup,
    CommitWaiter,
    WriteBatch,
    write,
    write_each,
)
from gpuyard.ledger.in_thread import finish_in_thread
from gpuyard.ledger.log_flush import LogFlush
from gpuyard.ledger.reserve import Reserve

# At most this many events of a commit are passed to the listener, because the listener
# blocks the event loop. Readers that want all of them read the journal.
PUBLISHED = 500
# Batches that need not be committed at once wait this long for others to share their
# commit, unless one comes that must be. On most disks a commit takes longer than that.
BATCHING_DELAY_S = 0.005
# While many come, they wait longer: each commit costs as much as the work on some jobs.
_BUSY_BATCHING_DELAY_S = 0.02
_MANY_EVENTS = 3
# A thread costs about 0.1 ms. Commits run on the event loop while all of the last few
# took less than this.
QUICK_S = 0.001
_QUICK_COMMITS = 8
_SMALL_GROUP = 1000
_RECONNECT_S = 0.5
# Another program may hold SQLite's lock for a moment (a backup tool, a shell). A group
# waits for it this long, and the event loop never does.
_BUSY_PATIENCE_S = 2.0
_BUSY_PAUSE_S = 0.02
# Kilobytes: the pages that one large commit touches stay in memory until it is written.
_CACHE = "PRAGMA cache_size=-4000"
# A server that was suspended in the middle of a group may not block others any longer.
_IDLE_IN_TRANSACTION = "SET idle_in_transaction_session_timeout = '3s'"

log = structlog.get_logger(__name__)
Committed = Callable[[int, Sequence[Event]], None]
Result = TypeVar("Result")


class Writer:
    """Writes groups of events, points, progress and notes.

    `on_commit(first_seq, events)` is called after each commit; of a large commit it
    gets only the newest events. `on_failure()` is called after each commit that could
    not be written completely, before its waiters get the error. When the database
    cannot be reached, `on_failure()` is called once it can be reached again. With
    `epoch` set (PostgreSQL), a group is refused with FencedError when another server
    leads. When the disk is full, `reserve` makes room, and the group is written again.
    """

    def __init__(
        self,
        engine: sa.Engine,
        on_commit: Committed | None = None,
        on_failure: Callable[[], None] | None = None,
        reserve: Reserve | None = None,
    ) -> None:
        self.epoch: int | None = None
        self.commits = 0
        self.quick_s = QUICK_S
        self._engine = engine
        self._remote = engine.dialect.name == "postgresql"
        driver = engine.dialect.loaded_dbapi
        # Errors that may come from the content of a single batch.
        self._refusals: tuple[type[Exception], ...] = (
            driver.DatabaseError,
            driver.InterfaceError,
            ValueError,
            TypeError,
            ArithmeticError,
            KeyError,
        )
        # Every error that a commit may raise.
        self._faults: tuple[type[Exception], ...] = (
            *self._refusals,
            driver.Error,
            SQLAlchemyError,
            OSError,
            LedgerError,
        )
        # An error of the database itself, never of a batch.
        self._breakdown: type[Exception] = driver.OperationalError
        self._connection: sa.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "ledger-writer")
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._reserve = reserve
        self._group = CommitGroup()
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._delay_s = BATCHING_DELAY_S
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._log_flush: LogFlush | None = None
        self._flushed_changes = 0
        self._fenced: FencedError | None = None
        self._commit_times: deque[float] = deque(maxlen=_QUICK_COMMITS)
        # On SQLite this writer alone numbers events, so it looks the next number up
        # only once. 0: not known.
        self._next_seq = 0

    def start(self) -> None:
        """Begin writing; needs a running loop."""
        shorten_gil_interval()
        self._task = asyncio.create_task(self._run(), name="ledger-writer")
        path = self._engine.url.database
        if not self._remote and path:
            self._log_flush = LogFlush(Path(path), self._lock, self._reserve)
            self._log_flush.start()

    async def close(self) -> None:
        """Write what is queued and stop; LedgerError when it could not be written."""
        try:
            if self._task is not None:
                await self.committed()
        finally:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            if self._log_flush is not None:
                await self._log_flush.close()
            if self._connection is not None:
                self._connection.close()
            self._thread.shutdown(wait=False)

    def add_events(self, events: Sequence[Event], *, can_wait: bool = False) -> None:
        """Queue `events`, in order, for the next commit.

        With `can_wait`, the commit may be delayed a few milliseconds to hold more.
        """
        batch = WriteBatch(events=events, task=asyncio.current_task())
        self._queue(batch, can_wait=can_wait)

    def add_points(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Queue rows of metric series; points that are stored already are kept."""
        batch = WriteBatch(points=rows, task=asyncio.current_task())
        self._queue(batch, can_wait=True)

    def set_progress(self, job_id: str, body: Mapping[str, Any]) -> None:
        """Queue a job's latest progress."""
        batch = WriteBatch(progress={job_id: body}, task=asyncio.current_task())
        self._queue(batch, can_wait=True)

    def set_note(self, name: str, body: Mapping[str, Any]) -> None:
        """Queue a note; it replaces the note of this name."""
        batch = WriteBatch(notes={name: body}, task=asyncio.current_task())
        self._queue(batch, can_wait=True)

    def committed(
        self, *, can_wait: bool = False, own_only: bool = False
    ) -> asyncio.Future[None]:
        """Done when everything queued before this call is committed; else LedgerError.

        With `own_only`, a refused batch of another task is no error. Use it only when
        the caller does not depend on what other tasks queued.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.current_task() if own_only else None
        waiter = CommitWaiter(future, len(self._group.batches), task)
        self._group.waiters.append(waiter)
        self._request_commit(can_wait=can_wait)
        return future

    async def maintain(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Run `work` between two groups, in a thread and in a transaction of its own;
        returns what it returns. LedgerError.

        No group is written meanwhile, so it must take only some milliseconds.
        """
        async with self._lock:
            done, has_written = await self._maintain_with_reserve(work)
        if self._log_flush and has_written:
            self._log_flush.note_commit()
        return done

    async def _maintain_with_reserve(
        self, work: Callable[[sa.Connection], Result]
    ) -> tuple[Result, bool]:
        while True:
            try:
                return await self._in_thread(lambda: self._maintain(work))
            except LedgerError as fault:
                if self._reserve is None or not self._reserve.give_back(fault):
                    raise

    def _maintain(self, work: Callable[[sa.Connection], Result]) -> tuple[Result, bool]:
        """What `work` returns, and whether it has written anything (SQLite)."""
        with as_ledger_errors(self._engine), self._engine.begin() as tx:
            if not self._remote:
                tx.exec_driver_sql("BEGIN IMMEDIATE")
            begin_group(tx, self.epoch)
            before = self._changes(tx)
            done = work(tx)
            return done, self._changes(tx) != before

    def _changes(self, tx: sa.Connection) -> int:
        """How many rows this connection to SQLite has changed."""
        driver: Any = tx.connection.driver_connection
        return 0 if self._remote else driver.total_changes

    def _queue(self, batch: WriteBatch, *, can_wait: bool) -> None:
        self._group.batches.append(batch)
        self._request_commit(can_wait=can_wait)

    def _request_commit(self, *, can_wait: bool) -> None:
        if not can_wait:
            self._group.urgent = True
            self._hurry.set()
        self._wake.set()

    def _take_group(self) -> CommitGroup:
        group = self._group
        self._group = CommitGroup()
        self._wake.clear()
        self._hurry.clear()
        return group

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._group.urgent:
                await self._wait_for_more()
            async with self._lock:
                await self._commit(self._take_group())

    async def _wait_for_more(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._delay_s):
                await self._hurry.wait()
        are_many = self._group.event_count >= _MANY_EVENTS
        self._delay_s = _BUSY_BATCHING_DELAY_S if are_many else BATCHING_DELAY_S

    # --- a commit ---

    async def _commit(self, group: CommitGroup) -> None:
        if self._fenced:
            group.fail(self._fenced)
            return
        refused: dict[int, LedgerError] = {}
        try:
            try:
                first_seq = await self._write_with_reserve(group)
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
        if len(refused) < len(group.batches):
            self._note_commit()
        written = [
            batch.events
            for number, batch in enumerate(group.batches)
            if number not in refused
        ]
        self._publish(first_seq, written)
        if refused:
            await self._fail_newer(next(iter(refused.values())))
        for waiter in group.waiters:
            waiter.resolve(group.batches, refused)

    async def _write_with_reserve(self, group: CommitGroup) -> int:
        """Write the group, again while the reserve can make room on a full disk."""
        while True:
            try:
                return await self._write_patiently(group)
            except self._faults as error:
                fault = ledger_error(error, place(self._engine))
                if self._reserve is None or not self._reserve.give_back(fault):
                    raise
            self._reset()

    async def _write_patiently(self, group: CommitGroup) -> int:
        """Write the group, again while another program holds SQLite's lock."""
        until = time.monotonic() + _BUSY_PATIENCE_S
        while True:
            try:
                return await self._write(group)
            except self._breakdown as error:
                if not is_busy(error) or time.monotonic() > until:
                    raise
            self._reset()
            await asyncio.sleep(_BUSY_PAUSE_S)

    async def _write(self, group: CommitGroup) -> int:
        """Write the group; returns the sequence number of its first event."""
        if self._remote:
            return await self._in_thread(self._write_at_once, group)
        tx = self._connect()
        if not self._next_seq:
            self._next_seq = begin_group(tx) + 1
        first_seq = self._next_seq
        try:
            for _ in write(tx, group.batches, first_seq):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._reset()
            raise
        if group.row_count <= _SMALL_GROUP and self._commits_are_quick():
            self._finish(tx)
        else:
            await self._in_thread(self._finish, tx)
        self._next_seq += group.event_count
        return first_seq

    def _commits_are_quick(self) -> bool:
        """Whether all of the last few commits took less than `quick_s`."""
        times = self._commit_times
        return len(times) == _QUICK_COMMITS and max(times) < self.quick_s

    def _write_at_once(self, group: CommitGroup) -> int:
        tx = self._connect()
        driver: Any = tx.connection.driver_connection
        with driver.pipeline():
            first_seq = begin_group(tx, self.epoch) + 1
            for _ in write(tx, group.batches, first_seq):
                pass
        self._finish(tx)
        return first_seq

    async def _write_each(
        self, group: CommitGroup
    ) -> tuple[int, dict[int, LedgerError]]:
        """Write the batches one by one, and leave out those that cannot be stored.

        Returns the first sequence number, and the errors by the batch's number.
        """

        def work() -> tuple[int, dict[int, Exception]]:
            tx = self._connect()
            if not self._remote:
                # Without it, each savepoint would be a transaction of its own.
                cursor(tx).execute("BEGIN")
            first_seq = begin_group(tx, self.epoch) + 1
            refused = write_each(tx, group.batches, first_seq, self._refusals)
            self._finish(tx)
            return first_seq, refused

        first_seq, refused = await self._in_thread(work)
        errors: dict[int, LedgerError] = {}
        for number, error in refused.items():
            cause = ledger_error(error, place(self._engine)).message
            what = f"{group.batches[number]} was not written: {cause}"
            log.error("refused by the ledger", what=what)
            errors[number] = LedgerError(what, "Nothing else is affected.")
        return first_seq, errors

    def _note_commit(self) -> None:
        """Let the log be flushed if the group has written anything."""
        if self._log_flush is None or self._connection is None:
            return
        changes = self._changes(self._connection)
        if changes != self._flushed_changes:
            self._flushed_changes = changes
            self._log_flush.note_commit()

    def _finish(self, tx: sa.Connection) -> None:
        began = time.perf_counter()
        tx.commit()
        self._commit_times.append(time.perf_counter() - began)

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await finish_in_thread(self._thread, work, *arguments)

    # --- failures ---

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

    def _probe(self) -> None:
        """Raise what a write would raise now."""
        tx = self._connect()
        if not self._remote:
            cursor(tx).execute("BEGIN IMMEDIATE")
            self._reset()

    def _reset(self) -> None:
        """Discard what the last group wrote without a commit."""
        connection = self._connection
        self._next_seq = 0
        if connection is None:
            return
        if self._remote:
            # The connection may be cut or in any state; the next group opens a new one.
            self._connection = None
            connection.invalidate()
            connection.close()
            return
        connection.rollback()
        # After a failed COMMIT, SQLAlchemy thinks that the transaction has ended while
        # SQLite may still hold it open. The next group would then commit it.
        connection.connection.rollback()

    async def _fail(self, group: CommitGroup, error: LedgerError) -> None:
        log.error("a commit failed", error=str(error), batches=len(group.batches))
        if isinstance(error, FencedError):
            self._fenced = error
        if isinstance(error, LedgerUnreachableError):
            group.fail(error)
            await self._wait_until_reachable(error)
            return
        await self._fail_newer(error)
        group.fail(error)

    async def _fail_newer(self, error: LedgerError) -> None:
        """Fail the batches added since: they were computed from unstored state."""
        newer = self._take_group()
        try:
            if self._on_failure:
                self._on_failure()
        except LedgerError as unreadable:
            await self._wait_until_reachable(unreadable)
        newer.fail(error)

    async def _wait_until_reachable(self, error: LedgerError) -> None:
        """Refuse everything until the database can be reached, then call `on_failure`.

        `on_failure` reads the state from the ledger again; then writing goes on.
        """
        while True:
            self._take_group().fail(error)
            await asyncio.sleep(_RECONNECT_S)
            try:
                await self._in_thread(self._probe)
                self._take_group().fail(error)
                if self._on_failure:
                    self._on_failure()
            except self._faults as fault:
                self._reset()
                error = ledger_error(fault, place(self._engine))
            else:
                log.info("the database can be reached again")
                return

    def _publish(self, first_seq: int, written: Sequence[Sequence[Event]]) -> None:
        """Pass the newest events of the batches `written` to the listener."""
        if not any(written) or self._on_commit is None:
            return
        newest: deque[Event] = deque()
        for events in reversed(written):
            room = PUBLISHED - len(newest)
            if room == 0:
                break
            newest.extendleft(reversed(events[-room:]))
        total = sum(len(events) for events in written)
        try:
            self._on_commit(first_seq + total - len(newest), list(newest))
        except Exception:
            log.exception("a listener of commits failed")
