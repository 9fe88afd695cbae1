"""What a server does while it leads, and while another one does.

One server leads: it schedules, writes and has the agents' links. The others stand by: they answer reads from the
database, pass on what they cannot answer (forwarding.py), follow the journal for those who listen to their events, and
keep the agent of their own home alive. A server that may lead no longer starts over as a new program: nothing that it
believed outlives that.
"""

import asyncio
import json
import os
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import structlog

from gpuyard.controller.controller import keep_local_node
from gpuyard.domain.errors import LedgerError
from gpuyard.ledger.listening import Announcer, growth
from gpuyard.server.election import Election
from gpuyard.server.yard import Yard

# The longest a server that starts waits to learn who leads, before it answers.
_DECIDED_S = 10.0
log = structlog.get_logger(__name__)


class Leading:
    """The yard's part in its cluster; alone, it simply leads."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._tasks: set[asyncio.Task[None]] = set()
        self._decided = asyncio.Event()

    async def open(self) -> None:
        """Lead, or stand by."""
        yard = self._yard
        yard.controller.core.listeners.append(yard.stream.publish)
        yard.controller.reports.on_progress = yard.stream.publish_progress
        if yard.election is None:
            await yard.controller.start()
            yard.controller.keep_gpu_state(yard.home.gpu_state)
            await self._notify()
            yard.leads = True
            return
        self._join(yard.election)
        if yard.election.leader != yard.election.me:
            self._spawn(self._follow(), "follow-the-journal")
            self._spawn(keep_local_node(yard.home), "keeper-guard")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._decided.wait(), _DECIDED_S)

    def _join(self, election: Election) -> None:
        election.on_won = lambda epoch: self._spawn(self._take_over(epoch), "take-over")
        election.on_lost = self._yard.start_over
        election.on_seen = lambda: self._seen(election)
        election.start()

    async def close(self) -> None:
        """Let the next one lead, once what is waiting is written."""
        await self._stop_tasks()
        if self._yard.notifier:
            await self._yard.notifier.close()
        await self._yard.controller.close()
        if self._yard.election:
            await self._yard.election.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop_tasks(self) -> None:
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _take_over(self, epoch: int) -> None:
        yard = self._yard
        try:
            await self._stop_tasks()
            # Nobody else writes any more: events from here on follow directly on these.
            yard.stream.take(await asyncio.to_thread(yard.stream.unread))
            announcer = Announcer(yard.controller.core.ledger.engine)
            yard.controller.core.listeners.append(announcer.announce)
            self._spawn(announcer.run(), "announce")
            await yard.controller.start(epoch)
            yard.controller.keep_gpu_state(yard.home.gpu_state)
            await self._notify()
        except Exception as error:
            log.exception("this server was to lead and cannot")
            yard.start_over(f"it cannot lead: {error}")
            return
        yard.leads = True
        self._decided.set()

    async def _notify(self) -> None:
        """Tell webhooks of events: who leads does."""
        if self._yard.notifier:
            await self._yard.notifier.start()
            self._yard.controller.core.listeners.append(self._yard.notifier.hear)

    async def _follow(self) -> None:
        """Show the events that the leader writes to those who listen here."""
        stream = self._yard.stream
        async for _ in growth(self._yard.controller.core.ledger.engine):
            try:
                stream.take(await asyncio.to_thread(stream.unread))
            except LedgerError as error:
                log.info("the journal cannot be followed just now", error=str(error))

    def _seen(self, election: Election) -> None:
        """The roll was read: the agent of this home must know where else to dial."""
        if election.leader and election.leader != election.me:
            self._decided.set()
        urls = sorted(member.url for member in election.standing.members)
        body = json.dumps({"urls": urls, "token": self._yard.token})
        path = self._yard.home.peers
        with suppress(OSError):
            if path.exists() and path.read_text() == body:
                return
            draft = path.with_suffix(".new")
            draft.unlink(missing_ok=True)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(body)
            draft.rename(path)
