"""The agent: runs attempts on this host for the server that it connects to. The
attempts survive a restart of the server, of the agent and of the link between them.

`python -m gpuyard.node.agent --home HOME` is started and restarted by the keeper. It
exits with 0 when the server tells it to leave.
"""

from gpuyard.config.private_environment import protect

if __name__ == "__main__":
    # Before all other imports, which take a while.
    protect()

import argparse
import asyncio
import gc
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from gpuyard import __version__
from gpuyard.config.gil import shorten_gil_interval
from gpuyard.config.locks import is_locked
from gpuyard.config.logs import configure_logging
from gpuyard.config.paths import Home
from gpuyard.config.settings import NodeSettings, Settings, load_settings
from gpuyard.domain import wire, wire_frames
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.reasons import Reason
from gpuyard.domain.separation import Separation
from gpuyard.node.agent_files import (
    RefusalNote,
    lock_agent,
)
from gpuyard.node.attempts import AttemptParts, NodeAttempts
from gpuyard.node.disk_watch import DiskWatch, JobFiles, running_files
from gpuyard.node.gpus import GpuWatch, discovery_of
from gpuyard.node.health import GpuHealth
from gpuyard.node.job_supplies import JobSupplies
from gpuyard.node.journal import AttemptJournal, own_keeper
from gpuyard.node.launcher import GroupPool, remove_empty
from gpuyard.node.link import (
    FIRST_PAUSE_S,
    WELCOME_S,
    Heartbeat,
    ServerAddress,
    longer_pause_s,
    open_link,
    read_message,
    server_addresses,
)
from gpuyard.node.logs import LogSender, LogWatch
from gpuyard.node.memory_reserve import default_memory_gb
from gpuyard.node.outbox import Outbox
from gpuyard.node.prefetch import PrefetchQueue
from gpuyard.node.separation import JobAccounts
from gpuyard.node.server_contact import ServerContact
from gpuyard.node.spot_watch import SpotWatch
from gpuyard.node.stream_door import StreamDoor
from gpuyard.node.sweeping import sweep_old_output
from gpuyard.node.this_node import ThisNode
from gpuyard.node.watch import AgentContext
from gpuyard.node.worker_door import worker_door
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.dataset_store import DatasetStores
from gpuyard.storage.place import open_store

# A machine that was removed stays so, and need not ask often.
_REMOVED_PAUSE_S = 60.0
log = structlog.get_logger(__name__)


class Agent:
    """One node: its attempts, its GPUs and its link to a server."""

    def __init__(
        self,
        home: Home,
        settings: NodeSettings,
        blobs: Blobs,
        workspaces: Path,
        dataset_stores: DatasetStores | None = None,
    ) -> None:
        self._home = home
        self._blobs = blobs
        self._node = ThisNode.of(home, settings)
        self.journal = AttemptJournal(home.node / "attempts", self._node.job_folder)
        self._outbox = Outbox()
        self._gpus = self._watched_gpus()
        self._accounts = self._job_accounts()

        # What attempts get.
        self._groups = GroupPool(self._node.id, settings.max_processes)
        self._prefetched = PrefetchQueue()
        self._supplies = JobSupplies.of(
            self._node,
            self.journal,
            self._linked_server,
            dataset_stores,
            datasets_in_use=lambda: self.attempts.datasets_in_use(),
            packages_in_use=lambda: self.attempts.packages_in_use(),
        )
        self._worker_door = None
        if self._node.is_joined:
            self._worker_door = worker_door(home, settings, self._linked_server)
        self._context = self._attempt_context(workspaces)
        self.attempts = self._node_attempts()
        self._streams = StreamDoor(self.attempts.by_id)
        self._log_watch = LogWatch()

        # The link. `_server` is the one that has welcomed this agent on it.
        self._server: ServerAddress | None = None
        self._epoch = 0
        self._process = secrets.token_hex(8)
        self._contact = ServerContact(
            home.node / "heard", settings.rented.heartbeat_file
        )
        self._refusal = RefusalNote(home.node / "refused")
        self._is_removed = False

        # The life of this process.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sign_of_life = home.node / "pulse"
        self._leaving = asyncio.Event()

    # --- its parts, some of which use `attempts`, but only while attempts run ---

    def _watched_gpus(self) -> GpuWatch:
        node = self._node
        health = GpuHealth(self._home.node / "quarantine.json", node.host.boot_id)
        return GpuWatch(
            discovery_of(node.settings, node.name_in_gpus),
            node.settings.discovery_s,
            health,
            self._outbox.put,
            failed=lambda reasons: self.attempts.stop_on_failed_gpus(reasons),
            blamed=lambda uuid, message: self.attempts.remark_on_gpu(uuid, message),
        )

    def _job_accounts(self) -> JobAccounts | None:
        node = self._node
        if node.accounts is None:
            return None
        return JobAccounts(node.settings, node.accounts, lambda: self._gpus.devices)

    def _attempt_context(self, workspaces: Path) -> AgentContext:
        settings = self._node.settings
        host = self._node.host
        supplies = self._supplies
        return AgentContext(
            journal=self.journal,
            blobs=self._blobs,
            settings=settings,
            node=host.hostname,
            send=self._outbox.put,
            gpus=lambda: self._gpus.current,
            pop_next=self._prefetched.pop_next,
            begin=lambda start: self.attempts.begin(start),
            reaper=own_keeper() or None,
            home=self._home.root,
            until_clear=self._gpus.until_clear,
            workspaces=workspaces,
            accounts=self._accounts,
            default_memory_gb=default_memory_gb(
                host.memory_mb / 1024, settings.reserve_memory_gb
            ),
            fetching=supplies.fetching,
            runs_others=lambda: self.attempts.are_several(),
            blob_link=supplies.blob_link,
            datasets=supplies.datasets,
            packages=supplies.packages,
        )

    def _node_attempts(self) -> NodeAttempts:
        return NodeAttempts(
            AttemptParts(
                self.journal,
                self._context,
                self._groups,
                self._prefetched,
                self._node.host.boot_id,
                self._spawn,
            )
        )

    def _linked_server(self) -> ServerAddress | None:
        return self._server

    # --- its life ---

    async def run(self) -> None:
        """Adopt the attempts of the previous agent, then work until told to leave."""
        self._blobs.sweep()
        self._supplies.begin()
        self._groups.sweep()
        # What earlier agents, which were killed, have left behind.
        remove_empty(self.journal.is_settled)
        if self._worker_door:
            await self._worker_door.open()
        await self._gpus.refresh()
        for record in self.journal.records():
            attempt = self.attempts.remember(record)
            exits = self._home.node / "exits"
            boot_id = self._node.host.boot_id
            resumed = attempt.resume(exits, self._keeper_alive, boot_id)
            self._spawn(self.attempts.attend(attempt, resumed))
        self._spawn(self._gpus.watch())
        self._spawn(self._watch_silence())
        connecting = asyncio.create_task(self._connect())
        leaving = asyncio.create_task(self._leaving.wait())
        await asyncio.wait([connecting, leaving], return_when=asyncio.FIRST_COMPLETED)
        self._groups.close()
        if connecting.done():
            # It ends only by an error: that ends the agent, and the keeper starts it
            # again.
            connecting.result()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("agent work failed", exc_info=task.exception())

    def _keeper_alive(self) -> bool:
        return is_locked(self._home.node / "keeper.lock")

    # --- the link ---

    async def _connect(self) -> None:
        """Connect to the servers in turn for ever, with a longer pause after each round
        in which none answers.
        """
        pause_s = FIRST_PAUSE_S
        first = 0
        while True:
            addresses = server_addresses(self._home)
            linked = False
            for tried in range(len(addresses)):
                address = addresses[(first + tried) % len(addresses)]
                linked = await self._work_with(address)
                if linked:
                    # A server that hangs may still accept connections: start the next
                    # round with the one after it.
                    first += tried + 1
                    break
            # The first pause is not 0: a server may accept and drop us again and again
            # (when its disk is full).
            pause_s = FIRST_PAUSE_S if linked else longer_pause_s(pause_s, addresses)
            await asyncio.sleep(_REMOVED_PAUSE_S if self._is_removed else pause_s)

    async def _work_with(self, address: ServerAddress) -> bool:
        """Work with the server at `address` until the link ends; False if no server was
        there, or it never sent Welcome.
        """
        try:
            async with open_link(address) as (reader, writer):
                await self._talk(reader, writer, address)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except (
            OSError,
            asyncio.IncompleteReadError,
            ValueError,
            msgspec.ValidationError,
        ) as error:
            log.info("the link to the server ended", cause=repr(error))
        if not self._contact.is_linked:
            return False
        self._contact.link_ended()
        self._server = None
        # The next server sends again what it still wants.
        self._prefetched.clear()
        return True

    async def _talk(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: ServerAddress,
    ) -> None:
        writer.write(wire_frames.encode(self._hello()))
        loop = asyncio.get_running_loop()
        welcome_timer = loop.call_later(WELCOME_S, writer.transport.abort)
        working: list[asyncio.Task[None]] = []
        logs = LogSender(writer, self._log_watch)
        try:
            while True:
                message = await read_message(reader)
                self._contact.received()
                if isinstance(message, wire.Welcome):
                    welcome_timer.cancel()
                    working = self._welcomed(message, writer)
                    self._server = address
                    self._refusal.forget()
                elif isinstance(message, wire.Refused):
                    self._refused(message)
                elif isinstance(message, wire.ReadLog | wire.FindLines):
                    self._send_log(message, logs)
                elif isinstance(message, wire.OpenStream):
                    self._spawn(self._streams.open(message, address))
                else:
                    self._handle(message, writer)
        finally:
            welcome_timer.cancel()
            logs.close()
            for task in working:
                task.cancel()

    def _refused(self, message: wire.Refused) -> None:
        """The server does not serve this agent; ConnectionError says why."""
        self._refusal.note(message.reason)
        self._is_removed = message.removed
        if message.removed:
            # Its jobs are somewhere else by now.
            for attempt in self.attempts:
                attempt.stop(Reason.SUPERSEDED)
        raise ConnectionError(message.reason)

    def _welcomed(
        self, message: wire.Welcome, writer: asyncio.StreamWriter
    ) -> list[asyncio.Task[None]]:
        """Begin to report, and to send heartbeats if the server wants them; returns the
        tasks of the link.
        """
        if self._contact.is_linked:
            raise ValueError("a second Welcome on one link")
        if message.epoch < self._epoch:
            raise ValueError(
                f"the server's epoch {message.epoch} is over: {self._epoch} was seen"
            )
        self._epoch = message.epoch
        heartbeat = Heartbeat(writer, message.heartbeat_s)
        self._contact.welcomed(heartbeat)
        working = [asyncio.create_task(self._outbox.deliver(writer))]
        if message.heartbeat_s:
            working.append(asyncio.create_task(heartbeat.beat()))
        for task in working:
            # If one direction fails, the link ends.
            task.add_done_callback(lambda _: writer.close())
        return working

    def _hello(self) -> wire.Hello:
        host = self._node.host
        held = [attempt.as_held() for attempt in self.attempts]
        return wire.Hello(
            self._node.id,
            host.hostname,
            host.boot_id,
            host.cpus,
            round(host.memory_mb / 1024, 2),
            self._gpus.current,
            held,
            self._epoch,
            __version__,
            problem=self._gpus.problem,
            separation=self._separation(),
            streams=True,
            stdin_streams=True,
            fetches=True,
            datasets=True,
            packages=True,
            artifacts=True,
            finds_lines=True,
            process=self._process,
        )

    def _separation(self) -> Separation:
        """What holds between the jobs of this node."""
        if self._accounts is None:
            return Separation.AGREEMENT
        return self._accounts.separation

    def _handle(self, message: wire.ToAgent, writer: asyncio.StreamWriter) -> None:
        match message:
            case wire.StartAttempt() | wire.StopAttempt() if (
                message.epoch < self._epoch
            ):
                pass  # from a server that was replaced
            case wire.StartAttempt():
                self.attempts.start(message)
            case wire.StopAttempt():
                self.attempts.stop(message)
            case wire.Acknowledge():
                self._outbox.acknowledge(message.seq)
            case wire.Forget():
                self.attempts.forget(message.attempt_ids)
                if message.output:
                    self._spawn(self.attempts.discard(message.attempt_ids))
            case wire.Find():
                state = self.attempts.state(message.attempt_id)
                found = wire.Found(message.request, message.attempt_id, state)
                writer.write(wire_frames.encode(found))
            case wire.Release():
                self._gpus.release(message.gpu_uuids)
            case wire.Leave():
                self._leaving.set()
            case _:
                # `_talk` handles some; contents have connections of their own; a Beat
                # needs no answer.
                pass

    # --- the host and its output ---

    def job_files(self) -> list[JobFiles]:
        """The files of the attempts that run."""
        return running_files(self.attempts, self._context)

    def report_disk(self, disk: wire.DiskStatus) -> None:
        """Tell the server what was found on the disk."""
        self._outbox.put(wire.GpusSeen(self._gpus.current, self._gpus.problem, disk))

    def report_interruption(self, notice: wire.InterruptionSeen) -> None:
        """Tell the server that the cloud takes this machine back."""
        self._outbox.put(notice)

    def _send_log(
        self, question: wire.ReadLog | wire.FindLines, logs: LogSender
    ) -> None:
        attempt = self.attempts.find(question.attempt_id)
        logs.answer(question, self.journal.log_path(question.attempt_id), attempt)

    async def _watch_silence(self) -> None:
        """Stop attempts that have been without a server for longer than their
        `max_silence_s`, measured on this host's monotonic clock.
        """
        while True:
            await asyncio.sleep(1.0)
            # The keeper kills an agent that stops to touch this file.
            with suppress(OSError):
                self._sign_of_life.touch()
            self._contact.note()
            self.attempts.stop_silent(self._contact.silent_s())


def main() -> None:
    """Run the agent of the home on the command line."""
    parser = argparse.ArgumentParser(prog="python -m gpuyard.node.agent")
    parser.add_argument("--home", type=Path, required=True)
    home = Home(parser.parse_args().home.absolute())
    configure_logging(home.logs / "node.log")
    home.create()
    lock = lock_agent(home.node / "agent.lock")
    with suppress(OSError):  # a full disk; only `gpuyard doctor` reads it
        home.agent_version.write_text(__version__)
    shorten_gil_interval()
    try:
        settings = load_settings(home)
        blobs = open_store(home.root, settings.storage, settings.workspaces)
        uvloop.run(_run(home, settings, blobs))
    except InvalidInputError as error:
        sys.exit(f"gpuyard: the agent cannot start: {error}")
    finally:
        lock.close()


async def _run(home: Home, settings: Settings, blobs: Blobs) -> None:
    agent = Agent(
        home,
        settings.node,
        blobs,
        settings.workspaces.root(home),
        DatasetStores(home.root, settings.storage),
    )
    look_s = settings.disk.look_s
    disk = DiskWatch(home.root, look_s, agent.job_files, agent.report_disk)
    spot = SpotWatch(settings.node.rented, agent.report_interruption)
    upkeep = (
        asyncio.create_task(
            sweep_old_output(agent.journal, settings.retention, home.root)
        ),
        asyncio.create_task(disk.run()),
        asyncio.create_task(spot.run()),
    )
    # What was loaded at the start never becomes garbage. Without this, the collector
    # looks at all of it again and again while many short jobs run.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    try:
        await agent.run()
    finally:
        for task in upkeep:
            task.cancel()


if __name__ == "__main__":
    main()
