"""The world: its clocks, dice, machines, links, disk and people, and the misfortunes
that befall them.
"""

import asyncio
import hashlib
import math
from pathlib import Path
from random import Random
from typing import Any

from sqlalchemy.exc import OperationalError

from gpuyard.domain import wire
from tests.simulation import weather
from tests.simulation.agent import Agent
from tests.simulation.fleet import Fleet
from tests.simulation.fleet_people import FleetPeople
from tests.simulation.host import Host, Process
from tests.simulation.loop import Life, VirtualLoop
from tests.simulation.people import People
from tests.simulation.pipe import Line
from tests.simulation.promises import BrokenPromiseError, Promises
from tests.simulation.server import Server

EPOCH_S = 1_790_000_000.0
CALM_S = 2000.0
MOST_STEPS = 100_000
# Of a model's server or a worker.
_UNTIL_IT_EXITS_S = 1e7


class Blobs:
    """Contents by their hash; all the controller wants of them is that they can be
    deleted.
    """

    def __init__(self) -> None:
        self.kept: set[str] = set()

    def delete(self, sha256: str) -> None:
        self.kept.discard(sha256)

    def stored_at(self, sha256: str) -> float | None:
        """Long ago."""
        return 0.0 if sha256 in self.kept else None


class World:
    """One seed's world. `stormy` until the faults stop. `fleet`: its models and
    batches, if it has any.
    """

    def __init__(
        self, seed: int, loop: VirtualLoop, folder: Path, *, with_models: bool = False
    ) -> None:
        self.loop = loop
        self.dice = Random(seed)
        self.weather = weather.draw(self.dice)
        self.life = Life("world")
        self.ledger_path = folder / "ledger.db"
        self.trace: list[str] = []
        self.stormy = True
        self.clock_offset = 0.0
        self.clock_jumped = False
        self.disk_full = False
        self.quick_s = Random(f"disk {seed}").choice((0.0, math.inf))
        self.commits = self.steps = 0
        self.blobs: Any = Blobs()
        self.promises = Promises(self)
        self.people = People(self)
        self.fleet: Fleet | None = None
        self.settings: dict[str, Any] = {}
        self.server: Server | None = None
        self.machines = [
            Machine(self, Host(n, self.dice.choice((2, 4)), self.dice.choice((0, 2))))
            for n in range(self.weather.machines)
        ]
        if with_models:
            # The gateway reaches the servers of its own host only.
            gpus = self.dice.choice((1, 2, 2, 4))
            self.machines = [Machine(self, Host(0, 8, gpus))]
            self.fleet = Fleet(self)
            self.settings = self.fleet.settings
            self.people = FleetPeople(self, list(self.fleet.models))
        loop.on_step = self._step
        loop.thread_delays = lambda: (self.thread_s(), self.thread_s())
        loop.in_thread = self._in_thread

    def note(self, text: str) -> None:
        """A line of the trace."""
        self.trace.append(
            f"{self.loop.now:10.4f} {text}".replace(
                str(self.ledger_path.parent), "HOME"
            )
        )

    # --- time ---

    def wall(self) -> float:
        """What a clock on the wall says, in UTC seconds. Somebody may set it."""
        return EPOCH_S + self.loop.now + self.clock_offset

    def delay(self) -> float:
        """How long a message is on its way."""
        return self.dice.expovariate(1 / self.weather.link_s)

    def thread_s(self) -> float:
        return self.dice.expovariate(1 / self.weather.thread_s)

    async def thread(self) -> None:
        """As long as work in a thread takes."""
        await asyncio.sleep(self.thread_s())

    # --- the run ---

    async def live(self) -> None:
        """The storm, then calm until everything is done."""
        self.start_server()
        for machine in self.machines:
            machine.start_agent()
        fate = asyncio.create_task(self._fate())
        people = asyncio.create_task(self.people.live())
        await asyncio.sleep(self.weather.storm_s)
        fate.cancel()
        self._clear_up()
        self.note("calm")
        if self.fleet:
            self.life.spawn(self.loop, self.fleet.watch())
        await people
        deadline = self.loop.now + CALM_S
        pause_s = 1.0
        while not self.promises.all_done():
            if self.loop.now > deadline:
                self.promises.broken(
                    f"not everything ended: {self.promises.unfinished()}"
                )
                return
            await asyncio.sleep(pause_s)
            pause_s *= 1.2
        if self.fleet:
            await self.fleet.end()
        await asyncio.sleep(30.0)
        self.promises.check()

    def _clear_up(self) -> None:
        self.stormy = self.disk_full = False
        for machine in self.machines:
            machine.stalled = False
            machine.host.sick.clear()
            machine.tell_gpus()

    def _step(self) -> None:
        """Between any two rounds of callbacks somebody may be killed.

        A broken promise ends the world.
        """
        self.steps += 1
        if self.steps > MOST_STEPS:
            self.promises.broken("something goes round for ever")
        if self.promises.faults:
            raise BrokenPromiseError
        if not self.stormy:
            return
        if self.weather.server_kill and self.dice.random() < self.weather.server_kill:
            self.kill_server()
        if self.weather.agent_kill and self.dice.random() < self.weather.agent_kill:
            self.dice.choice(self.machines).kill_agent()

    async def _fate(self) -> None:
        rate = self.weather.misfortunes_per_s
        while rate:
            await asyncio.sleep(self.dice.expovariate(rate))
            what = self.dice.choice(self.weather.misfortunes)
            self.note(f"misfortune: {what}")
            await self._strike(what, self.dice.choice(self.machines))

    async def _strike(self, what: str, machine: "Machine") -> None:
        match what:
            case "cut":
                machine.cut()
            case "stall":
                machine.stalled = not machine.stalled
            case "keeper":
                machine.kill_keeper()
            case "everything":
                machine.kill_keeper()
                machine.kill_agent()
            case "reboot":
                machine.kill_agent()
                machine.host.reboot()
            case "clock":
                self.clock_offset += self.dice.choice((-3600.0, -30.0, 30.0, 3600.0))
                self.clock_jumped = True
            case "gpu":
                machine.lose_or_find_gpu()
            case "disk":
                self.disk_full = True
                await asyncio.sleep(self.dice.uniform(0, 5))
                self.disk_full = False
            case "server":
                self.kill_server()
            case "stop":
                self._stop_for_a_while(machine.life, self.dice.choice((1.0, 8.0)))
            case "stop server":
                self._stop_for_a_while(
                    self.server and self.server.life, self.dice.choice((1.0, 8.0, 40.0))
                )
            case _:
                machine.kill_agent()

    def _stop_for_a_while(self, life: Life | None, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later; a keeper would not wait longer for its agent."""
        if life is not None and life.alive and not life.frozen:
            self.loop.freeze(life)
            self.loop.call_later(seconds, self._go_on, life, context=self.life.context)

    def _go_on(self, life: Life) -> None:
        if life.frozen:
            self.note(f"{life.name} goes on")
            self.loop.thaw(life)

    # --- the server ---

    def start_server(self) -> None:
        self.server = Server(self)

    def kill_server(self) -> None:
        """`kill -9`; somebody starts it again after a while."""
        if self.server is None:
            return
        self.note("server killed")
        self.server.kill()
        self.server = None
        for machine in self.machines:
            machine.server_died()
        down_s = self.dice.choice((0.1, 1.0, 5.0))
        self.loop.call_later(down_s, self.start_server, context=self.life.context)

    def dial(self, machine: "Machine") -> Line | None:
        """A new link for an agent; None when no server listens."""
        if self.server is None or not self.server.ready:
            return None

        def delay() -> float:
            return self.delay() + (self.dice.uniform(0, 3) if machine.stalled else 0.0)

        line = Line(self.loop, self.life.context, delay)
        self.server.accept(line)
        return line

    def disk_fails(self) -> bool:
        return self.stormy and (
            self.disk_full or self.dice.random() < self.weather.disk_fails
        )

    def _in_thread(self, function: Any) -> Any:
        before = self.commits
        result = function()
        if (
            self.commits > before
            and self.stormy
            and self.dice.random() < self.weather.commit_unclear
        ):
            self.note("commit done, but reported as failed")
            raise OperationalError("COMMIT", {}, Exception("disk I/O error"))
        return result

    # --- what happens on machines ---

    def begin(self, host: Host, start: wire.StartAttempt) -> Process:
        """A job's program starts: `sim SECONDS CODES` runs so long, and leaves with the
        code of its turn.
        """
        seconds = _UNTIL_IT_EXITS_S
        codes = ["0"]
        if start.command[0] == "sim":
            seconds = float(start.command[1])
            codes = start.command[2].split(",")
        turn = sum(
            p.job_id == start.job_id
            for machine in self.machines
            for p in machine.host.history
        )
        process = Process(
            start.attempt_id,
            start.job_id,
            turn,
            frozenset(start.gpu_uuids),
            # What is not a job of people mostly waits, and books no core.
            start.cpus or (1.0 if start.command[0] == "sim" else 0.0),
            self.loop.now,
            "stubborn" in start.command,
        )
        machine = next(machine for machine in self.machines if machine.host is host)
        process.agent = machine.agents
        process.keeper = host.keeper
        what = f"{start.command[0]} {start.command[1:2]} {start.gpu_uuids}"
        self.note(
            f"process of {start.attempt_id} begins on {host.node_id[-2:]}: {what}"
        )
        self.promises.begun(host, process, start)

        def later(delay: float, what: Any, *args: Any) -> asyncio.TimerHandle:
            return self.loop.call_later(delay, what, *args, context=self.life.context)

        host.begin(process, seconds, int(codes[min(turn, len(codes) - 1)]), later)
        if self.fleet:
            self.fleet.begun(host, process, start)
            self.fleet.check_room(process)
        return process

    def save_checkpoint(self, attempt_id: str, number: int) -> wire.CheckpointSaved:
        sha256 = hashlib.sha256(f"{attempt_id} {number}".encode()).hexdigest()
        self.blobs.kept.add(sha256)
        return wire.CheckpointSaved(
            attempt_id, f"ckpt-{number}.pt", sha256, 10, self.wall(), number
        )


class Machine:
    """A host and the life of its agents."""

    def __init__(self, world: World, host: Host) -> None:
        self.world = world
        self.host = host
        self.life: Life | None = None
        self.agent: Agent | None = None
        self.line: Line | None = None
        self.agents = 0
        self.stalled = False

    def start_agent(self) -> None:
        """The keeper starts an agent."""
        self.agents += 1
        self.life = Life("agent")
        self.agent = Agent(self)
        self.life.spawn(self.world.loop, self.agent.run())

    def kill_agent(self) -> None:
        """`kill -9`.

        What ran without a keeper that was there from its start loses its exit status.
        """
        if self.life is None or not self.life.alive:
            return
        self.world.note(f"agent of {self.host.node_id[-2:]} killed")
        self.world.loop.kill(self.life)
        if self.line:
            if self.world.dice.random() < 0.5:
                self.line.break_off()
            else:
                self.line.agent.close()
        for process in self.host.processes.values():
            if process.keeper != self.host.keeper and not self._concluded(process):
                process.exit_lost = True
        down_s = self.world.dice.choice((0.05, 0.5, 8.0))
        self.world.loop.call_later(
            down_s, self.start_agent, context=self.world.life.context
        )

    def dies_here(self) -> bool:
        """Between two lines of the agent's, with nothing awaited."""
        world = self.world
        if world.stormy and world.weather.agent_kill and world.dice.random() < 0.05:
            self.kill_agent()
            return True
        return False

    def kill_keeper(self) -> None:
        """A new one takes its place; of what the old one had to reap nobody sees the
        exit status.
        """
        self.host.keeper += 1
        for process in self.host.processes.values():
            if process.agent != self.agents and not self._concluded(process):
                process.exit_lost = True

    def _concluded(self, process: Process) -> bool:
        entry = self.host.journal.get(process.attempt_id)
        return entry is None or entry.ended is not None

    def cut(self) -> None:
        """The link breaks."""
        if self.line:
            self.line.break_off()

    def server_died(self) -> None:
        """What it wrote may or may not arrive before the link is seen to be dead."""
        if self.line:
            if self.world.dice.random() < 0.5:
                self.line.break_off()
            else:
                self.line.server.close()

    def lose_or_find_gpu(self) -> None:
        """A GPU falls off its bus, or is back."""
        host = self.host
        if host.sick:
            host.sick.clear()
        elif host.gpus:
            host.sick.add(self.world.dice.choice(host.gpus))
        self.tell_gpus()

    def tell_gpus(self) -> None:
        if self.agent and self.life and self.life.alive:
            self.agent.outbox.put(wire.GpusSeen(self.host.gpus_seen()))
