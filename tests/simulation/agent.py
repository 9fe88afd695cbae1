"""A simulated agent: what `node/agent.py` and `node/attempt.py` do, on a simulated
host, in the real wire messages.

Everything it knows but has not journaled dies with it. Keep it in step with the real
agent: it is the other half of the contract that the controller is tried against.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpuyard.domain import wire, wire_frames
from gpuyard.node.outbox import Outbox
from gpuyard.node.prefetch import PrefetchQueue
from tests.simulation.host import Entry, Process

if TYPE_CHECKING:
    from tests.simulation.world import Machine

TERM_S = 10.0


class Agent:
    """One agent of a machine, from its start to its kill.

    `machine.run` makes it part of a life.
    """

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.world = machine.world
        self.host = machine.host
        self.attempts: dict[str, Attempt] = {}
        self.outbox = Outbox()
        self.prefetched = PrefetchQueue()
        self.epoch = 0
        self.linked = False
        now = self.world.loop.now
        self.silent_since = now if self.host.heard is None else self.host.heard
        self.tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def run(self) -> None:
        """Adopt what the agent before left, then dial for ever."""
        for entry in list(self.host.journal.values()):
            attempt = self.remember(entry)
            self.spawn(attempt.resume())
        self.spawn(self.watch_silence())
        while True:
            line = self.world.dial(self.machine)
            if line is not None:
                self.machine.line = line
                try:
                    await self.talk(line.agent)
                except (ConnectionError, asyncio.IncompleteReadError, ValueError):
                    pass
                finally:
                    line.agent.close()
                    if self.linked:
                        self.linked = False
                        self.silent_since = self.world.loop.now
                        self.prefetched.clear()
            await asyncio.sleep(self.world.dice.uniform(0.02, 1.0))

    async def talk(self, end: Any) -> None:
        end.write(wire_frames.encode(self.hello()))
        working: list[asyncio.Task[None]] = []
        try:
            while True:
                header = await end.reader.readexactly(4)
                message = wire_frames.decode_to_agent(
                    await end.reader.readexactly(wire_frames.frame_length(header))
                )
                if isinstance(message, wire.Welcome):
                    if message.epoch < self.epoch:
                        raise ValueError("that server's epoch is over")
                    self.epoch = message.epoch
                    self.linked = True
                    working = [asyncio.create_task(self.outbox.deliver(end))]
                    if message.heartbeat_s:
                        working.append(
                            asyncio.create_task(self.beat(end, message.heartbeat_s))
                        )
                elif isinstance(message, wire.Beat):
                    self.missed = 0
                else:
                    self.obey(message, end)
        finally:
            for task in working:
                task.cancel()
            self.prefetched.clear()

    async def beat(self, end: Any, every_s: float) -> None:
        self.missed = 0
        while self.missed <= wire.SILENT_BEATS:
            end.write(wire_frames.encode(wire.Beat()))
            await asyncio.sleep(every_s)
            self.missed += 1
        end.transport.abort()

    def hello(self) -> wire.Hello:
        held = [
            wire.HeldAttempt(i, a.entry.start.token, "running" if a.live else "ended")
            for i, a in self.attempts.items()
        ]
        host = self.host
        return wire.Hello(
            host.node_id,
            "host",
            f"boot-{host.boot}",
            host.cpus,
            64.0,
            host.gpus_seen(),
            held,
            self.epoch,
        )

    def obey(self, message: wire.ToAgent, end: Any) -> None:
        match message:
            case wire.StartAttempt():
                self.start(message)
            case wire.StopAttempt():
                self.stop(message)
            case wire.Acknowledge():
                self.outbox.acknowledge(message.seq)
            case wire.Forget():
                for attempt_id in message.attempt_ids:
                    self.forget(attempt_id)
            case wire.Find():
                known = self.attempts.get(message.attempt_id)
                waits = "waiting" if message.attempt_id in self.prefetched else "absent"
                state = ("running" if known.live else "ended") if known else waits
                end.write(
                    wire_frames.encode(
                        wire.Found(message.request, message.attempt_id, state)
                    )
                )
            case _:
                pass

    def start(self, start: wire.StartAttempt) -> None:
        self.world.promises.commanded(self.host, start)
        known = start.attempt_id in self.attempts or self.prefetched.refuses(
            start.attempt_id
        )
        if start.epoch < self.epoch or known or start.attempt_id in self.host.logs:
            return
        if start.prefetched:
            self.prefetched.add(start)
        else:
            self.prefetched.drop(start.attempt_id)
            self.begin(start)

    def begin(self, start: wire.StartAttempt) -> None:
        entry = self.host.journal[start.attempt_id] = Entry(
            start, self.host.boot, self.host.keeper
        )
        attempt = self.remember(entry)
        taken = {
            uuid
            for other in self.attempts.values()
            if other.live and other is not attempt
            # The server knows which models are awake; the world checks that.
            if not (start.shares_gpus or other.entry.start.shares_gpus)
            for uuid in other.entry.start.gpu_uuids
        } & set(start.gpu_uuids)
        if taken:
            self.world.promises.broken(
                f"the server gave out GPU {taken} twice, to {start.attempt_id}"
            )
            attempt.conclude(reason="gpu_busy")
            return
        self.spawn(attempt.launch())

    def stop(self, stop: wire.StopAttempt) -> None:
        if stop.epoch < self.epoch:
            return
        if stop.reason == "revoked":
            if self.prefetched.withdraw(stop.attempt_id):
                self.outbox.put(
                    wire.Ended(
                        stop.attempt_id, self.world.wall(), None, stopped="revoked"
                    )
                )
            return
        self.prefetched.drop(stop.attempt_id)
        attempt = self.attempts.get(stop.attempt_id)
        if attempt:
            attempt.stop(stop.reason)
        else:
            self.outbox.put(
                wire.Ended(
                    stop.attempt_id, self.world.wall(), None, stopped=stop.reason
                )
            )

    def remember(self, entry: Entry) -> "Attempt":
        attempt = self.attempts[entry.start.attempt_id] = Attempt(self, entry)
        return attempt

    def forget(self, attempt_id: str) -> None:
        self.prefetched.forget(attempt_id)
        attempt = self.attempts.get(attempt_id)
        if attempt is None or not attempt.live:
            self.attempts.pop(attempt_id, None)
            self.host.journal.pop(attempt_id, None)

    async def watch_silence(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now = self.world.loop.now
            if self.linked:
                self.host.heard = now
            silent_s = 0.0 if self.linked else now - self.silent_since
            for attempt in list(self.attempts.values()):
                limit = attempt.entry.start.max_silence_s
                if limit and silent_s > limit:
                    attempt.stop("silent")


class Attempt:
    """One attempt in the hands of one agent."""

    def __init__(self, agent: Agent, entry: Entry) -> None:
        self.agent = agent
        self.entry = entry
        self.host = agent.host
        self.world = agent.world
        self.id = entry.start.attempt_id
        self.stopped = entry.stopping
        self.process: Process | None = None
        self.ending = False

    @property
    def live(self) -> bool:
        return self.entry.ended is None

    async def launch(self) -> None:
        """Prepare, start the program, note it; the agent may be killed between any two
        of these.
        """
        await self.world.thread()
        if self.stopped:
            self.conclude()
            return
        self.host.logs.add(self.id)
        await self.world.thread()
        self.process = self.world.begin(self.host, self.entry.start)
        await self.world.thread()
        self.note()
        await self.follow()

    def note(self) -> None:
        self.entry.noted = True
        self.entry.started_at = self.world.wall()
        self.entry.monotonic = self.world.loop.now
        self.say(
            wire.Started(self.id, self.entry.started_at, 4711, {"memory": "cgroup"})
        )

    async def resume(self) -> None:
        """Take over from the agent before."""
        entry = self.entry
        host = self.host
        for saved in entry.checkpoints:
            self.say(saved)
        if entry.ended:
            next_id = entry.ended.prefetched_next
            begun = not next_id or next_id in host.journal or next_id in host.logs
            self.say(entry.ended if begun else replace(entry.ended, prefetched_next=""))
            return
        if entry.boot != host.boot:
            self.conclude(reason="node_rebooted")
            return
        self.process = host.processes.get(self.id)
        if self.process is None:
            if self.id not in host.logs or entry.keeper == host.keeper:
                await self.launch()
            else:
                self.conclude(reason="exit_status_lost")
            return
        if entry.noted:
            self.say(wire.Started(self.id, entry.started_at, 4711, {}))
        else:
            self.note()
        await self.follow()

    async def follow(self) -> None:
        process = self.process
        start = self.entry.start
        assert process is not None
        if start.timeout_s:
            self.agent.spawn(
                self.time_out(
                    self.entry.monotonic + start.timeout_s - self.world.loop.now
                )
            )
        if start.checkpoint_path:
            self.agent.spawn(self.checkpoints())
        if self.stopped:
            stopped = self.stopped
            self.stopped = ""
            self.stop(stopped)
        await process.over.wait()
        await self.world.thread()
        if process.exit_lost:
            self.conclude(reason="exit_status_lost")
        else:
            self.conclude(process.code, process.signal)

    async def time_out(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0))
        self.stop("timed_out")

    async def checkpoints(self) -> None:
        process = self.process
        assert process is not None
        while True:
            await asyncio.sleep(self.world.dice.uniform(0.5, 3.0))
            if not process.alive:
                return
            saved = self.world.save_checkpoint(self.id, len(self.entry.checkpoints))
            self.entry.checkpoints.append(saved)
            self.say(saved)

    def stop(self, reason: str) -> None:
        if self.process is None:
            self.stopped = self.stopped or reason
        elif not self.ending and self.live and self.process.alive:
            self.ending = True
            self.stopped = reason
            self.entry.stopping = reason
            self.agent.spawn(self.terminate(self.process))

    async def terminate(self, process: Process) -> None:
        await asyncio.sleep(
            TERM_S if process.stubborn else self.world.dice.uniform(0, 0.2)
        )
        self.host.exit(process, None, 9 if process.stubborn else 15)

    def conclude(
        self, code: int | None = None, signal: int | None = None, reason: str = ""
    ) -> None:
        began = self.entry.started_at or None
        following = (
            self.agent.prefetched.pop_next(self.entry.start)
            if self.stopped != "preempted"
            else None
        )
        ended = wire.Ended(
            self.id,
            self.world.wall(),
            began,
            code,
            signal,
            reason,
            self.stopped,
            prefetched_next=following.attempt_id if following else "",
        )
        self.entry.ended = ended
        self.say(ended)
        if following and not self.agent.machine.dies_here():
            self.agent.begin(following)

    def say(self, body: Any) -> None:
        self.agent.outbox.put(body)
