"""The residency policy `cost`: weighs the waiting that a move of a GPU saves against
the waiting that it causes.

- A model is loaded if this saves its requests more waiting than it causes the scripts.
- A model makes room for scripts if its idle time saves them more waiting than it costs
  the next requests until the model is loaded again.
- The resident that leaves is the one that saves the least waiting for its memory.

A move costs the time of loading and unloading, as measured. So a model that wakes in
seconds is moved at once, and one that boots for minutes seldom.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuyard.residency.expected_wait import (
    REQUEST_WEIGHT,
    caused_to_scripts,
    saved_by_first_load,
    saved_by_load,
)
from gpuyard.residency.fleet import (
    Demand,
    Fleet,
    FleetGpu,
    FleetResident,
    Phase,
    WaitingTask,
)
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
    send_away,
    victim,
)
from gpuyard.residency.switching import Switch

IDLE_LATE = 4.0
"""While no script runs, a script waits at most for so many reloads of an idle model."""
LATE = 10.0
"""A task that has waited for so many boots, while no other of its kind was served,
displaces a busy model.
"""
REQUEST_LATE_S = 240.0
"""A request for a model that is not loaded waits no longer for the sake of scripts,
however many wait: well before it times out.
"""
FORESIGHT_S = 60.0
"""A model is loaded this long before demand is expected."""
RECHECKS = 24
"""How many times to look again within a reload: silence is no event."""


@dataclass(slots=True)
class CostPolicy:
    """The policy. It remembers nothing."""

    wake_at: float = math.inf

    def act(self, fleet: Fleet, now: float) -> Action | None:
        """First models that deserve another GPU, then scripts, then residents that must
        make room for either.
        """
        self.wake_at = math.inf
        if step := finish_leaving(fleet):
            return step
        if _scripts_are_late(fleet, now) and (gpu := place_script(fleet)):
            return RunScript(gpu.id)
        no_room: list[str] = []
        for model, gpus in _models_wanting_more(fleet, now):
            if gpus:
                return LoadModel.on(model, gpus)
            no_room.append(model)
        if gpu := place_script(fleet):
            return RunScript(gpu.id)
        if gone := _surplus(fleet, now):
            return send_away(gone)
        for task in _stuck_tasks(fleet, no_room):
            if action := _make_room(fleet, task, now):
                return action
        if gone := _forgotten(fleet, now):
            return send_away(gone)
        if action := self._prepare(fleet, now):
            return action
        self._look_again(fleet, now)
        return None

    def _look_again(self, fleet: Fleet, now: float) -> None:
        """Wake soon while anything waits."""
        has_requests = any(demand.waiting for demand in fleet.demand.values())
        if fleet.demand and (fleet.scripts or has_requests):
            reload_s = min(fleet.reload_s(model) for model in fleet.demand)
            self.wake_at = min(self.wake_at, now + max(reload_s / RECHECKS, 1.0))

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


def _models_wanting_more(
    fleet: Fleet, now: float
) -> Iterator[tuple[str, tuple[FleetGpu, ...]]]:
    """The models that deserve another GPU, the one that waits longest first; and the
    GPUs that each would get, none if there is no room.
    """
    if fleet.closed_for_batch:
        return
    models = sorted(fleet.demand, key=lambda model: _waiting_since(fleet.demand[model]))
    for model in models:
        if len(fleet.demand[model].waiting) <= count_booting(fleet, model):
            continue  # booting residents will serve them
        gpus = place_model(fleet, model)
        if _wants_more(fleet, model, gpus, now):
            yield model, gpus


def _wants_more(fleet: Fleet, model: str, gpus: Sequence[FleetGpu], now: float) -> bool:
    """True if one more resident on these GPUs saves the requests of the model more
    waiting than loading it causes: to the scripts that want the same GPUs, or if none
    does, as much as it takes. The first resident is also wanted if a request is late.
    """
    demand = fleet.demand[model]
    reload_s = fleet.reload_s(model)
    serving = len(fleet.serving(model))
    workers = _count_workers(fleet)
    if serving:
        answer_s = demand.mean_s(ANSWER_S)
        saved = saved_by_load(demand, serving, answer_s, reload_s, now)
        # A script keeps its GPU for longer than this model needs to get another.
        loads_quickly = reload_s < fleet.script_mean_s(SCRIPT_S)
    elif now >= _waiting_since(demand) + REQUEST_LATE_S:
        return True
    else:
        saved = saved_by_first_load(demand, reload_s, now)
        loads_quickly = True
    lost_s = _moving_s(fleet, model)
    # As long as it has no room, all scripts count.
    scripts = fleet.count_scripts_for(gpus) if gpus else len(fleet.scripts)
    if not scripts:
        return not serving or saved > lost_s
    remaining = max(workers, 1) if loads_quickly else workers
    caused = caused_to_scripts(lost_s, scripts, remaining)
    return REQUEST_WEIGHT * saved > caused


def _surplus(fleet: Fleet, now: float) -> FleetResident | None:
    """A resident whose idle time would save the waiting scripts more waiting than its
    model's next requests would have; None if there is none.
    """
    queued = len(fleet.scripts) - fleet.count_leaving()
    if queued <= 0:
        return None
    victims = (_victim(fleet, task.name, now) for task in fleet.script_kinds())
    gone = next(filter(None, victims), None)
    if gone is None or fleet.demand[gone.model].waiting:
        return None
    is_last = len(fleet.serving(gone.model)) == 1
    reload_s = fleet.reload_s(gone.model)
    if is_last and now - gone.used_at < reload_s:
        return None  # a model that was loaded ahead of its requests
    workers = _count_workers(fleet) + fleet.count_leaving()
    usable_s = _idle_s(fleet, gone.model, now)
    if workers:  # the scripts need the GPU only until the others have run them
        usable_s = min(usable_s, queued * fleet.script_mean_s(SCRIPT_S) / workers)
    gained_s = usable_s - _moving_s(fleet, gone.model)
    # It saves them what they would wait if one GPU more were taken from them so long.
    saved = caused_to_scripts(gained_s, queued, workers + 1)
    lost = reload_s if is_last else 0.0
    return gone if saved > REQUEST_WEIGHT * lost else None


def _idle_s(fleet: Fleet, model: str, now: float) -> float:
    """How long one of its residents is likely to stay idle: the next request goes to
    one of those that are, so each has its turn later.
    """
    serving = fleet.serving(model)
    idle = sum(resident.phase is Phase.READY for resident in serving)
    return max(idle, 1) * _silent_s(fleet, model, now)


def _forgotten(fleet: Fleet, now: float) -> FleetResident | None:
    """A resident to unload for a script that has waited long while others run: one on
    a GPU whose models nobody has used for as long.
    """
    if not _count_workers(fleet) or fleet.count_leaving():
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


def _victim(fleet: Fleet, room_for: str, now: float) -> FleetResident | None:
    """The resident to unload for a model or script: of those that suit, the one that
    saves the least waiting for its memory.
    """

    def saved_per_gb(resident: FleetResident) -> float:
        """Waiting is saved by the only resident of a model: a reload, as often as
        requests come.
        """
        model = resident.model
        if len(fleet.serving(model)) > 1:
            return 0.0
        silence_s = max(_silent_s(fleet, model, now), 1.0)
        return fleet.reload_s(model) / silence_s / max(fleet.memory_gb[model], 1.0)

    return victim(fleet, room_for, saved_per_gb)


def _scripts_are_late(fleet: Fleet, now: float) -> bool:
    """True if scripts have waited long and none runs."""
    if not fleet.scripts or _count_workers(fleet):
        return False
    late_s = max((_late_s(fleet, model) for model in fleet.demand), default=0.0)
    return now >= _stuck_since(fleet, fleet.scripts[0]) + late_s


def _make_room(fleet: Fleet, task: WaitingTask, now: float) -> Action | None:
    """Unload a model for a stuck task that has waited long enough: an idle one, or
    later a busy one.
    """
    if task.name in fleet.gang_sizes:
        return _make_room_for_gang(fleet, task, now)
    if fleet.count_leaving():
        return None
    since = _stuck_since(fleet, task)
    gone = _victim(fleet, task.name, now)
    if gone:
        is_request = task.name in fleet.demand
        wait_s = (
            _request_wait_s(fleet, gone, now)
            if is_request
            else IDLE_LATE * fleet.reload_s(gone.model)
        )
        return send_away(gone) if gone.draining or now >= since + wait_s else None
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


def _make_room_for_gang(fleet: Fleet, task: WaitingTask, now: float) -> Action | None:
    """Clear GPUs for a gang. Idle models leave as for any model; busy ones when the
    gang is late.
    """
    gpus = choose_gang_gpus(fleet, task.name)
    residents = [resident for gpu in gpus for resident in fleet.holders(gpu)]
    has_worker = any(gpu.worker for gpu in gpus)
    if has_worker or any(each.phase is Phase.BUSY for each in residents):
        wait_s = min(_late_s(fleet, task.name), GANG_WAIT_S)
    else:
        waits = [_request_wait_s(fleet, resident, now) for resident in residents]
        wait_s = max(waits, default=0.0)
    if now < task.arrived_at + wait_s:
        return None
    return clear_for_gang(fleet, task.name, gpus)


def _request_wait_s(fleet: Fleet, gone: FleetResident, now: float) -> float:
    """How long a request waits before this idle resident of another model is unloaded:
    as long as that will make the other model's requests wait. That is a reload, or less
    if they are not likely to come soon: after a silence of five reloads, a fifth.
    """
    if len(fleet.serving(gone.model)) > 1:
        return 0.0
    reload_s = fleet.reload_s(gone.model)
    silence_s = _silent_s(fleet, gone.model, now)
    return reload_s * min(1.0, reload_s / silence_s) if silence_s else reload_s


def _stuck_tasks(fleet: Fleet, no_room: Sequence[str]) -> list[WaitingTask]:
    """The first request of each model that found no room and has no resident, and the
    first script of each kind if none runs.
    """
    stuck = [
        fleet.demand[model].waiting[0] for model in no_room if not fleet.serving(model)
    ]
    if fleet.scripts and not _count_workers(fleet):
        stuck += fleet.script_kinds()
    return stuck


def _count_workers(fleet: Fleet) -> int:
    return sum(1 for gpu in fleet.gpus.values() if gpu.worker)


def _silent_s(fleet: Fleet, model: str, now: float) -> float:
    """How long ago the newest request for the model came; infinity if none is known.

    The silence is expected to last as long again.
    """
    arrivals = fleet.demand[model].arrivals
    return now - arrivals[-1] if arrivals else math.inf


def _moving_s(fleet: Fleet, model: str) -> float:
    """How long a GPU is lost if the model leaves and is loaded again."""
    unload_s = fleet.switching.seconds(model, Switch.UNLOAD)
    return fleet.reload_s(model) + unload_s


def _unused_since(fleet: Fleet, resident: FleetResident) -> float:
    """From when on the models on the GPUs of the resident count as unused."""
    return max(
        holder.used_at + _late_s(fleet, holder.model)
        for gpu in resident.gpus
        for holder in fleet.holders(gpu)
    )


def _waiting_since(demand: Demand) -> float:
    return demand.waiting[0].arrived_at if demand.waiting else math.inf


def _stuck_since(fleet: Fleet, task: WaitingTask) -> float:
    """Since when the task has waited while no other of its kind was served."""
    if task.name in fleet.demand:
        return task.arrived_at
    return max(task.arrived_at, fleet.last_script_ended_at)


def _late_s(fleet: Fleet, model: str) -> float:
    return LATE * fleet.switching.seconds(model, Switch.BOOT)
