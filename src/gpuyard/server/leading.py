"""What a server does while it leads, and while another one does.

One server leads: it schedules, writes and has the agents' links. The others stand by:
they answer reads from the database, pass on what they cannot answer (forwarding.py),
follow the journal for those who listen to their events, and keep the agent of their own
home alive. A server that may lead no longer starts over as a new program: nothing that
it believed outlives that.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from gpuyard.config.peers import Peers, write_peers
from gpuyard.controller.controller import keep_host_agent
from gpuyard.domain.errors import InvalidInputError, LedgerError
from gpuyard.ledger.listening import Announcer, journal_growth
from gpuyard.server.app_state import AppState
from gpuyard.server.backups import Backups
from gpuyard.server.election import Election
from gpuyard.server.program import keep_running
from gpuyard.server.shared_authority import (
    AUTHORITY_NOTE,
    authority_in,
    known_fingerprint,
)

if TYPE_CHECKING:
    from gpuyard.server.agents_door import AgentsDoor

# The longest a server that starts waits to learn who leads, before it answers.
_DECIDED_S = 10.0
_DOOR_AGAIN_S = 1.0
log = structlog.get_logger(__name__)


class Leading:
    """The instance's part in its cluster; alone, it simply leads."""

    def __init__(self, app_state: AppState) -> None:
        self._app_state = app_state
        self._tasks: set[asyncio.Task[None]] = set()
        self._decided = asyncio.Event()

    async def open(self) -> None:
        """Lead, or stand by."""
        app_state = self._app_state
        app_state.controller.core.listeners.append(app_state.stream.publish)
        app_state.controller.reports.on_progress = app_state.stream.publish_progress
        if app_state.election is None:
            self._make_door("")
            await app_state.controller.start()
            app_state.manager.keep_gpu_state(app_state.home.gpu_state)
            await self._notify()
            if app_state.agents_door:
                await app_state.agents_door.open()
            await self._open_tools()
            app_state.leads = True
            self._back_up()
            self._verify()
            return
        self._join(app_state.election)
        if app_state.election.leader != app_state.election.me:
            self._spawn(self._follow(), "follow-the-journal")
            self._spawn(keep_host_agent(app_state.home), "keeper-guard")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._decided.wait(), _DECIDED_S)

    def _join(self, election: Election) -> None:
        election.on_won = lambda epoch: self._spawn(self._take_over(epoch), "take-over")
        election.on_lost = self._app_state.start_over
        election.on_seen = lambda: self._seen(election)
        election.start()

    async def close(self) -> None:
        """Let the next one lead, once what is waiting is written."""
        await self._stop_tasks()
        if self._app_state.notifier:
            await self._app_state.notifier.close()
        if self._app_state.end_notices:
            await self._app_state.end_notices.close()
        if self._app_state.tools_door:
            await self._app_state.tools_door.close()
        if self._app_state.agents_door:
            await self._app_state.agents_door.close()
        await self._app_state.controller.close()
        if self._app_state.election:
            await self._app_state.election.close()

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
        app_state = self._app_state
        try:
            await self._stop_tasks()
            # Nobody else writes any more: events from here on follow directly on these.
            app_state.stream.take(await asyncio.to_thread(app_state.stream.unread))
            announcer = Announcer(app_state.controller.core.ledger.engine)
            app_state.controller.core.listeners.append(announcer.announce)
            self._spawn(announcer.run(), "announce")
            self._make_shared_door()
            await app_state.controller.start(epoch)
            app_state.manager.keep_gpu_state(app_state.home.gpu_state)
            await self._notify()
            await self._open_shared_door()
            await self._open_tools()
        except Exception as error:
            log.exception("this server was to lead and cannot")
            app_state.start_over(f"it cannot lead: {error}")
            return
        app_state.leads = True
        self._back_up()
        self._verify()
        self._decided.set()

    def _back_up(self) -> None:
        """Make backups on a schedule: who leads does."""
        app_state = self._app_state
        ledger = app_state.controller.core.ledger
        backups = Backups(app_state.home, app_state.settings.backup, ledger)
        self._spawn(backups.run(), "backups")

    def _verify(self) -> None:
        """Verify executors as the settings say: who leads does.

        It is a program of its own, because verification is a plugin that the server
        does not import.
        """
        app_state = self._app_state
        if app_state.settings.verification.watches:
            output = app_state.home.logs / "verification.log"
            words = ("verify", "watch", "--until-input-ends")
            self._spawn(keep_running(words, app_state.home, output), "verification")

    def _make_door(self, known: str) -> None:
        """Prepare to listen for the agents of machines that have joined, if they may.
        Where they no longer may, those that were started before are still known, as far
        as their key can be read. `known`: the fingerprint of the authority, if others
        have it. InvalidInputError.
        """
        app_state = self._app_state
        settings = app_state.settings.server
        listen = settings.agents_listen
        folder = app_state.home.authority
        try:
            authority = authority_in(folder, known, listens=listen is not None)
        except InvalidInputError as error:
            if listen is not None:
                raise
            log.error("no machine can join, or come back", why=str(error))
            return
        if authority is None:
            return
        if listen is None:
            app_state.controller.door.identify(authority)
            return
        # Late, as the authority.
        from gpuyard.server.agents_door import AgentsDoor

        door = AgentsDoor(listen, authority, app_state.controller, settings.agents_host)
        app_state.agents_door = door
        app_state.controller.door.open(door)

    def _make_shared_door(self) -> None:
        """As `_make_door`, of a server that shares the ledger with others."""
        try:
            self._make_door(known_fingerprint(self._app_state.queries))
        except InvalidInputError as error:
            # Nobody but this server may be left to lead: other jobs go on.
            log.error("no machine can join, or come back", why=str(error))

    async def _open_shared_door(self) -> None:
        """Open it, and tell the servers that may lead next whose it is."""
        app_state = self._app_state
        door = app_state.agents_door
        if door is None:
            return
        if not known_fingerprint(app_state.queries):
            await app_state.keep_note(AUTHORITY_NOTE, {"fingerprint": door.fingerprint})
        self._spawn(self._open_patiently(door), "open-door")

    async def _open_patiently(self, door: "AgentsDoor") -> None:
        """Open it once the port is free: a server on this host that has just stopped
        leading may still listen there.
        """
        while True:
            try:
                await door.open()
            except InvalidInputError as error:
                log.warning("machines have to wait", why=str(error))
                await asyncio.sleep(_DOOR_AGAIN_S)
            else:
                return

    async def _open_tools(self) -> None:
        """Listen for browsers that open what jobs serve, if they may."""
        app_state = self._app_state
        settings = app_state.settings.server
        if settings.tools_listen is None:
            return
        # Late: few servers have such a port.
        from gpuyard.server.tools.door import ToolsDoor
        from gpuyard.server.tools.places import ToolAddresses
        from gpuyard.server.tools.sessions import ToolSessions

        port = settings.tools_listen.rpartition(":")[2]
        door = ToolsDoor(
            settings.tools_listen,
            ToolAddresses(settings.tools_url or f"http://localhost:{port}"),
            ToolSessions(app_state.settings.sign_in.session_s),
            app_state.controller.streams,
            settings.slow_s,
        )
        try:
            await door.open()
        except InvalidInputError as error:
            # Anybody on this machine may have taken the port: jobs go on without it.
            log.error("what jobs serve cannot be opened in browsers", why=str(error))
            return
        app_state.tools_door = door

    async def _notify(self) -> None:
        """Tell webhooks of events, and of ends who is named by jobs: who leads does."""
        if self._app_state.notifier:
            await self._app_state.notifier.start()
            self._app_state.controller.core.listeners.append(
                self._app_state.notifier.on_commit
            )
        if self._app_state.end_notices:
            await self._app_state.end_notices.start()
            self._app_state.controller.core.listeners.append(
                self._app_state.end_notices.on_commit
            )

    async def _follow(self) -> None:
        """Show the events that the leader writes to those who listen here."""
        stream = self._app_state.stream
        async for _ in journal_growth(self._app_state.controller.core.ledger.engine):
            try:
                stream.take(await asyncio.to_thread(stream.unread))
            except LedgerError as error:
                log.info("the journal cannot be followed just now", error=str(error))

    def _seen(self, election: Election) -> None:
        """The roll was read: the agent of this home must know where else to dial."""
        if election.leader and election.leader != election.me:
            self._decided.set()
        urls = sorted({member.url for member in election.lease_status.reachable})
        peers = Peers(tuple(urls), self._app_state.token, self._app_state.tls)
        write_peers(self._app_state.home, peers)
