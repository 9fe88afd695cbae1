"""The residency policy `cost`: weighs waiting against the measured time of loading a
model again.

All waits are measured in reloads: a model that wakes in seconds is moved at once, one
that boots for minutes seldom. A model gets another GPU if its requests would wait long
otherwise; as in "rent or buy", the time already waited is compared with a reload. It
gives one back if the rate of its requests needs fewer GPUs and many scripts wait.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpuyard.residency.fleet import Demand, Fleet, FleetResident, Phase, WaitingTask
from gpuyard.residency.policies import (
    ANSWER_S,
    GANG_WAIT_S,
    SCRIPT_S,
    Action,
    DrainResident,
    LoadModel,
    RunScript,
    choose_gang_gpus,
    clear_for_gang,
    count_booting,
    finish_leaving,
    makes_room,
    place_model,
    place_script,
    script_victim,
    send_away,
    victim,
)
from gpuyard.residency.switching import Switch

FIRST_WAIT_S = 24.0
"""After this much waiting, summed over its requests, a model is loaded even if scripts
wait. A reload limits the time, too.
"""
LATE = 10.0
"""A task that has waited for so many boots, while no other of its kind was served,
displaces a busy model.
"""

FORESIGHT_S = 60.0
"""A model is loaded this long before demand is expected."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The thresholds for a model whose reload takes `reload_s`. All are in seconds,
    except the factors.

    To add a GPU:
    - `rate_window_s`: the window for the rate of requests;
    - `rate_factor`: the part of that rate that is believed to last;
    - `backlog_s`: the time in which waiting requests should be served;
    - `long_wait_s`: requests that would wait longer deserve another GPU;
    - `idle_gpu_wait_s`: the same if the GPU is idle and no script waits.

    To give a GPU back:
    - `calm_window_s`: the window for the rate of requests;
    - `calm_factor`: how many times that rate the other GPUs must be able to serve;
    - `silence_s`: after this time without requests, there are none for now;
    - `keep_last_s`: how long the last resident of a model stays idle;
    - `script_pressure_s`: scripts that would wait longer press;
    - `script_pressure_silent_s`: the same after a silence.

    `recheck_s`: how often to look again.
    """

    reload_s: float
    rate_window_s: float
    rate_factor: float
    calm_window_s: float
    calm_factor: float
    backlog_s: float
    silence_s: float
    keep_last_s: float
    long_wait_s: float
    script_pressure_s: float
    script_pressure_silent_s: float
    idle_gpu_wait_s: float
    recheck_s: float

    @classmethod
    def of(cls, reload_s: float) -> "Patience":
        """The figures were found by search over workloads like those of
        `benchmarks.policies`.
        """
        return cls(
            reload_s=reload_s,
            rate_window_s=30.0,
            rate_factor=min(0.3 + reload_s / 170, 1.0),
            calm_window_s=46.0 + 0.62 * reload_s,
            calm_factor=min(0.78 + reload_s / 230, 1.3),
            backlog_s=35.0 + 0.7 * reload_s,
            silence_s=17.0 + reload_s / 5.2,
            keep_last_s=4 * max(reload_s - ANSWER_S, 0.0),
            long_wait_s=15.0,
            script_pressure_s=253.0 + 1.9 * reload_s,
            script_pressure_silent_s=4 * reload_s,
            idle_gpu_wait_s=max(reload_s / 2, 9.0),
            recheck_s=max(reload_s / 24, 1.0),
        )


@dataclass(slots=True)
class CostPolicy:
    """The policy. It remembers nothing but thresholds by reload time."""

    wake_at: float = math.inf
    _patience: dict[float, Patience] = field(default_factory=dict[float, Patience])

    def act(self, fleet: Fleet, now: float) -> Action | None:
        """First models that deserve another GPU, then scripts, then residents that must
        make room for either.
        """
        self.wake_at = math.inf
        if step := finish_leaving(fleet):
            return step
        if self._scripts_are_late(fleet, now) and (gpu := place_script(fleet)):
            return RunScript(gpu.id)
        no_room: list[str] = []
        for model in self._models_wanting_more(fleet, now):
            if gpus := place_model(fleet, model):
                return LoadModel.on(model, gpus)
            no_room.append(model)
        if gpu := place_script(fleet):
            return RunScript(gpu.id)
        if gone := self._surplus(fleet, now):
            return send_away(gone)
        for task in _stuck_tasks(fleet, no_room):
            if action := self._make_room(fleet, task, now):
                return action
        if forgotten := self._forgotten(fleet, now):
            return send_away(forgotten)
        if action := self._prepare(fleet, now):
            return action
        has_requests = any(demand.waiting for demand in fleet.demand.values())
        if fleet.demand and (fleet.scripts or has_requests):
            recheck_s = min(self._of(fleet, model).recheck_s for model in fleet.demand)
            self.wake_at = min(self.wake_at, now + recheck_s)
        return None

    def _models_wanting_more(self, fleet: Fleet, now: float) -> Iterator[str]:
        """The models that deserve another GPU, the one that waits longest first."""
        if fleet.closed_for_batch:
            return
        models = sorted(
            fleet.demand, key=lambda model: _waiting_since(fleet.demand[model])
        )
        for model in models:
            if self._wants_more(fleet, model, now):
                yield model

    def _prepare(self, fleet: Fleet, now: float) -> LoadModel | None:
        """Load a model that is likely to be requested soon, if nothing else needs the
        GPU. Otherwise `wake_at` is when to load it.
        """
        if fleet.closed_for_batch or fleet.scripts:
            return None
        for model, (begin, end) in sorted(fleet.expected_demand.items()):
            gpus = () if fleet.serving(model) else place_model(fleet, model)
            if not gpus:
                continue
            load_s = max(fleet.load_s(model, gpu) for gpu in gpus)
            due = begin - load_s - FORESIGHT_S
            if due <= now < end:
                return LoadModel.on(model, gpus)
            if now < due:
                self.wake_at = min(self.wake_at, due)
        return None

    def _scripts_are_late(self, fleet: Fleet, now: float) -> bool:
        """True if scripts have waited long and none runs."""
        if not fleet.scripts or _has_workers(fleet):
            return False
        late_s = max((_late_s(fleet, model) for model in fleet.demand), default=0.0)
        return now >= _stuck_since(fleet, fleet.scripts[0]) + late_s

    def _make_room(self, fleet: Fleet, task: WaitingTask, now: float) -> Action | None:
        """Unload a model for a stuck task that has waited long enough: an idle one, or
        later a busy one.
        """
        if task.name in fleet.gang_sizes:
            return self._make_room_for_gang(fleet, task, now)
        if fleet.count_leaving():
            return None
        since = _stuck_since(fleet, task)
        gone = victim(fleet, task.name)
        if gone:
            is_request = task.name in fleet.demand
            wait_s = (
                self._first_wait_s(fleet, gone)
                if is_request
                else _late_s(fleet, gone.model)
            )
            if gone.draining or now >= since + wait_s:
                return send_away(gone)
            return None
        busy = [
            resident
            for resident in fleet.residents()
            if resident.phase is Phase.BUSY
            and now >= since + _late_s(fleet, resident.model)
            and makes_room(fleet, resident, task.name)
        ]
        if not busy:
            return None
        gone = min(busy, key=lambda each: (fleet.reload_s(each.model), each.gpu.id))
        return DrainResident(gone.model, gone.gpu.id)

    def _forgotten(self, fleet: Fleet, now: float) -> FleetResident | None:
        """A resident to unload for a script that has waited long while others run: one
        on a GPU whose models nobody has used for as long.
        """
        if not _has_workers(fleet) or fleet.count_leaving():
            return None
        for task in fleet.script_kinds():
            unused = [
                resident
                for resident in fleet.ready()
                if makes_room(fleet, resident, task.name)
                and _unused_since(fleet, resident) <= now
                and task.arrived_at + _late_s(fleet, resident.model) <= now
            ]
            if unused:
                return min(unused, key=lambda each: fleet.reload_s(each.model))
        return None

    def _make_room_for_gang(
        self, fleet: Fleet, task: WaitingTask, now: float
    ) -> Action | None:
        """Clear GPUs for a gang. Idle models leave as for any model; busy ones when the
        gang is late.
        """
        gpus = choose_gang_gpus(fleet, task.name)
        residents = [resident for gpu in gpus for resident in fleet.holders(gpu)]
        has_worker = any(gpu.worker for gpu in gpus)
        if has_worker or any(each.phase is Phase.BUSY for each in residents):
            wait_s = min(_late_s(fleet, task.name), GANG_WAIT_S)
        else:
            waits = [self._first_wait_s(fleet, resident) for resident in residents]
            wait_s = max(waits, default=0.0)
        if now < task.arrived_at + wait_s:
            return None
        return clear_for_gang(fleet, task.name, gpus)

    def _first_wait_s(self, fleet: Fleet, gone: FleetResident) -> float:
        """How long a request waits before this idle resident of another model is
        unloaded; not at all if its model has other residents.
        """
        if len(fleet.serving(gone.model)) > 1:
            return 0.0
        return min(FIRST_WAIT_S, fleet.reload_s(gone.model))

    def _of(self, fleet: Fleet, model: str) -> Patience:
        """The thresholds for the model."""
        reload_s = fleet.reload_s(model)
        if reload_s not in self._patience:
            self._patience[reload_s] = Patience.of(reload_s)
        return self._patience[reload_s]

    def _wants_more(self, fleet: Fleet, model: str, now: float) -> bool:
        """True if the waiting requests of the model deserve another GPU."""
        demand = fleet.demand[model]
        patience = self._of(fleet, model)
        if len(demand.waiting) <= count_booting(fleet, model):
            return False  # booting residents will serve them
        answer_s = demand.mean_s(ANSWER_S)
        serving = len(fleet.serving(model))
        # How many residents the new requests keep busy, and the work that waits.
        load = demand.rate(now, patience.rate_window_s) * answer_s
        work_s = len(demand.waiting) * answer_s
        lasting = load * patience.rate_factor
        need = math.ceil(lasting + work_s / patience.backlog_s - 1e-9)
        if serving == 0:
            waited_s = sum(now - task.arrived_at for task in demand.waiting)
            has_waited = waited_s >= min(FIRST_WAIT_S, patience.reload_s)
            return not fleet.scripts or need >= 2 or has_waited
        # During a reload, more requests come than the residents can serve.
        unserved = max(0.0, load - serving)
        wait_s = (work_s + unserved * patience.reload_s) / serving
        needs_more = serving < need and wait_s > patience.long_wait_s
        if not fleet.scripts:
            return needs_more or wait_s > patience.idle_gpu_wait_s
        loads_quickly = patience.reload_s < fleet.script_mean_s(SCRIPT_S)
        return needs_more and (loads_quickly or _leaves_gpu_for_scripts(fleet))

    def _surplus(self, fleet: Fleet, now: float) -> FleetResident | None:
        """A resident to unload for scripts: many scripts wait, and its model has more
        GPUs than it needs. None if there is none.
        """
        queued = len(fleet.scripts) - fleet.count_leaving()
        if queued <= 0:
            return None
        found = script_victim(fleet)
        if found is None:
            return None
        _, gone = found
        demand = fleet.demand[gone.model]
        patience = self._of(fleet, gone.model)
        last_arrival = demand.arrivals[-1] if demand.arrivals else -math.inf
        is_silent = not demand.waiting and now - last_arrival > patience.silence_s
        workers = sum(1 for gpu in fleet.gpus.values() if gpu.worker)
        workers += fleet.count_leaving()
        pressure_s = (
            patience.script_pressure_silent_s
            if is_silent
            else patience.script_pressure_s
        )
        is_pressed = queued * fleet.script_mean_s(SCRIPT_S) > pressure_s * workers
        if not is_pressed or self._wants_more(fleet, gone.model, now):
            return None
        answer_s = demand.mean_s(ANSWER_S)
        load = demand.rate(now, patience.calm_window_s) * answer_s
        serving = len(fleet.serving(gone.model))
        if serving == 1:
            is_idle = gone.phase is Phase.READY
            was_idle = is_idle and now - gone.used_at >= patience.keep_last_s
            return gone if was_idle and load < 0.5 else None
        load *= patience.calm_factor
        load += len(demand.waiting) * answer_s / patience.backlog_s
        return gone if is_silent or load <= serving - 1 else None


def _stuck_tasks(fleet: Fleet, no_room: Sequence[str]) -> list[WaitingTask]:
    """The first request of each model that found no room and has no resident, and the
    first script of each kind if none runs.
    """
    stuck = [
        fleet.demand[model].waiting[0] for model in no_room if not fleet.serving(model)
    ]
    if fleet.scripts and not _has_workers(fleet):
        stuck += fleet.script_kinds()
    return stuck


def _has_workers(fleet: Fleet) -> bool:
    return any(gpu.worker for gpu in fleet.gpus.values())


def _waiting_since(demand: Demand) -> float:
    return demand.waiting[0].arrived_at if demand.waiting else math.inf


def _stuck_since(fleet: Fleet, task: WaitingTask) -> float:
    """Since when the task has waited while no other of its kind was served."""
    if task.name in fleet.demand:
        return task.arrived_at
    return max(task.arrived_at, fleet.last_script_ended_at)


def _late_s(fleet: Fleet, model: str) -> float:
    return LATE * fleet.switching.seconds(model, Switch.BOOT)


def _unused_since(fleet: Fleet, resident: FleetResident) -> float:
    """From when on the models on the GPUs of the resident count as unused."""
    return max(
        holder.used_at + _late_s(fleet, holder.model)
        for gpu in resident.gpus
        for holder in fleet.holders(gpu)
    )


def _leaves_gpu_for_scripts(fleet: Fleet) -> bool:
    """True if one more resident leaves a GPU for scripts. Otherwise these would wait
    for a whole reload.
    """
    used = sum(len(resident.gpus) for resident in fleet.residents() if resident.serves)
    return used < max(1, len(fleet.gpus) - 1)
