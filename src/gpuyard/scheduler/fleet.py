"""The fleet: GPUs, the models resident on them and who waits for both, as the residency policies see them.

A GPU holds residents (model servers) and at most one script worker, as far as its memory goes. A model of several GPUs
is a gang: it has all of them or none, on one node and to itself. Tasks of class `llm` go to a resident of their model,
one at a time; tasks of class `script` to a worker of their script. Times are seconds of
one clock; nothing here reads how long a task will take.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile

from gpuyard.scheduler.switching import Move, Switching

DRIVER_GB = 1.0
"""A GPU counts with its nominal memory, and shows somewhat less when it is empty."""


class Phase(StrEnum):
    """Where a resident stands. `asleep`: its server lives and holds no GPU memory; it wakes faster than it boots."""

    BOOTING = "booting"
    READY = "ready"
    BUSY = "busy"
    UNLOADING = "unloading"
    ASLEEP = "asleep"


PHASE_MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.BOOTING: frozenset({Phase.READY, Phase.ASLEEP, Phase.UNLOADING}),
    Phase.READY: frozenset({Phase.BUSY, Phase.UNLOADING}),
    Phase.BUSY: frozenset({Phase.READY, Phase.UNLOADING}),
    Phase.UNLOADING: frozenset({Phase.ASLEEP}),
    Phase.ASLEEP: frozenset({Phase.BOOTING, Phase.UNLOADING}),
}
"""What may become of a resident; besides, its server may be gone at any time. A server found asleep never was ready."""


@dataclass(slots=True, eq=False)
class Resident:
    """A model on a GPU. `since`: when its phase began; `used_at`: when it last ended a task or became ready.

    `draining`: it is given no more requests, since it is to leave. `others`: the rest of its GPUs; it stands on each,
    and boots when all are its own.
    """

    model: str
    gpu: "Gpu"
    phase: Phase
    since: float
    used_at: float = 0.0
    draining: bool = False
    others: tuple["Gpu", ...] = ()

    @property
    def gpus(self) -> tuple["Gpu", ...]:
        """All it is on."""
        return (self.gpu, *self.others)

    @property
    def holds_memory(self) -> bool:
        """Asleep it holds none of the GPU's."""
        return self.phase is not Phase.ASLEEP

    @property
    def serves(self) -> bool:
        """It answers, or will when it has booted."""
        return self.phase in (Phase.BOOTING, Phase.READY, Phase.BUSY) and not self.draining


@dataclass(slots=True, eq=False)
class Gpu:
    """A GPU. `worker`: the script whose worker boots, runs or leaves on it; `reserved`: kept free for a batch.

    `kind`: its class; `measured_gb`: so much of its memory is free by its own account, where it can tell.
    """

    id: str
    memory_gb: float
    residents: dict[str, Resident] = field(default_factory=dict[str, Resident])
    worker: str | None = None
    reserved: bool = False
    measured_gb: float | None = None
    node: str = ""
    kind: str = ""

    def resident(self, model: str) -> Resident | None:
        """The model on this GPU, asleep or not."""
        return self.residents.get(model)


@dataclass(slots=True)
class Task:
    """Somebody waits for a model or a script since `arrived_at`."""

    id: int
    name: str
    arrived_at: float


@dataclass(slots=True)
class Demand:
    """What is asked of one model: who waits, in order; when the newest requests came; how long answers took."""

    waiting: deque[Task] = field(default_factory=deque[Task])
    arrivals: deque[float] = field(default_factory=deque[float])
    answered: int = 0
    answering_s: float = 0.0

    def arrived(self, task: Task, keep_s: float) -> None:
        """One more request; those before the last `keep_s` seconds are forgotten."""
        self.waiting.append(task)
        self.arrivals.append(task.arrived_at)
        while self.arrivals[0] < task.arrived_at - keep_s:
            self.arrivals.popleft()

    def ended(self, took_s: float) -> None:
        """A request was answered after so many seconds of service."""
        self.answered += 1
        self.answering_s += took_s

    def mean_s(self, guess_s: float) -> float:
        """How long an answer takes; `guess_s` counts as much as three of them."""
        return (self.answering_s + 3 * guess_s) / (self.answered + 3)

    def rate(self, now: float, window_s: float) -> float:
        """Requests per second over the last `window_s` seconds."""
        return sum(1 for _ in takewhile(lambda at: at >= now - window_s, reversed(self.arrivals))) / window_s


@dataclass(slots=True)
class Fleet:
    """All of it. `memory_gb` says what a model or a script needs on a GPU; `switching` how long moving them takes.

    `gangs`: the models that need several GPUs, and how many. `warm`: the nodes on which a model was loaded before.
    `expected`: from when until when a model is likely to be asked for, by what was seen on other days.
    """

    gpus: dict[str, Gpu]
    memory_gb: Mapping[str, float]
    switching: Switching
    sleepers: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    """GPUs whose residents never give way: those of a brain."""
    demand: dict[str, Demand] = field(default_factory=dict[str, Demand])
    scripts: deque[Task] = field(default_factory=deque[Task])
    scripts_moved_at: float = 0.0
    """When one last ended: the line moves."""
    scripts_ended: int = 0
    scripts_took_s: float = 0.0
    only: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """By script, the GPUs that will do; any, where it is not named."""
    whole: bool = False
    """A script has its GPU to itself; only models share one."""
    gangs: Mapping[str, int] = field(default_factory=dict[str, int])
    warm: Mapping[str, Set[str]] = field(default_factory=dict[str, Set[str]])
    expected: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    closed: bool = False
    """An exclusive batch runs: requests wait, and nothing is loaded for them."""

    def residents(self, model: str | None = None) -> Iterator[Resident]:
        """All residents, or those of one model."""
        for gpu in self.gpus.values():
            there = gpu.residents.values() if model is None else filter(None, [gpu.resident(model)])
            yield from (resident for resident in there if resident.gpu is gpu)

    def settle(self, model: str, gpus: Sequence[str], now: float) -> Resident:
        """The model begins to boot on these GPUs, or to wake where it sleeps."""
        first, *others = (self.gpus[gpu] for gpu in gpus)
        resident = first.resident(model) or Resident(model, first, Phase.BOOTING, now, others=tuple(others))
        resident.phase, resident.since, resident.draining = Phase.BOOTING, now, False
        for gpu in resident.gpus:
            gpu.residents[model] = resident
        return resident

    def remove(self, resident: Resident) -> None:
        """Its server is gone."""
        for gpu in resident.gpus:
            gpu.residents.pop(resident.model, None)

    def serving(self, model: str) -> list[Resident]:
        """Those that answer requests for the model, or will."""
        return [resident for resident in self.residents(model) if resident.serves]

    def ready(self) -> list[Resident]:
        """Those with nothing to do."""
        return [resident for resident in self.residents() if resident.phase is Phase.READY]

    def free_gb(self, gpu: Gpu) -> float:
        """What nobody holds of the GPU's memory, by what is booked and by what was measured."""
        held = sum(self.memory_gb[r.model] for r in gpu.residents.values() if r.holds_memory)
        free = gpu.memory_gb - held - (self.memory_gb[gpu.worker] if gpu.worker else 0.0)
        return free if gpu.measured_gb is None else min(free, gpu.measured_gb + DRIVER_GB)

    def holders(self, gpu: Gpu) -> list[Resident]:
        """The models that hold memory there."""
        return [resident for resident in gpu.residents.values() if resident.holds_memory]

    def will_do(self, gpu: Gpu, name: str) -> bool:
        """Whether the GPU is one of those that the script asks for."""
        return name not in self.only or gpu.id in self.only[name]

    def has_room(self, gpu: Gpu, name: str) -> bool:
        """Whether a model or a script fits there now. A second worker never does."""
        script = name not in self.demand
        if gpu.reserved or not self.will_do(gpu, name) or (gpu.worker and (self.whole or script)):
            return False
        if self.whole and script:
            return not self.holders(gpu) and self.memory_gb[name] <= gpu.memory_gb
        if self.holders(gpu) and (name in self.gangs or any(r.model in self.gangs for r in self.holders(gpu))):
            return False
        return self.memory_gb[name] <= self.free_gb(gpu)

    def roomy(self, name: str) -> list[Gpu]:
        """The GPUs on which the model or script fits now."""
        return [gpu for gpu in self.gpus.values() if self.has_room(gpu, name)]

    def leaving(self) -> int:
        """How many residents are on their way out: that many need not be asked to leave."""
        return sum(1 for r in self.residents() if r.phase is Phase.UNLOADING or (r.draining and r.phase is Phase.BUSY))

    def reload_s(self, model: str) -> float:
        """How long the model takes to be back, once it has left a GPU."""
        return self.switching.seconds(model, Move.WAKE if model in self.sleepers else Move.REBOOT)

    def load_s(self, model: str, gpu: Gpu) -> float:
        """How long the model takes until it is ready there."""
        warm = gpu.node in self.warm.get(model, ())
        move = Move.WAKE if gpu.resident(model) else Move.REBOOT if warm else Move.BOOT
        return self.switching.seconds(model, move, gpu.kind)

    def script_mean_s(self, guess_s: float) -> float:
        """How long a script runs; `guess_s` counts as much as three of them."""
        return (self.scripts_took_s + 3 * guess_s) / (self.scripts_ended + 3)
