"""The fleet as residency policies see it: GPUs, the models on them, and the tasks that
wait.

A GPU holds residents (model servers) and at most one script worker, as far as its
memory suffices. A model on several GPUs is a gang: it has all of them or none, on one
node, and shares them with nothing. A request goes to a resident of its model, one at a
time; a script gets a worker. All times are seconds of one clock. No policy knows how
long a task will take.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum

from gpuyard.residency.switching import Switch, SwitchTimes

DRIVER_GB = 1.0
"""An empty GPU reports this much less free memory (GB) than its nominal memory."""
# Sums of floats are not exact: five models of 12.8 GB are 80 % of 80 GB.
_SLACK_GB = 1e-6


class Phase(StrEnum):
    """The phase of a resident.

    `asleep`: its server runs without GPU memory; waking is faster than booting.
    """

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
"""The possible next phases. Besides, a server may be gone at any time. From booting to
asleep: a server that is found asleep was never seen ready.
"""


@dataclass(slots=True, eq=False)
class FleetResident:
    """A model on a GPU. `since`: when its phase began. `used_at`: when it last ended a
    task or became ready.

    `draining`: it gets no more requests, because it is about to leave. `other_gpus`:
    the other GPUs of a gang; it is a resident of each, and boots when it has all of
    them.
    """

    model: str
    gpu: "FleetGpu"
    phase: Phase
    since: float
    used_at: float = 0.0
    draining: bool = False
    other_gpus: tuple["FleetGpu", ...] = ()

    @property
    def gpus(self) -> tuple["FleetGpu", ...]:
        """All its GPUs."""
        return (self.gpu, *self.other_gpus)

    @property
    def holds_memory(self) -> bool:
        """True if it holds GPU memory."""
        return self.phase is not Phase.ASLEEP

    @property
    def serves(self) -> bool:
        """True if it takes requests, now or when it has booted."""
        is_loaded = self.phase in (Phase.BOOTING, Phase.READY, Phase.BUSY)
        return is_loaded and not self.draining


@dataclass(slots=True, eq=False)
class FleetGpu:
    """A GPU. `worker`: the script whose worker boots, runs or exits on it. `reserved`:
    it is kept free for a batch or a script of several GPUs. `called_back`: it was lent
    to models meanwhile, and they must leave. `measured_gb`: the free memory that it
    reports, if known. `brain_rank`: 2 for a primary GPU of the brain, 1 for a
    secondary one, else 0. `away`: it is of a machine that has joined, which may be paid
    for by the hour.
    """

    id: str
    memory_gb: float
    residents: dict[str, FleetResident] = field(
        default_factory=dict[str, FleetResident]
    )
    worker: str | None = None
    reserved: bool = False
    called_back: bool = False
    measured_gb: float | None = None
    node: str = ""
    gpu_class: str = ""
    brain_rank: int = 0
    away: bool = False

    def resident(self, model: str) -> FleetResident | None:
        """The resident of this model here, asleep or not; None if there is none."""
        return self.residents.get(model)


@dataclass(slots=True)
class WaitingTask:
    """A request or script that waits since `arrived_at`. `name`: the model or the
    script.
    """

    id: int
    name: str
    arrived_at: float


@dataclass(slots=True)
class Demand:
    """The requests for one model: those that wait, in order; when the newest ones
    arrived; how many were answered, and how many seconds that took.
    """

    waiting: deque[WaitingTask] = field(default_factory=deque[WaitingTask])
    arrivals: deque[float] = field(default_factory=deque[float])
    answered: int = 0
    answering_s: float = 0.0

    def add(self, task: WaitingTask, keep_s: float) -> None:
        """Add a request. Arrivals older than `keep_s` seconds are forgotten."""
        self.waiting.append(task)
        self.arrivals.append(task.arrived_at)
        while self.arrivals[0] < task.arrived_at - keep_s:
            self.arrivals.popleft()

    def note_answer(self, took_s: float) -> None:
        """A request was answered in `took_s` seconds."""
        self.answered += 1
        self.answering_s += took_s

    def mean_s(self, guess_s: float) -> float:
        """The mean seconds for an answer; `guess_s` counts as much as three answers."""
        return (self.answering_s + 3 * guess_s) / (self.answered + 3)

    def rate(self, now: float, window_s: float) -> float:
        """Requests per second in the last `window_s` seconds."""
        count = 0
        for arrived_at in reversed(self.arrivals):
            if arrived_at < now - window_s:
                break
            count += 1
        return count / window_s


@dataclass(slots=True)
class Fleet:
    """All GPUs and tasks.

    - `memory_gb`: what each model or script needs on a GPU.
    - `switching`: how long loading and unloading take.
    - `can_sleep`: the models that can sleep.
    - `pinned_gpus`: GPUs whose residents are never unloaded.
    - `brain_models`: the models that go to the brain's GPUs first.
    - `prefer_idle`: idle models make room for scripts before busy ones.
    - `demand`: the requests for each model.
    - `scripts`: the scripts that wait, in order.
    - `last_script_ended_at`: when a script last ended.
    - `scripts_ended`, `scripts_run_s`: how many scripts ended, and how many seconds
      they ran in all.
    - `allowed_gpus`: the GPUs that suit a script or model; one without an entry may use
      any.
    - `exclusive_scripts`: a script does not share its GPU; only models share GPUs.
    - `shared_part`: how much of a GPU's memory models may take that share it (0 to 1).
      A model that is alone there may take all.
    - `gang_sizes`: the models that need several GPUs, and how many.
    - `warm_nodes`: the nodes on which a model was loaded before.
    - `expected_demand`: from when to when a model is likely to be requested, by the
      demand of earlier days.
    - `closed_for_batch`: an exclusive batch runs, so requests wait and no model is
      loaded for them.
    """

    gpus: dict[str, FleetGpu]
    memory_gb: Mapping[str, float]
    switching: SwitchTimes
    can_sleep: frozenset[str] = frozenset()
    pinned_gpus: frozenset[str] = frozenset()
    brain_models: frozenset[str] = frozenset()
    prefer_idle: bool = True

    demand: dict[str, Demand] = field(default_factory=dict[str, Demand])
    scripts: deque[WaitingTask] = field(default_factory=deque[WaitingTask])
    last_script_ended_at: float = 0.0

    scripts_ended: int = 0
    scripts_run_s: float = 0.0
    allowed_gpus: Mapping[str, frozenset[str]] = field(
        default_factory=dict[str, frozenset[str]]
    )

    exclusive_scripts: bool = False
    shared_part: float = 1.0

    gang_sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    warm_nodes: Mapping[str, Set[str]] = field(default_factory=dict[str, Set[str]])
    expected_demand: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    closed_for_batch: bool = False

    def residents(self, model: str | None = None) -> Iterator[FleetResident]:
        """All residents, or those of one model. A gang counts once."""
        for gpu in self.gpus.values():
            for name, resident in gpu.residents.items():
                is_wanted = model is None or name == model
                if is_wanted and resident.gpu is gpu:
                    yield resident

    def start_loading(
        self, model: str, gpus: Sequence[str], now: float
    ) -> FleetResident:
        """The model starts to boot on these GPUs, or to wake if it sleeps there."""
        first, *others = (self.gpus[gpu] for gpu in gpus)
        resident = first.resident(model) or FleetResident(
            model, first, Phase.BOOTING, now, other_gpus=tuple(others)
        )
        resident.phase = Phase.BOOTING
        resident.since = now
        resident.draining = False
        for gpu in resident.gpus:
            gpu.residents[model] = resident
        return resident

    def remove(self, resident: FleetResident) -> None:
        """Remove a resident whose server is gone."""
        for gpu in resident.gpus:
            gpu.residents.pop(resident.model, None)

    def serving(self, model: str) -> list[FleetResident]:
        """The residents that take requests for the model, now or when they have
        booted.
        """
        return [resident for resident in self.residents(model) if resident.serves]

    def ready(self) -> list[FleetResident]:
        """The residents that are loaded and idle."""
        return [
            resident for resident in self.residents() if resident.phase is Phase.READY
        ]

    def evictable(self) -> list[FleetResident]:
        """The residents that scripts may displace first: the idle ones, and unless
        these are preferred, the busy ones, too.
        """
        if self.prefer_idle:
            return self.ready()
        return [
            resident
            for resident in self.residents()
            if resident.phase is Phase.READY
            or (resident.phase is Phase.BUSY and not resident.draining)
        ]

    def free_gb(self, gpu: FleetGpu) -> float:
        """The free memory of the GPU: what is not booked, and no more than it
        reports.
        """
        free = gpu.memory_gb - self._booked_gb(gpu)
        if gpu.measured_gb is None:
            return free
        return min(free, gpu.measured_gb + DRIVER_GB)

    def room_gb(self, gpu: FleetGpu, leaving: FleetResident | None = None) -> float:
        """The free memory of the GPU for one more model, after `leaving` has left it:
        less than is free if it would share the GPU with other models.
        """
        gained = self.memory_gb[leaving.model] if leaving else 0.0
        free = self.free_gb(gpu) + gained
        if all(holder is leaving for holder in self.holders(gpu)):
            return free
        booked = self._booked_gb(gpu) - gained
        return min(free, gpu.memory_gb * self.shared_part - booked + _SLACK_GB)

    def _booked_gb(self, gpu: FleetGpu) -> float:
        booked = sum(self.memory_gb[holder.model] for holder in self.holders(gpu))
        return booked + (self.memory_gb[gpu.worker] if gpu.worker else 0.0)

    def holders(self, gpu: FleetGpu) -> list[FleetResident]:
        """The residents that hold memory of the GPU."""
        return [
            resident for resident in gpu.residents.values() if resident.holds_memory
        ]

    def may_use(self, gpu: FleetGpu, name: str) -> bool:
        """True if the GPU suits the model or script."""
        return name not in self.allowed_gpus or gpu.id in self.allowed_gpus[name]

    def role_order(self, gpu: FleetGpu, name: str) -> int:
        """Sorts GPUs by how well their role suits the model or script: the brain's
        models go to its GPUs first, and everything else goes there last.
        """
        return -gpu.brain_rank if name in self.brain_models else gpu.brain_rank

    def has_room(self, gpu: FleetGpu, name: str) -> bool:
        """True if a model or a script fits there now. A GPU has at most one worker."""
        is_script = name not in self.demand
        if gpu.reserved or not self.may_use(gpu, name):
            return False
        if gpu.worker and (self.exclusive_scripts or is_script):
            return False
        holders = self.holders(gpu)
        if self.exclusive_scripts and is_script:
            return not holders and self.memory_gb[name] <= gpu.memory_gb
        has_gang = any(holder.model in self.gang_sizes for holder in holders)
        if holders and (name in self.gang_sizes or has_gang):
            return False
        room_gb = self.free_gb(gpu) if is_script else self.room_gb(gpu)
        return self.memory_gb[name] <= room_gb

    def script_kinds(self) -> Iterator[WaitingTask]:
        """The first waiting script of each kind, in order. One that fits nowhere must
        not hide another kind, which may fit somewhere.
        """
        seen = set[str]()
        for task in self.scripts:
            if task.name not in seen:
                seen.add(task.name)
                yield task

    def count_scripts_for(self, gpus: Sequence[FleetGpu]) -> int:
        """How many waiting scripts could use one of these GPUs if it were free."""
        counts = Counter(task.name for task in self.scripts)
        usable = {
            name
            for gpu in gpus
            for name in counts
            if self.may_use(gpu, name) and self.memory_gb[name] <= gpu.memory_gb
        }
        return sum(counts[name] for name in usable)

    def take_script(self, gpu: str) -> WaitingTask:
        """Take the first waiting script that has room on the GPU."""
        for position, task in enumerate(self.scripts):
            if self.has_room(self.gpus[gpu], task.name):
                del self.scripts[position]
                return task
        raise LookupError(f"no script that waits has room on {gpu}")

    def gpus_with_room(self, name: str) -> list[FleetGpu]:
        """The GPUs on which the model or script fits now."""
        return [gpu for gpu in self.gpus.values() if self.has_room(gpu, name)]

    def count_leaving(self) -> int:
        """How many residents are leaving: they unload, or drain while busy."""
        count = 0
        for resident in self.residents():
            is_draining = resident.draining and resident.phase is Phase.BUSY
            if resident.phase is Phase.UNLOADING or is_draining:
                count += 1
        return count

    def reload_s(self, model: str) -> float:
        """How long it takes to load the model again after it has left a GPU."""
        move = Switch.WAKE if model in self.can_sleep else Switch.REBOOT
        return self.switching.seconds(model, move)

    def load_s(self, model: str, gpu: FleetGpu) -> float:
        """How long it takes to load the model on the GPU."""
        if gpu.resident(model):
            move = Switch.WAKE
        elif gpu.node in self.warm_nodes.get(model, ()):
            move = Switch.REBOOT
        else:
            move = Switch.BOOT
        return self.switching.seconds(model, move, gpu.gpu_class)

    def script_mean_s(self, guess_s: float) -> float:
        """The mean seconds of a script; `guess_s` counts as much as three scripts."""
        return (self.scripts_run_s + 3 * guess_s) / (self.scripts_ended + 3)
