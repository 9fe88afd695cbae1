"""Brings home what jobs have printed on nodes of pools: it lies on the node, and would
go with its machine.

It is copied as soon as an attempt has ended, to where the copies of external queues
are. `Logs` reads an ended attempt there, whether its node still lives or not.
"""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from gpuyard.config.retention import before
from gpuyard.controller.core import Core
from gpuyard.controller.pool_rows import PoolRow
from gpuyard.domain.errors import JobNotFoundError, LedgerError, ProviderError
from gpuyard.domain.events import Event, Table
from gpuyard.providers.base import LogPiece
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.nodes import REMOVED
from gpuyard.scheduler.pools import PoolStage

LONGEST_WAIT_S = 300.0
"""For so long the machine of a node is kept, and paid, for what its jobs have
printed.
"""
PAUSE_S = 2.0
# One copy may take so long; a node may be slow, and it may never end.
_LONGEST_COPY_S = 600.0
# A log may be this much longer than its limit: a node looks at it now and then only.
_TIMES_LIMIT = 2
SPARE_BYTES = 64 << 20
_PART = ".part"
_PAGE = 500
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Ended:
    """An attempt that has ended, at `ended_at` (UTC seconds)."""

    id: str
    job_id: str
    ended_at: float


class PoolOutput:
    """`copy_path(attempt_id)` is where the output of an attempt is copied to.
    `on_news` is called when all that a node had is here.
    """

    def __init__(
        self,
        core: Core,
        providers: Providers,
        copy_path: Callable[[str], Path],
        on_news: Callable[[], None],
    ) -> None:
        self._core = core
        self._providers = providers
        self._copy_path = copy_path
        self._on_news = on_news
        # The node of each attempt that runs on one of a pool.
        self._runs_on: dict[str, str] = {}
        # By node: the ended attempts whose output is to come, the next one last.
        self._due: dict[str, OrderedDict[str, _Ended]] = {}
        self._bringing: set[str] = set()
        # Nodes of which the ledger is still asked what has ended there.
        self._unread: set[str] = set()
        # Since when a node waits only for this (monotonic seconds).
        self._awaited_since: dict[str, float] = {}

    def reload(self, rows: Iterable[PoolRow]) -> None:
        """Go on where an earlier server has stopped: with these nodes."""
        asked_at = {row.node_id: row.asked_at for row in rows if row.node_id}
        self._runs_on = {
            attempt.id: attempt.placements[0].node_id
            for attempt in self._core.view.attempts.values()
            if attempt.placements and attempt.placements[0].node_id in asked_at
        }
        if asked_at:
            self._unread.update(asked_at)
            self._core.spawn(self._read_ended(asked_at), "ended-on-pools")

    async def _read_ended(self, asked_at: Mapping[str, float]) -> None:
        last = ""
        try:
            while True:
                rows, lacking = await asyncio.to_thread(self._page, asked_at, last)
                for row in lacking:
                    ended = _Ended(row["id"], row["job_id"], row["ended_at"])
                    self._add(row["node_id"], ended, is_old=True)
                if len(rows) < _PAGE:
                    break
                last = rows[-1]["id"]
        except LedgerError as error:
            log.warning("what ended on pools cannot be read", error=str(error))
        self._unread.difference_update(asked_at)
        self._on_news()

    def _page(
        self, asked_at: Mapping[str, float], last: str
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Attempts that have ended on these nodes, the newest first, behind the one
        that was read `last`; and those whose output must still come. LedgerError.
        """
        made_since = min(asked_at.values())
        # What is older was deleted, or would be at once.
        kept_days = self._core.settings.retention.logs_days
        ended_since = before(kept_days, self._core.clock()) or 0.0
        rows = self._core.queries.ended_on(
            list(asked_at), made_since, ended_since, last, _PAGE
        )
        lacking = [
            row
            for row in rows
            if row["node_id"] in asked_at and not self._copy_path(row["id"]).exists()
        ]
        return rows, lacking

    def heard(self, events: Sequence[Event], node_ids: Callable[[], set[str]]) -> None:
        """Note what runs on the nodes of pools, and bring home what has ended there."""
        known: set[str] | None = None
        for event in events:
            for change in event.changes:
                values = change.values
                if change.table is not Table.ATTEMPTS or not values:
                    continue
                if places := values.get("placements"):
                    known = node_ids() if known is None else known
                    self._note_place(change.key, places[0]["node_id"], known)
                if values.get("ended_at") is not None:
                    self._note_end(change.key, event.job_id or "", values)

    def _note_place(self, attempt_id: str, node_id: str, known: set[str]) -> None:
        if node_id in known:
            self._runs_on[attempt_id] = node_id
        else:
            self._runs_on.pop(attempt_id, None)

    def _note_end(
        self, attempt_id: str, job_id: str, values: Mapping[str, Any]
    ) -> None:
        node_id = self._runs_on.pop(attempt_id, None)
        if node_id and values.get("started_at") is not None:
            self._add(node_id, _Ended(attempt_id, job_id, values["ended_at"]))

    def is_awaited(self, row: PoolRow) -> bool:
        """Whether the machine of a node that is drained and does nothing more is still
        needed, for what its jobs have printed.
        """
        node_id = row.node_id
        is_due = node_id in self._due or node_id in self._unread
        if not node_id or not is_due or row.state is not PoolStage.DRAINING:
            return False
        since = self._awaited_since.setdefault(node_id, time.monotonic())
        if time.monotonic() - since < LONGEST_WAIT_S:
            return True
        lost = list(self._due.get(node_id, ()))
        log.warning("what jobs have printed is lost", node=node_id, attempts=lost)
        return False

    # --- bringing it home ---

    def _add(self, node_id: str, ended: _Ended, *, is_old: bool = False) -> None:
        """`is_old`: all others of the node come before it."""
        due = self._due.setdefault(node_id, OrderedDict())
        due[ended.id] = ended
        if is_old:
            due.move_to_end(ended.id, last=False)
        if node_id not in self._bringing:
            self._bringing.add(node_id)
            self._core.spawn(self._bring_all(node_id), "pool-output")

    async def _bring_all(self, node_id: str) -> None:
        """Bring all that is due of a node, one after the other, the newest first."""
        try:
            while due := self._due.get(node_id):
                ended = next(reversed(due.values()))
                is_here = await self._bring(node_id, ended)
                del due[ended.id]
                if not due:
                    del self._due[node_id]
                is_removed = self._core.view.node(node_id).state == REMOVED
                if not is_here and not is_removed:
                    # Others come first, because this may be the fault of its file.
                    self._add(node_id, ended, is_old=True)
                    await asyncio.sleep(PAUSE_S)
        finally:
            self._bringing.discard(node_id)
            self._awaited_since.pop(node_id, None)
        self._on_news()

    async def _bring(self, node_id: str, ended: _Ended) -> bool:
        """Whether all that the attempt has printed is here, or is nowhere."""
        if self._core.view.node(node_id).state != "online":
            return False
        problem = "what a job has printed cannot be brought home yet"
        try:
            async with asyncio.timeout(_LONGEST_COPY_S):
                await self._copy(node_id, ended)
        except JobNotFoundError:
            return True
        except (ProviderError, OSError) as error:
            log.warning(problem, node=node_id, attempt=ended.id, error=repr(error))
            return False
        except Exception:  # what a node sends is anything, and others are to come
            log.exception(problem, node=node_id, attempt=ended.id)
            return False
        return True

    async def _copy(self, node_id: str, ended: _Ended) -> None:
        node = self._core.view.node(node_id)
        provider = self._providers.node_provider(node.provider)
        copy = self._copy_path(ended.id)
        if provider is None or copy.exists():
            return
        pieces = provider.stream_log_pieces_of(
            node_id, ended.id, offset=0, lines=None, follow=False
        )
        most = await asyncio.to_thread(self._most_bytes, ended.job_id)
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = copy.with_suffix(_PART)
        try:
            if await is_written(part, pieces, most):
                os.utime(part, (ended.ended_at, ended.ended_at))
                # Whoever reads a copy takes it for whole.
                part.replace(copy)
            else:
                problem = "a node sends more than a job may have printed"
                log.warning(problem, node=node_id, attempt=ended.id, most=most)
        finally:
            part.unlink(missing_ok=True)

    def _most_bytes(self, job_id: str) -> int:
        """How long what an attempt of the job has printed may be. LedgerError."""
        body = self._core.queries.specs([job_id]).get(job_id, {})
        limit_gb = body.get("log_limit_gb") or self._core.settings.node.max_log_gb
        return int(limit_gb * _TIMES_LIMIT * (1 << 30)) + SPARE_BYTES


async def is_written(part: Path, pieces: AsyncIterator[LogPiece], most: int) -> bool:
    """Write the pieces to the file; False if they are longer than `most` bytes."""
    end = 0
    with part.open("wb") as file:
        async for offset, data in pieces:
            begin = end if offset is None else offset
            # A part of a long log is gone. A line end tells where it goes on. What a
            # node says of places is not believed, so nothing is left free for it.
            gap = b"\n" if begin > end and file.tell() else b""
            end = begin + len(data)
            if file.tell() + len(data) > most:
                return False
            await asyncio.to_thread(file.write, gap + data)
    return True
