"""A workload of model requests, scripts and batches on a few GPUs, played in virtual time through the real policies.

How long a task takes is known to the simulation alone; the policy sees who has arrived and what has ended. Items of a
batch are the exception: theirs count as probed from the media. A request is answered by a ready resident of its model,
one at a time; latencies count from arrival to end.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuyard.scheduler.batches import in_turn, longest_first, serial_tails
from gpuyard.scheduler.fleet import Demand, Fleet, Gpu, Phase, Resident, Task
from gpuyard.scheduler.habits import Habits
from gpuyard.scheduler.rent import Cost
from gpuyard.scheduler.residency import Action, Drain, Load, Lru, Residency, Run, Static, Threshold, Unload
from gpuyard.scheduler.simulate import percentile
from gpuyard.scheduler.switching import Move, Switching

POLICIES: Mapping[str, Callable[[], Residency]] = {
    "cost": Cost,
    "threshold": Threshold,
    "round_robin": Threshold,
    "lru": Lru,
    "static": Static,
}
"""By name. `round_robin` is `threshold` with the seed document's split of batches."""
# The rate of requests is asked over minutes; older arrivals are forgotten.
_KEPT_S = 3600.0
# Who still waits so long after the last happening waits for ever.
_GIVEN_UP_S = 100_000.0


@dataclass(frozen=True, slots=True)
class Model:
    """Seconds to boot, wake and unload, GB on the GPU; `wake_s` None for one that cannot sleep."""

    boot_s: float
    wake_s: float | None
    unload_s: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Script:
    """Seconds until its worker is up, and until it has left; GB on the GPU."""

    boot_s: float
    exit_s: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request for a model, or a script to run, and how long it takes."""

    at: float
    name: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class BatchArrival:
    """Items of one script that come at once. `exclusive`: all GPUs are given to it, and models come back after it."""

    at: float
    script: str
    items: tuple[float, ...]
    exclusive: bool
    reload: bool


@dataclass(frozen=True, slots=True)
class Workload:
    """What there is and what comes; `initial` says which model is ready on which GPU at the start."""

    gpus: Mapping[str, float]
    models: Mapping[str, Model]
    scripts: Mapping[str, Script]
    arrivals: Sequence[Arrival] = ()
    batches: Sequence[BatchArrival] = ()
    initial: Mapping[str, str] = field(default_factory=dict[str, str])
    serial_loads: bool = False


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    policy: str
    llm: list[float] = field(default_factory=list[float])
    script: list[float] = field(default_factory=list[float])
    batches: list[float] = field(default_factory=list[float])
    loads: int = 0
    switching_s: float = 0.0
    makespan_s: float = 0.0
    unfinished: int = 0

    def summary(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {"policy": self.policy, "llm": _summary(self.llm), "script": _summary(self.script),
                "batches": [{"makespan_s": makespan} for makespan in self.batches], "loads": self.loads,
                "switch_gpu_h": self.switching_s / 3600, "makespan_s": self.makespan_s,
                "unfinished": self.unfinished}  # fmt: skip


def _summary(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    mean = math.fsum(ordered) / len(ordered) if ordered else 0.0
    return {"count": len(ordered), "p50_s": percentile(ordered, 50), "p95_s": percentile(ordered, 95),
            "mean_s": mean, "max_s": ordered[-1] if ordered else 0.0}  # fmt: skip


def play(workload: Workload, policy: str) -> Outcome:
    """Play `workload` under the policy of this name."""
    return _Play(workload, policy).run()


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch under way. `plan`: by GPU, the items it still has to run, the next one last."""

    arrival: BatchArrival
    left: int
    plan: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    models: dict[str, str] = field(default_factory=dict[str, str])
    coming_back: int = 0


class _Play:
    """Events in order of time; after each, requests are handed out and the policy acts until it is content."""

    def __init__(self, workload: Workload, policy: str) -> None:
        self._work, self._policy, self._name = workload, POLICIES[policy](), policy
        self._now, self._number = 0.0, 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._durations: dict[int, float] = {}
        self._running: list[_Batch] = []
        self._pending: list[_Batch] = []
        self._loading, self._loads_in_line = 0, list[tuple[str, Gpu]]()
        self._out = Outcome(policy)
        self._habits = Habits()
        self._open = 0
        self._fleet = self._make_fleet()

    def _make_fleet(self) -> Fleet:
        work = self._work
        times: dict[tuple[str, Move], float] = {}
        for name, model in work.models.items():
            times[name, Move.BOOT], times[name, Move.UNLOAD] = model.boot_s, model.unload_s
            times[name, Move.WAKE] = model.boot_s if model.wake_s is None else model.wake_s
        for name, script in work.scripts.items():
            times[name, Move.BOOT], times[name, Move.EXIT] = script.boot_s, script.exit_s
        memory = {name: needs.memory_gb for table in (work.models, work.scripts) for name, needs in table.items()}
        gpus = {uuid: Gpu(uuid, memory_gb) for uuid, memory_gb in work.gpus.items()}
        for uuid, model in work.initial.items():
            gpus[uuid].residents[model] = Resident(model, gpus[uuid], Phase.READY, 0.0)
        sleepers = frozenset(name for name, model in work.models.items() if model.wake_s is not None)
        return Fleet(gpus, memory, Switching(times), sleepers, demand={name: Demand() for name in work.models})

    # --- time ---

    def run(self) -> Outcome:
        """Step from one happening to the next until none is left."""
        for arrival in self._work.arrivals:
            self._at(arrival.at, self._arrive, arrival)
        for batch in self._work.batches:
            self._at(batch.at, self._batch_arrives, batch)
        first, last = (self._events[0][0] if self._events else 0.0), 0.0
        wake_at = math.inf
        while self._events or (self._open and wake_at < last + _GIVEN_UP_S):
            self._now = max(self._now, min(self._events[0][0] if self._events else math.inf, wake_at))
            while self._events and self._events[0][0] <= self._now:
                _, _, happens, words = heapq.heappop(self._events)
                happens(*words)
                last = self._now
            self._act()
            wake_at = self._policy.wake_at
        self._out.makespan_s, self._out.unfinished = last - first, self._open
        return self._out

    def _at(self, at: float, happens: Callable[..., None], *words: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (at, self._number, happens, words))

    def _switches(self, seconds: float, then: Callable[..., None], *words: Any) -> None:
        self._out.switching_s += seconds
        self._at(self._now + seconds, then, *words)

    def _act(self) -> None:
        while True:
            self._answer()
            for batch in self._running:
                self._clear_the_way(batch)
            next_times = {model: self._habits.expected(model, self._now) for model in self._fleet.demand}
            self._fleet.expected = {model: times for model, times in next_times.items() if times}
            action = self._policy.act(self._fleet, self._now)
            if action is None:
                return
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Load(model, gpus):
                self._load(model, self._fleet.gpus[gpus[0]])
            case Unload(model, gpu):
                self._unload(self._fleet.gpus[gpu].residents[model])
            case Drain(model, gpu):
                self._fleet.gpus[gpu].residents[model].draining = True
            case Run(gpu):
                task = self._fleet.scripts.popleft()
                self._run_script(self._fleet.gpus[gpu], task)

    # --- requests and scripts ---

    def _arrive(self, arrival: Arrival) -> None:
        self._open += 1
        task = Task(self._number, arrival.name, self._now)
        self._number += 1
        self._durations[task.id] = arrival.duration_s
        if arrival.name in self._work.models:
            self._fleet.demand[arrival.name].arrived(task, _KEPT_S)
            self._habits.asked(arrival.name, self._now)
        else:
            self._fleet.scripts.append(task)

    def _answer(self) -> None:
        """Hand waiting requests to ready residents, unless an exclusive batch runs."""
        if self._fleet.closed:
            return
        for resident in self._fleet.ready():
            waiting = self._fleet.demand[resident.model].waiting
            if waiting and not resident.draining:
                task = waiting.popleft()
                resident.phase, resident.since = Phase.BUSY, self._now
                self._at(self._now + self._durations[task.id], self._answered, resident, task)

    def _answered(self, resident: Resident, task: Task) -> None:
        resident.phase, resident.since, resident.used_at = Phase.READY, self._now, self._now
        self._fleet.demand[task.name].ended(self._durations.pop(task.id))
        self._out.llm.append(self._now - task.arrived_at)
        self._open -= 1

    def _run_script(self, gpu: Gpu, task: Task) -> None:
        gpu.worker = task.name
        boot_s = self._fleet.switching.seconds(task.name, Move.BOOT)
        self._switches(boot_s, lambda: None)
        self._at(self._now + boot_s + self._durations[task.id], self._script_ended, gpu, task)

    def _script_ended(self, gpu: Gpu, task: Task) -> None:
        self._fleet.scripts_ended += 1
        self._fleet.scripts_moved_at = self._now
        self._fleet.scripts_took_s += self._durations.pop(task.id)
        self._out.script.append(self._now - task.arrived_at)
        self._open -= 1
        self._switches(self._fleet.switching.seconds(task.name, Move.EXIT), self._worker_left, gpu)

    def _worker_left(self, gpu: Gpu) -> None:
        gpu.worker = None

    # --- models ---

    def _load(self, model: str, gpu: Gpu) -> None:
        asleep = gpu.resident(model) is not None
        resident = self._fleet.settle(model, (gpu.id,), self._now)
        if not asleep:
            self._out.loads += 1
            if self._work.serial_loads and self._loading:
                self._loads_in_line.append((model, gpu))
                return
            self._loading += 1
        self._switches(self._fleet.switching.seconds(model, Move.WAKE if asleep else Move.BOOT),
                       self._loaded, resident, not asleep)  # fmt: skip

    def _loaded(self, resident: Resident, booted: bool) -> None:
        resident.phase, resident.since, resident.used_at = Phase.READY, self._now, self._now
        if booted:
            self._loading -= 1
        if self._loads_in_line and not self._loading:
            model, gpu = self._loads_in_line.pop(0)
            self._loading += 1
            there = gpu.residents[model]
            self._switches(self._fleet.switching.seconds(model, Move.BOOT), self._loaded, there, True)
        for batch in list(self._running):
            if batch.models.get(resident.gpu.id) == resident.model:
                self._came_back(batch)

    def _unload(self, resident: Resident) -> None:
        resident.phase, resident.since = Phase.UNLOADING, self._now
        self._switches(self._fleet.switching.seconds(resident.model, Move.UNLOAD), self._unloaded, resident)

    def _unloaded(self, resident: Resident) -> None:
        resident.draining = False
        if resident.model in self._fleet.sleepers:
            resident.phase, resident.since = Phase.ASLEEP, self._now
        else:
            self._fleet.remove(resident)

    # --- batches ---

    def _batch_arrives(self, arrival: BatchArrival) -> None:
        if not arrival.exclusive:
            for duration in arrival.items:
                self._arrive(Arrival(self._now, arrival.script, duration))
            return
        self._open += len(arrival.items)
        self._pending.append(_Batch(arrival, len(arrival.items)))
        self._begin_batch()

    def _begin_batch(self) -> None:
        """One exclusive batch at a time: requests wait, and every GPU whose models may leave is given to it."""
        if self._running or not self._pending:
            return
        batch = self._pending.pop(0)
        self._running.append(batch)
        self._fleet.closed = True
        gpus = [gpu for gpu in self._fleet.gpus.values() if gpu.id not in self._fleet.pinned]
        for gpu in gpus:
            gpu.reserved = True
            for resident in gpu.residents.values():
                if resident.serves:
                    batch.models[gpu.id] = resident.model
        self._plan(batch, gpus)

    def _plan(self, batch: _Batch, gpus: Sequence[Gpu]) -> None:
        """Which GPU runs what; a GPU for which nothing is left keeps its model."""
        count = len(batch.arrival.items)
        plan = in_turn(count, len(gpus)) if self._name == "round_robin" else self._longest_first(batch, gpus)
        batch.plan = {gpu.id: list(reversed(mine)) for gpu, mine in zip(gpus, plan, strict=True) if mine}
        for gpu in gpus:
            if gpu.id not in batch.plan:
                gpu.reserved = False
                batch.models.pop(gpu.id, None)

    def _longest_first(self, batch: _Batch, gpus: Sequence[Gpu]) -> list[list[int]]:
        """The quickest of the plans for some or all of the GPUs: for a few items, not each is worth a reload."""
        items, best, least = batch.arrival.items, list[list[int]](), math.inf
        for used in range(1, len(gpus) + 1):
            tails = self._tails(batch, gpus[:used])
            plan = longest_first(items, [0.0] * used, tails)
            ends = [
                math.fsum(items[item] for item in mine) + tail for mine, tail in zip(plan, tails, strict=True) if mine
            ]
            if max(ends, default=0.0) < least:
                best, least = plan, max(ends, default=0.0)
        return best + [[] for _ in range(len(gpus) - len(best))]

    def _tails(self, batch: _Batch, gpus: Sequence[Gpu]) -> list[float]:
        """For how long each GPU is needed after its last item: its model comes back, in its turn where it boots."""
        back = [batch.models.get(gpu.id) if batch.arrival.reload else None for gpu in gpus]
        loads = [self._fleet.reload_s(model) if model else 0.0 for model in back]
        in_line = [place for place, model in enumerate(back) if model and model not in self._fleet.sleepers]
        if self._work.serial_loads and in_line:
            turns = serial_tails(len(in_line), max(loads[place] for place in in_line))
            for place, tail in zip(in_line, turns, strict=True):
                loads[place] = tail
        return loads

    def _clear_the_way(self, batch: _Batch) -> None:
        """Unload what has nothing to do on the batch's GPUs, and start its worker where there is room."""
        for gpu_id, mine in batch.plan.items():
            gpu = self._fleet.gpus[gpu_id]
            if gpu.worker or not mine:
                continue
            for resident in list(gpu.residents.values()):
                if resident.phase is Phase.READY:
                    self._unload(resident)
            if not any(resident.holds_memory for resident in gpu.residents.values()):
                gpu.worker = batch.arrival.script
                self._switches(self._fleet.switching.seconds(gpu.worker, Move.BOOT), self._next_item, batch, gpu)

    def _next_item(self, batch: _Batch, gpu: Gpu) -> None:
        if batch.plan[gpu.id]:
            item = batch.plan[gpu.id].pop()
            self._at(self._now + batch.arrival.items[item], self._item_ended, batch, gpu)
        else:
            self._switches(self._fleet.switching.seconds(batch.arrival.script, Move.EXIT), self._dry, batch, gpu)

    def _item_ended(self, batch: _Batch, gpu: Gpu) -> None:
        batch.left -= 1
        self._open -= 1
        self._out.script.append(self._now - batch.arrival.at)
        self._next_item(batch, gpu)

    def _dry(self, batch: _Batch, gpu: Gpu) -> None:
        """The batch has nothing more for this GPU: its model comes back."""
        gpu.worker, gpu.reserved = None, False
        model = batch.models.get(gpu.id)
        if model and batch.arrival.reload:
            self._load(model, gpu)
        elif model:
            del batch.models[gpu.id]
        self._maybe_over(batch)

    def _came_back(self, batch: _Batch) -> None:
        batch.coming_back += 1
        self._maybe_over(batch)

    def _maybe_over(self, batch: _Batch) -> None:
        if batch.left or (batch.arrival.reload and batch.coming_back < len(batch.models)):
            return
        if any(self._fleet.gpus[gpu].reserved for gpu in batch.plan):
            return
        self._running.remove(batch)
        self._out.batches.append(self._now - batch.arrival.at)
        self._fleet.closed = False
        self._begin_batch()
