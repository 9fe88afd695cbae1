"""Simulation: plays a workload through the residency policies in virtual time.

Only the simulation knows how long a task takes; the policies see what has arrived and
ended. The durations of a batch's items are known, as if probed from the media. A
resident answers one request at a time. Latencies count from arrival to end.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuyard.residency.cost_policy import CostPolicy
from gpuyard.residency.demand_forecast import DemandForecast
from gpuyard.residency.fleet import (
    Demand,
    Fleet,
    FleetGpu,
    FleetResident,
    Phase,
    WaitingTask,
)
from gpuyard.residency.item_assignment import longest_first, round_robin, serial_tails
from gpuyard.residency.policies import (
    Action,
    DrainResident,
    LoadModel,
    LruPolicy,
    ResidencyPolicy,
    RunScript,
    ThresholdPolicy,
    UnloadModel,
)
from gpuyard.residency.static_policy import StaticPolicy
from gpuyard.residency.switching import Switch, SwitchTimes
from gpuyard.residency.workload import (
    Arrival,
    BatchArrival,
    Workload,
    WorkloadResult,
)

POLICIES: Mapping[str, Callable[[], ResidencyPolicy]] = {
    "cost": CostPolicy,
    "threshold": ThresholdPolicy,
    "round_robin": ThresholdPolicy,
    "lru": LruPolicy,
    "static": StaticPolicy,
}
"""By name. `round_robin` is `threshold` with the batches of the seed document."""
# The policies use the rate of requests over minutes; older arrivals are forgotten.
_KEPT_S = 3600.0
# Tasks that still wait so long after the last event are never served.
_GIVEN_UP_S = 100_000.0


def play(workload: Workload, policy: str) -> WorkloadResult:
    """Play `workload` under the policy of this name."""
    return _Simulator(workload, policy).run()


@dataclass(slots=True, eq=False)
class _SimulatedBatch:
    """An exclusive batch. `items_left`: how many items have not ended. `plan`: the
    items that each GPU still has to run, the next one last. `models`: the model that
    was on each GPU before. `reloaded`: how many of these are loaded again.
    """

    arrival: BatchArrival
    items_left: int
    plan: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    models: dict[str, str] = field(default_factory=dict[str, str])
    reloaded: int = 0


class _Simulator:
    """Handles events in the order of their times. After each, idle residents get
    requests, and the policy acts until it has no action.
    """

    def __init__(self, workload: Workload, policy: str) -> None:
        self._workload = workload
        self._policy = POLICIES[policy]()
        self._policy_name = policy
        self._now = 0.0
        # Numbers tasks, and events so that those of one moment keep their order.
        self._number = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        # The duration of each task that has not ended.
        self._durations: dict[int, float] = {}
        self._running: list[_SimulatedBatch] = []
        self._pending: list[_SimulatedBatch] = []
        self._booting = 0
        self._boots_waiting = list[tuple[str, FleetGpu]]()
        self._result = WorkloadResult(policy)
        self._forecast = DemandForecast()
        # How many tasks and items have not ended.
        self._unfinished = 0
        self._fleet = self._make_fleet()

    def _make_fleet(self) -> Fleet:
        workload = self._workload
        times: dict[tuple[str, Switch], float] = {}
        memory_gb: dict[str, float] = {}
        can_sleep = set[str]()
        for name, model in workload.models.items():
            memory_gb[name] = model.memory_gb
            times[name, Switch.BOOT] = model.boot_s
            times[name, Switch.UNLOAD] = model.unload_s
            times[name, Switch.WAKE] = model.boot_s
            if model.wake_s is not None:
                times[name, Switch.WAKE] = model.wake_s
                can_sleep.add(name)
        for name, script in workload.scripts.items():
            memory_gb[name] = script.memory_gb
            times[name, Switch.BOOT] = script.boot_s
            times[name, Switch.EXIT] = script.exit_s
        gpus = {uuid: FleetGpu(uuid, total) for uuid, total in workload.gpus.items()}
        for uuid, model in workload.initial.items():
            resident = FleetResident(model, gpus[uuid], Phase.READY, 0.0)
            gpus[uuid].residents[model] = resident
        return Fleet(
            gpus,
            memory_gb,
            SwitchTimes(times),
            frozenset(can_sleep),
            demand={name: Demand() for name in workload.models},
        )

    # --- time ---

    def run(self) -> WorkloadResult:
        """Play until there are no events, and no waiting task can be served."""
        for arrival in self._workload.arrivals:
            self._at(arrival.at, self._arrive, arrival)
        for batch in self._workload.batches:
            self._at(batch.at, self._batch_arrives, batch)
        first = self._events[0][0] if self._events else 0.0
        last = 0.0
        wake_at = math.inf
        while self._events or (self._unfinished and wake_at < last + _GIVEN_UP_S):
            next_event = self._events[0][0] if self._events else math.inf
            self._now = max(self._now, min(next_event, wake_at))
            while self._events and self._events[0][0] <= self._now:
                _, _, handle, arguments = heapq.heappop(self._events)
                handle(*arguments)
                last = self._now
            self._act()
            wake_at = self._policy.wake_at
        self._result.makespan_s = last - first
        self._result.unfinished = self._unfinished
        return self._result

    def _at(self, at: float, handle: Callable[..., None], *arguments: Any) -> None:
        """Call `handle(*arguments)` at this time."""
        self._number += 1
        heapq.heappush(self._events, (at, self._number, handle, arguments))

    def _switch(
        self, name: str, move: Switch, then: Callable[..., None], *arguments: Any
    ) -> None:
        """Do the move of a model or script, then call `then(*arguments)`."""
        seconds = self._fleet.switching.seconds(name, move)
        self._result.switching_s += seconds
        self._at(self._now + seconds, then, *arguments)

    def _act(self) -> None:
        while True:
            self._start_requests()
            for batch in self._running:
                self._start_workers(batch)
            self._fleet.expected_demand = self._expected_demand()
            action = self._policy.act(self._fleet, self._now)
            if action is None:
                return
            self._do(action)

    def _expected_demand(self) -> dict[str, tuple[float, float]]:
        expected: dict[str, tuple[float, float]] = {}
        for model in self._fleet.demand:
            times = self._forecast.next_demand(model, self._now)
            if times:
                expected[model] = times
        return expected

    def _do(self, action: Action) -> None:
        match action:
            case LoadModel(model, gpus):
                self._load(model, self._fleet.gpus[gpus[0]])
            case UnloadModel(model, gpu):
                self._unload(self._fleet.gpus[gpu].residents[model])
            case DrainResident(model, gpu):
                self._fleet.gpus[gpu].residents[model].draining = True
            case RunScript(gpu):
                task = self._fleet.take_script(gpu)
                self._run_script(self._fleet.gpus[gpu], task)

    # --- requests and scripts ---

    def _arrive(self, arrival: Arrival) -> None:
        self._unfinished += 1
        task = WaitingTask(self._number, arrival.name, self._now)
        self._number += 1
        self._durations[task.id] = arrival.duration_s
        if arrival.name in self._workload.models:
            self._fleet.demand[arrival.name].add(task, _KEPT_S)
            self._forecast.note_request(arrival.name, self._now)
        else:
            self._fleet.scripts.append(task)

    def _start_requests(self) -> None:
        """Give waiting requests to idle residents, unless an exclusive batch runs."""
        if self._fleet.closed_for_batch:
            return
        for resident in self._fleet.ready():
            waiting = self._fleet.demand[resident.model].waiting
            if waiting and not resident.draining:
                task = waiting.popleft()
                resident.phase = Phase.BUSY
                resident.since = self._now
                answered_at = self._now + self._durations[task.id]
                self._at(answered_at, self._answered, resident, task)

    def _answered(self, resident: FleetResident, task: WaitingTask) -> None:
        self._is_ready(resident)
        self._fleet.demand[task.name].note_answer(self._durations.pop(task.id))
        self._result.llm.append(self._now - task.arrived_at)
        self._unfinished -= 1

    def _is_ready(self, resident: FleetResident) -> None:
        resident.phase = Phase.READY
        resident.since = self._now
        resident.used_at = self._now

    def _run_script(self, gpu: FleetGpu, task: WaitingTask) -> None:
        gpu.worker = task.name
        self._switch(task.name, Switch.BOOT, self._worker_booted, gpu, task)

    def _worker_booted(self, gpu: FleetGpu, task: WaitingTask) -> None:
        self._at(self._now + self._durations[task.id], self._script_ended, gpu, task)

    def _script_ended(self, gpu: FleetGpu, task: WaitingTask) -> None:
        self._fleet.scripts_ended += 1
        self._fleet.last_script_ended_at = self._now
        self._fleet.scripts_run_s += self._durations.pop(task.id)
        self._result.script.append(self._now - task.arrived_at)
        self._unfinished -= 1
        self._switch(task.name, Switch.EXIT, self._worker_left, gpu)

    def _worker_left(self, gpu: FleetGpu) -> None:
        gpu.worker = None

    # --- models ---

    def _load(self, model: str, gpu: FleetGpu) -> None:
        is_asleep = gpu.resident(model) is not None
        resident = self._fleet.start_loading(model, (gpu.id,), self._now)
        if is_asleep:
            self._switch(model, Switch.WAKE, self._loaded, resident)
            return
        self._result.loads += 1
        if self._workload.serial_loads and self._booting:
            self._boots_waiting.append((model, gpu))
        else:
            self._boot(resident)

    def _boot(self, resident: FleetResident) -> None:
        self._booting += 1
        self._switch(resident.model, Switch.BOOT, self._booted, resident)

    def _booted(self, resident: FleetResident) -> None:
        self._booting -= 1
        self._loaded(resident)

    def _loaded(self, resident: FleetResident) -> None:
        self._is_ready(resident)
        if self._boots_waiting and not self._booting:
            model, gpu = self._boots_waiting.pop(0)
            self._boot(gpu.residents[model])
        for batch in list(self._running):
            if batch.models.get(resident.gpu.id) == resident.model:
                batch.reloaded += 1
                self._end_if_done(batch)

    def _unload(self, resident: FleetResident) -> None:
        resident.phase = Phase.UNLOADING
        resident.since = self._now
        self._switch(resident.model, Switch.UNLOAD, self._unloaded, resident)

    def _unloaded(self, resident: FleetResident) -> None:
        resident.draining = False
        if resident.model in self._fleet.can_sleep:
            resident.phase = Phase.ASLEEP
            resident.since = self._now
        else:
            self._fleet.remove(resident)

    # --- batches ---

    def _batch_arrives(self, arrival: BatchArrival) -> None:
        if not arrival.exclusive:
            for duration in arrival.items:
                self._arrive(Arrival(self._now, arrival.script, duration))
            return
        self._unfinished += len(arrival.items)
        self._pending.append(_SimulatedBatch(arrival, len(arrival.items)))
        self._begin_batch()

    def _begin_batch(self) -> None:
        """Begin the next exclusive batch if none runs. It gets all GPUs that are not
        pinned, and requests wait.
        """
        if self._running or not self._pending:
            return
        batch = self._pending.pop(0)
        self._running.append(batch)
        self._fleet.closed_for_batch = True
        gpus = [
            gpu
            for gpu in self._fleet.gpus.values()
            if gpu.id not in self._fleet.pinned_gpus
        ]
        for gpu in gpus:
            gpu.reserved = True
            for resident in gpu.residents.values():
                if resident.serves:
                    batch.models[gpu.id] = resident.model
        self._plan(batch, gpus)

    def _plan(self, batch: _SimulatedBatch, gpus: Sequence[FleetGpu]) -> None:
        """Assign the items to the GPUs. A GPU without items keeps its model."""
        if self._policy_name == "round_robin":
            plan = round_robin(len(batch.arrival.items), len(gpus))
        else:
            plan = self._longest_first(batch, gpus)
        for gpu, items in zip(gpus, plan, strict=True):
            if items:
                batch.plan[gpu.id] = list(reversed(items))
            else:
                gpu.reserved = False
                batch.models.pop(gpu.id, None)

    def _longest_first(
        self, batch: _SimulatedBatch, gpus: Sequence[FleetGpu]
    ) -> list[list[int]]:
        """The plan that ends first, with some or all of the GPUs: for a few items, a
        further GPU may not be worth the reload of its model.
        """
        durations = batch.arrival.items
        best = list[list[int]]()
        least = math.inf
        for used in range(1, len(gpus) + 1):
            tails = self._tails(batch, gpus[:used])
            plan = longest_first(durations, [0.0] * used, tails)
            end = 0.0
            for items, tail in zip(plan, tails, strict=True):
                if items:
                    run_s = math.fsum(durations[item] for item in items)
                    end = max(end, run_s + tail)
            if end < least:
                best = plan
                least = end
        return best + [[] for _ in range(len(gpus) - len(best))]

    def _tails(self, batch: _SimulatedBatch, gpus: Sequence[FleetGpu]) -> list[float]:
        """How many seconds each GPU is needed after its last item: until its model is
        loaded again. With serial loads, boots wait for each other.
        """
        tails = [0.0] * len(gpus)
        booting: list[int] = []
        for number, gpu in enumerate(gpus):
            model = batch.models.get(gpu.id)
            if model and batch.arrival.reload:
                tails[number] = self._fleet.reload_s(model)
                if model not in self._fleet.can_sleep:
                    booting.append(number)
        if self._workload.serial_loads and booting:
            longest_s = max(tails[number] for number in booting)
            serial = serial_tails(len(booting), longest_s)
            for number, tail in zip(booting, serial, strict=True):
                tails[number] = tail
        return tails

    def _start_workers(self, batch: _SimulatedBatch) -> None:
        """Unload idle models from the batch's GPUs, and start workers on those that are
        empty.
        """
        for gpu_id, items in batch.plan.items():
            gpu = self._fleet.gpus[gpu_id]
            if gpu.worker or not items:
                continue
            for resident in list(gpu.residents.values()):
                if resident.phase is Phase.READY:
                    self._unload(resident)
            if not self._fleet.holders(gpu):
                gpu.worker = batch.arrival.script
                self._switch(gpu.worker, Switch.BOOT, self._next_item, batch, gpu)

    def _next_item(self, batch: _SimulatedBatch, gpu: FleetGpu) -> None:
        items = batch.plan[gpu.id]
        if items:
            duration_s = batch.arrival.items[items.pop()]
            self._at(self._now + duration_s, self._item_ended, batch, gpu)
        else:
            script = batch.arrival.script
            self._switch(script, Switch.EXIT, self._batch_worker_left, batch, gpu)

    def _item_ended(self, batch: _SimulatedBatch, gpu: FleetGpu) -> None:
        batch.items_left -= 1
        self._unfinished -= 1
        self._result.script.append(self._now - batch.arrival.at)
        self._next_item(batch, gpu)

    def _batch_worker_left(self, batch: _SimulatedBatch, gpu: FleetGpu) -> None:
        """The batch has no more items for this GPU, so its model is loaded again."""
        gpu.worker = None
        gpu.reserved = False
        model = batch.models.get(gpu.id)
        if model and batch.arrival.reload:
            self._load(model, gpu)
        elif model:
            del batch.models[gpu.id]
        self._end_if_done(batch)

    def _end_if_done(self, batch: _SimulatedBatch) -> None:
        """End the batch if its items have ended and its models are loaded again."""
        is_reloading = batch.arrival.reload and batch.reloaded < len(batch.models)
        if batch.items_left or is_reloading:
            return
        if any(self._fleet.gpus[gpu].reserved for gpu in batch.plan):
            return
        self._running.remove(batch)
        self._result.batches.append(self._now - batch.arrival.at)
        self._fleet.closed_for_batch = False
        self._begin_batch()
