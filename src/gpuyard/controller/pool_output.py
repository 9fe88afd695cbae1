"""Brings home what jobs have printed on nodes of pools: it lies on the node, and would
go with its machine.

It is copied as soon as an attempt has ended, to where the copies of external queues
are. `Logs` reads an ended attempt there, whether its node still lives or not.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from gpuyard.controller.core import Core
from gpuyard.controller.pool_rows import PoolRow
from gpuyard.domain.errors import JobNotFoundError, LedgerError, ProviderError
from gpuyard.domain.events import Event, Table
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.nodes import REMOVED
from gpuyard.scheduler.pools import PoolStage

LONGEST_WAIT_S = 300.0
"""For so long the machine of a node is kept, and paid, for what its jobs have
printed.
"""
PAUSE_S = 2.0
_PART = ".part"
log = structlog.get_logger(__name__)


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
        # By node: the ended attempts whose output is to come, in the order of their
        # ends, with when they ended (UTC seconds).
        self._due: dict[str, dict[str, float]] = {}
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
        read = self._core.queries.ended_on
        since = min(asked_at.values())
        try:
            rows = await asyncio.to_thread(read, list(asked_at), since)
            for row in rows:
                if not self._copy_path(row["id"]).exists():
                    self._add(row["node_id"], row["id"], row["ended_at"])
        except LedgerError as error:
            log.warning("what ended on pools cannot be read", error=str(error))
        self._unread.difference_update(asked_at)
        self._on_news()

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
                    self._note_end(change.key, values)

    def _note_place(self, attempt_id: str, node_id: str, known: set[str]) -> None:
        if node_id in known:
            self._runs_on[attempt_id] = node_id
        else:
            self._runs_on.pop(attempt_id, None)

    def _note_end(self, attempt_id: str, values: Mapping[str, Any]) -> None:
        node_id = self._runs_on.pop(attempt_id, None)
        if node_id and values.get("started_at") is not None:
            self._add(node_id, attempt_id, values["ended_at"])

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

    def _add(self, node_id: str, attempt_id: str, ended_at: float) -> None:
        self._due.setdefault(node_id, {})[attempt_id] = ended_at
        if node_id not in self._bringing:
            self._bringing.add(node_id)
            self._core.spawn(self._bring_all(node_id), "pool-output")

    async def _bring_all(self, node_id: str) -> None:
        """Bring all that is due of a node, one after the other."""
        try:
            while due := self._due.get(node_id):
                (attempt_id, ended_at) = next(iter(due.items()))
                is_here = await self._bring(node_id, attempt_id, ended_at)
                del due[attempt_id]
                if not due:
                    del self._due[node_id]
                is_removed = self._core.view.node(node_id).state == REMOVED
                if not is_here and not is_removed:
                    # Others come first, because this may be the fault of its file.
                    self._due.setdefault(node_id, {})[attempt_id] = ended_at
                    await asyncio.sleep(PAUSE_S)
        finally:
            self._bringing.discard(node_id)
            self._awaited_since.pop(node_id, None)
        self._on_news()

    async def _bring(self, node_id: str, attempt_id: str, ended_at: float) -> bool:
        """Whether all that the attempt has printed is here, or is nowhere."""
        if self._core.view.node(node_id).state != "online":
            return False
        try:
            await self._copy(node_id, attempt_id, ended_at)
        except JobNotFoundError:
            return True
        except (ProviderError, OSError, TimeoutError) as error:
            log.warning(
                "what a job has printed cannot be brought home yet",
                node=node_id,
                attempt=attempt_id,
                error=str(error),
            )
            return False
        return True

    async def _copy(self, node_id: str, attempt_id: str, ended_at: float) -> None:
        node = self._core.view.node(node_id)
        provider = self._providers.node_provider(node.provider)
        copy = self._copy_path(attempt_id)
        if provider is None or copy.exists():
            return
        pieces = provider.stream_log_pieces_of(
            node_id, attempt_id, offset=0, lines=None, follow=False
        )
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = copy.with_suffix(_PART)
        # Whoever reads a copy takes it for whole.
        with part.open("wb") as file:
            async for piece in pieces:
                if piece.offset is not None and piece.offset > file.tell():
                    # The front of a long log is gone. A line end tells where it begins.
                    file.seek(piece.offset - 1)
                    file.write(b"\n")
                file.write(piece.data)
        os.utime(part, (ended_at, ended_at))
        part.replace(copy)
