"""The agent: runs attempts on this host for the server it dials, and outlives both the server and its link to it.

`python -m gpuyard.node.agent --home HOME`, started and restarted by the keeper. It exits with 0 when told to leave.
"""

import argparse
import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec
import structlog

from gpuyard import __version__
from gpuyard.config.locks import is_locked
from gpuyard.config.logs import configure_logging
from gpuyard.config.paths import Home
from gpuyard.config.settings import NodeSettings, Settings, load_settings
from gpuyard.config.turns import share_the_interpreter
from gpuyard.devices.discovery import Discovery, discover
from gpuyard.devices.host import HostReading, read_host
from gpuyard.devices.simulated import SimulatedGpus
from gpuyard.domain import wire
from gpuyard.domain.ids import new_id
from gpuyard.node.attempt import AttemptRun
from gpuyard.node.dial import WELCOME_S, Door, Pulse, doors, opened
from gpuyard.node.gpus import GpuWatch
from gpuyard.node.health import Health
from gpuyard.node.journal import Journal, own_keeper
from gpuyard.node.logs import read_log
from gpuyard.node.outbox import Outbox
from gpuyard.node.watch import Surroundings
from gpuyard.node.window import Window
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import open_store

_DIAL_S = (0.02, 1.0)
log = structlog.get_logger(__name__)


class Agent:
    """One node: its attempts, its GPUs, its link."""

    def __init__(self, home: Home, settings: NodeSettings, blobs: Blobs, workspaces: Path) -> None:
        self._home = home
        self._settings = settings
        self._journal = Journal(home.node / "attempts")
        self._blobs = blobs
        self._outbox = Outbox()
        self._host: HostReading = read_host()
        health = Health(home.node / "quarantine.json", self._host.boot_id)
        self._gpus = GpuWatch(
            _discovery(settings), settings.discovery_s, health, self._outbox.put, self._gpus_failed, self._blame
        )
        self._window = Window()
        self._around = Surroundings(
            self._journal, self._blobs, settings, self._host.hostname, self._outbox.put, lambda: self._gpus.current,
            self._window.successor, self._begin, own_keeper() or None, home.root, self._gpus.until_clear,
            workspaces,
        )  # fmt: skip
        self._node_id = _node_id(home.node / "id")
        self._attempts: dict[str, AttemptRun] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._epoch = 0
        self._pulse: Pulse | None = None  # of the link, while there is one
        self._heard, self._sign = home.node / "heard", home.node / "pulse"
        self._silent_since = _heard_at(self._heard)
        self._leaving = asyncio.Event()

    async def run(self) -> None:
        """Adopt what an agent before left, then serve until told to leave."""
        self._blobs.sweep()
        await self._gpus.look()
        for record in self._journal.records():
            attempt = self._remember(record)
            resumed = attempt.resume(self._home.node / "exits", self._keeper_alive, self._host.boot_id)
            self._spawn(self._attend(attempt, resumed))
        self._spawn(self._gpus.watch())
        self._spawn(self._watch_silence())
        dialling = asyncio.create_task(self._dial())
        leaving = asyncio.create_task(self._leaving.wait())
        await asyncio.wait([dialling, leaving], return_when=asyncio.FIRST_COMPLETED)
        if dialling.done():
            dialling.result()  # never returns: its fault ends the agent, and the keeper starts a fresh one

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

    async def _dial(self) -> None:
        """Dial the servers in turn for ever, a little less eagerly after each round in which none answers."""
        pause, longest = _DIAL_S
        first = 0
        while True:
            ways, linked = doors(self._home), False
            for turn in range(len(ways)):
                linked = await self._try(ways[(first + turn) % len(ways)])
                if linked:
                    first += turn + 1  # a server that fell silent may still take the call: the next one is asked first
                    break
            # A server that lets us in and throws us out again (its disk is full) is not dialled in a tight loop.
            pause = _DIAL_S[0] if linked else min(pause * 1.5, longest)
            await asyncio.sleep(pause)

    async def _try(self, door: Door) -> bool:
        """Talk to the server behind `door` until the link ends; False if none was there, or it never said Welcome."""
        try:
            async with opened(door) as (reader, writer):
                await self._talk(reader, writer)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except (OSError, asyncio.IncompleteReadError, ValueError, msgspec.ValidationError) as error:
            log.info("the link to the server ended", cause=repr(error))
        if self._pulse is None:
            return False
        self._silent_since, self._pulse = self._pulse.heard_at, None
        self._window.clear()  # the next server sends anew what it still wants
        return True

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire.encode(self._hello()))
        patience = asyncio.get_running_loop().call_later(WELCOME_S, writer.transport.abort)
        working: list[asyncio.Task[None]] = []
        try:
            while True:
                header = await reader.readexactly(4)
                message = wire.decode_to_agent(await reader.readexactly(wire.frame_length(header)))
                if self._pulse:
                    self._pulse.hear()
                if isinstance(message, wire.Welcome):
                    patience.cancel()
                    working = self._welcomed(message, writer)
                else:
                    self._obey(message, writer)
        finally:
            patience.cancel()
            for task in working:
                task.cancel()

    def _welcomed(self, message: wire.Welcome, writer: asyncio.StreamWriter) -> list[asyncio.Task[None]]:
        """The link stands: report, and beat if the server wants that."""
        if self._pulse:
            raise ValueError("a second Welcome on one link")
        if message.epoch < self._epoch:
            raise ValueError(f"the server's epoch {message.epoch} is over: {self._epoch} was seen")
        self._epoch, self._pulse = message.epoch, Pulse(writer, message.heartbeat_s)
        working = [asyncio.create_task(self._outbox.deliver(writer))]
        if message.heartbeat_s:
            working.append(asyncio.create_task(self._pulse.beat()))
        for task in working:
            task.add_done_callback(lambda _: writer.close())  # no direction lives without the other
        return working

    def _hello(self) -> wire.Hello:
        attempts = [
            wire.Attempt(i, a.start.token, "running" if a.live else "ended", a.process.pid if a.process else 0)
            for i, a in self._attempts.items()
        ]
        return wire.Hello(
            self._node_id, self._host.hostname, self._host.boot_id, self._host.cpus,
            round(self._host.memory_mb / 1024, 2), self._gpus.current, attempts, self._epoch, __version__,
            problem=self._gpus.problem,
        )  # fmt: skip

    def _obey(self, message: wire.ToAgent, writer: asyncio.StreamWriter) -> None:
        match message:
            case wire.Start():
                self._start(message)
            case wire.Stop():
                self._stop(message)
            case wire.Acknowledge():
                self._outbox.acknowledge(message.seq)
            case wire.Forget():
                for attempt_id in message.attempt_ids:
                    self._forget(attempt_id)
            case wire.ReadLog():
                self._spawn(self._send_log(message, writer))
            case wire.Find():
                known = self._attempts.get(message.attempt_id)
                there = self._journal.log_path(message.attempt_id).exists()
                waits = message.attempt_id in self._window
                state = ("running" if known.live else "ended") if known else ("ended" if there else "absent")
                state = "waiting" if waits else state
                writer.write(wire.encode(wire.Found(message.request, message.attempt_id, state)))
            case wire.Release():
                self._gpus.release(message.gpu_uuids)
            case wire.Leave():
                self._leaving.set()
            case wire.Welcome() | wire.Beat():
                pass  # a Welcome was taken in before; a Beat says no more than that it came

    # --- attempts ---

    def _start(self, start: wire.Start) -> None:
        """Start an attempt, or let it wait its turn, unless it is known or comes from a server that was replaced."""
        known = start.attempt_id in self._attempts or self._window.refuses(start.attempt_id)
        if start.epoch < self._epoch or known or self._journal.holds(start.attempt_id):
            return
        if start.ahead:
            self._window.add(start)
        else:
            self._window.drop(start.attempt_id)
            self._begin(start)

    def _begin(self, start: wire.Start) -> None:
        """Carry out a start; one whose GPUs are taken is over at once."""
        try:
            attempt = self._remember(self._journal.intend(start, self._host.boot_id))
        except OSError as error:
            message = f"the agent's journal cannot be written: {error}"
            self._outbox.put(wire.Ended(start.attempt_id, time.time(), None, reason="spawn_failed", message=message))
            return
        taken = {uuid for other in self._attempts.values()
                 if other.live and other is not attempt and not other.start.shares_gpus
                 for uuid in other.start.gpu_uuids} & set(start.gpu_uuids)  # fmt: skip
        if taken:
            message = f"GPU {', '.join(sorted(taken))} is in use by another attempt"
            ended = wire.Ended(start.attempt_id, time.time(), None, reason="gpu_busy", message=message)
            self._journal.note(start.attempt_id, ended=ended)
            attempt.record.ended = ended
            self._outbox.put(ended)
            return
        self._spawn(self._attend(attempt, attempt.run()))

    @staticmethod
    async def _attend(attempt: AttemptRun, work: Coroutine[Any, Any, None]) -> None:
        """Carry an attempt to its end. Without one, for a fault of ours, it would hold its GPUs for ever."""
        try:
            await work
        except Exception as error:
            log.exception("an attempt is given up", attempt=attempt.start.attempt_id)
            await attempt.give_up(error)

    def _stop(self, stop: wire.Stop) -> None:
        """End an attempt. One that never came here is over at once: its Start cannot come after its Stop."""
        if stop.epoch < self._epoch:
            return
        if stop.reason == "revoked":
            # One that is not here may still be on its way, and is asked for again.
            if self._window.take_back(stop.attempt_id):
                self._outbox.put(wire.Ended(stop.attempt_id, time.time(), None, stopped="revoked"))
            return
        self._window.drop(stop.attempt_id)
        attempt = self._attempts.get(stop.attempt_id)
        if attempt:
            attempt.stop(stop.reason, checkpoint=stop.checkpoint)
        else:
            self._outbox.put(
                wire.Ended(stop.attempt_id, time.time(), None, stopped=stop.reason, message="never started")
            )

    def _gpus_failed(self, reasons: Mapping[str, str]) -> None:
        """End what runs on GPUs that can do no more; the job's retries decide whether it goes on elsewhere."""
        for attempt in list(self._attempts.values()):
            lost = [f"GPU {uuid} failed: {reasons[uuid]}" for uuid in attempt.start.gpu_uuids if uuid in reasons]
            if lost and attempt.live:
                attempt.remark("; ".join(lost))
                attempt.stop("gpu_failed")

    def _blame(self, uuid: str, said: str) -> None:
        """The driver says that a program on this GPU did something wrong."""
        for attempt in self._attempts.values():
            if attempt.live and uuid in attempt.start.gpu_uuids:
                attempt.remark(said)

    def _remember(self, record: Any) -> AttemptRun:
        attempt = AttemptRun(record, self._around)
        self._attempts[record.start.attempt_id] = attempt
        return attempt

    def _forget(self, attempt_id: str) -> None:
        self._window.forget(attempt_id)
        attempt = self._attempts.get(attempt_id)
        if attempt is None or not attempt.live:
            self._attempts.pop(attempt_id, None)
            self._journal.forget(attempt_id)

    async def _send_log(self, question: wire.ReadLog, writer: asyncio.StreamWriter) -> None:
        attempt = self._attempts.get(question.attempt_id)
        part = await read_log(question, self._journal.log_path(question.attempt_id), attempt)
        writer.write(wire.encode(part))

    async def _watch_silence(self) -> None:
        """End attempts whose `max_silence_s` has passed without a server, by this host's own monotonic clock.

        The time is kept in a file, for an agent that is killed: the server does not count anew for the next one.
        """
        while True:
            await asyncio.sleep(1.0)
            with suppress(OSError):
                self._sign.touch()  # the keeper kills an agent that hangs
            if self._pulse:
                self._silent_since = self._pulse.heard_at
                with suppress(OSError):  # on a full disk only this agent knows
                    self._heard.write_text(str(self._silent_since))
            silent_s = time.monotonic() - self._silent_since
            for attempt in list(self._attempts.values()):
                limit = attempt.start.max_silence_s
                if limit and silent_s > limit:
                    attempt.stop("silent")


def _heard_at(path: Path) -> float:
    """When an agent of this node last had its link, on the monotonic clock; now, if that is not known."""
    now = time.monotonic()
    try:
        return min(float(path.read_text()), now)
    except (FileNotFoundError, ValueError):
        return now


def _discovery(settings: NodeSettings) -> Callable[[], Discovery]:
    return SimulatedGpus.parse(settings.simulate_gpus).discover if settings.simulate_gpus else discover


def _node_id(path: Path) -> str:
    """This node's id, made once."""
    if not path.exists():
        draft = path.with_suffix(".new")
        draft.write_text(new_id("node"))
        draft.rename(path)
    return path.read_text().strip()


def lock_agent(path: Path) -> IO[str]:
    """Wait until no other agent of this home lives: two must never run the same attempts."""
    file = path.open("a+")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def main() -> None:
    """Run the agent of a home."""
    parser = argparse.ArgumentParser(prog="python -m gpuyard.node.agent")
    parser.add_argument("--home", type=Path, required=True)
    home = Home(parser.parse_args().home.absolute())
    configure_logging()
    home.create()
    lock = lock_agent(home.node / "agent.lock")
    share_the_interpreter()
    settings = load_settings(home)
    blobs = open_store(home.root, settings.storage)
    try:
        asyncio.run(_run(home, settings, blobs))
    finally:
        lock.close()


async def _run(home: Home, settings: Settings, blobs: Blobs) -> None:
    await Agent(home, settings.node, blobs, settings.workspaces.root(home)).run()


if __name__ == "__main__":
    main()
