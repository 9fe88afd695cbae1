"""Residency policies: which models are loaded where, and when they make room.

A policy is asked for its next action until it returns none. The policies differ in when
they load and unload models. The resident that is unloaded is not pinned and (unless the
settings say otherwise) idle; it loads again fastest, or was idle longest.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuyard.residency.fleet import (
    Fleet,
    FleetGpu,
    FleetResident,
    Phase,
    WaitingTask,
)

# Before anything is measured: the figures of the seed document for a short answer and a
# ten-minute video.
ANSWER_S = 15.0
SCRIPT_S = 45.0


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Boot the model on the GPUs, or wake it if it sleeps there.

    A gang boots when all its GPUs are free.
    """

    model: str
    gpus: tuple[str, ...]

    @classmethod
    def on(cls, model: str, gpus: Iterable[FleetGpu]) -> "LoadModel":
        """Load the model on these GPUs."""
        return cls(model, tuple(gpu.id for gpu in gpus))


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Unload the model from the GPU; if it can sleep, it sleeps there."""

    model: str
    gpu: str


@dataclass(frozen=True, slots=True)
class RunScript:
    """Run the first waiting script that has room there on the GPU."""

    gpu: str


@dataclass(frozen=True, slots=True)
class DrainResident:
    """Give the model no more requests on this GPU, so that it can be unloaded."""

    model: str
    gpu: str


Action = LoadModel | UnloadModel | RunScript | DrainResident
Worth = Callable[[FleetResident], float]


class ResidencyPolicy(Protocol):
    """A policy. `wake_at`: when to ask it again even if nothing happens; infinity for
    never.
    """

    wake_at: float

    def act(self, fleet: Fleet, now: float) -> Action | None:
        """The next action at `now`; None if there is none."""
        ...


# `threshold` unloads an idle model for a task that has waited as long as so many of its
# reloads take.
_LATE = 10.0
GANG_WAIT_S = 120.0
"""A gang displaces busy models and scripts after this wait at the latest: well before
its requests time out.
"""


# --- shared by all policies ---


def place_model(fleet: Fleet, model: str) -> tuple[FleetGpu, ...]:
    """The GPUs for the model: those where it sleeps, then those that are not away, then
    those whose role suits it, then those on which it loads fastest, then the fullest.
    Empty if there is no room.
    """

    def order(gpu: FleetGpu) -> tuple[bool, bool, int, float, float]:
        is_elsewhere = gpu.resident(model) is None
        role = fleet.role_order(gpu, model)
        load_s = fleet.load_s(model, gpu)
        return is_elsewhere, gpu.away, role, load_s, fleet.free_gb(gpu)

    found: list[FleetGpu] = []
    for gpu in fleet.gpus_with_room(model):
        resident = gpu.resident(model)
        if resident is None or not resident.holds_memory:
            found.append(gpu)
    found.sort(key=order)
    return next(_gpus_by_node(fleet, model, found), ())


def _gpus_by_node(
    fleet: Fleet, model: str, gpus: Iterable[FleetGpu]
) -> Iterator[tuple[FleetGpu, ...]]:
    """For each node with enough of these GPUs, the first ones that the model needs."""
    need = fleet.gang_sizes.get(model, 1)
    by_node = dict[str, list[FleetGpu]]()
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    for on_node in by_node.values():
        if len(on_node) >= need:
            yield tuple(on_node[:need])


def place_script(fleet: Fleet) -> FleetGpu | None:
    """The GPU for the first waiting script that has room somewhere, if possible none of
    the brain's, and one without sleeping models, which would want it back; None if
    there is no room.
    """
    for task in fleet.script_kinds():
        found = fleet.gpus_with_room(task.name)
        if found:
            return min(
                found,
                key=lambda gpu: (
                    gpu.brain_rank,
                    len(gpu.residents),
                    fleet.free_gb(gpu),
                ),
            )
    return None


def makes_room(fleet: Fleet, resident: FleetResident, name: str) -> bool:
    """True if the model or script would fit on a GPU of the resident after unloading
    it, and it may be unloaded.
    """
    if resident.model == name or name in fleet.gang_sizes:
        return False
    if not may_leave(fleet, resident):
        return False
    return any(_has_room_without(fleet, resident, gpu, name) for gpu in resident.gpus)


def may_leave(fleet: Fleet, resident: FleetResident) -> bool:
    """True if the resident may be unloaded."""
    return not any(gpu.id in fleet.pinned_gpus or gpu.reserved for gpu in resident.gpus)


def _has_room_without(
    fleet: Fleet, resident: FleetResident, gpu: FleetGpu, name: str
) -> bool:
    is_script = name not in fleet.demand
    if not fleet.may_use(gpu, name) or (gpu.worker and is_script):
        return False
    need_gb = fleet.memory_gb[name]
    if fleet.exclusive_scripts:
        others = [other for other in fleet.holders(gpu) if other is not resident]
        if all(_can_also_leave(fleet, other, name) for other in others):
            return gpu.memory_gb >= need_gb
        if is_script:
            return False
    if is_script:
        return fleet.free_gb(gpu) + fleet.memory_gb[resident.model] >= need_gb
    return fleet.room_gb(gpu, resident) >= need_gb


def _can_also_leave(fleet: Fleet, other: FleetResident, name: str) -> bool:
    """True if another resident of the GPU can be unloaded, too, one after the other."""
    if other.model == name:
        return False
    if other.phase is Phase.BUSY and not fleet.prefer_idle:
        return name not in fleet.demand
    return other.phase in (Phase.READY, Phase.UNLOADING) or other.draining


def victim(
    fleet: Fleet, room_for: str, worth: Worth = lambda _: 0.0
) -> FleetResident | None:
    """The resident to unload to make room for a model or script, one of little `worth`;
    None if none would. It is idle, unless the settings let scripts displace busy ones.
    """
    is_script = room_for not in fleet.demand

    def loss(resident: FleetResident) -> tuple[float, float]:
        """What must leave is worth, and how long it takes to load it again."""
        leaving = [resident]
        if fleet.exclusive_scripts and is_script and not resident.other_gpus:
            leaving = fleet.holders(resident.gpu)
        reload_s = sum(fleet.reload_s(other.model) for other in leaving)
        return sum(map(worth, leaving)), reload_s

    candidates = fleet.evictable() if is_script else fleet.ready()
    found = [each for each in candidates if makes_room(fleet, each, room_for)]
    return min(
        found,
        key=lambda resident: (
            not resident.draining,
            fleet.role_order(resident.gpu, room_for),
            loss(resident),
            resident.used_at,
        ),
        default=None,
    )


def script_victim(fleet: Fleet) -> tuple[WaitingTask, FleetResident] | None:
    """The first waiting script for which a resident can make room, and that resident;
    None if there is none.
    """
    for task in fleet.script_kinds():
        gone = victim(fleet, task.name)
        if gone:
            return task, gone
    return None


def send_away(resident: FleetResident) -> UnloadModel | DrainResident:
    """Unload the resident; a busy one answers its requests first."""
    if resident.phase is Phase.BUSY:
        return DrainResident(resident.model, resident.gpu.id)
    return UnloadModel(resident.model, resident.gpu.id)


def unserved_models(fleet: Fleet) -> list[str]:
    """The models with waiting requests and no idle resident, the one whose request
    waits longest first. None while an exclusive batch runs.
    """
    if fleet.closed_for_batch:
        return []
    ready = {resident.model for resident in fleet.ready() if not resident.draining}
    waiting = [
        (demand.waiting[0].arrived_at, model)
        for model, demand in fleet.demand.items()
        if demand.waiting and model not in ready
    ]
    return [model for _, model in sorted(waiting)]


def count_booting(fleet: Fleet, model: str) -> int:
    """How many residents of the model are booting."""
    return sum(
        1 for resident in fleet.residents(model) if resident.phase is Phase.BOOTING
    )


def make_room_for_model(
    fleet: Fleet, patience: float, now: float
) -> tuple[Action | None, float]:
    """The next step to load a requested model that is not loaded, and when it is due.
    The action is None before that time.

    A request waits for `patience` reloads of the model that is unloaded for it.
    """
    for model in unserved_models(fleet):
        if fleet.serving(model):
            continue
        step, loss_s = next_step_for(fleet, model)
        if step is None:
            continue
        wait_s = patience * loss_s
        if model in fleet.gang_sizes:
            wait_s = min(wait_s, GANG_WAIT_S)
        due = fleet.demand[model].waiting[0].arrived_at + wait_s
        return (step if now >= due else None), due
    return None, math.inf


def next_step_for(fleet: Fleet, model: str) -> tuple[Action | None, float]:
    """The next step to make room for the model, None if there is none; and how long it
    takes to load again what leaves.
    """
    if model in fleet.gang_sizes:
        gpus = choose_gang_gpus(fleet, model)
        reloads = [
            fleet.reload_s(holder.model)
            for gpu in gpus
            for holder in fleet.holders(gpu)
        ]
        loss_s = max(reloads, default=fleet.reload_s(model))
        return clear_for_gang(fleet, model, gpus), loss_s
    gone = None if fleet.count_leaving() else victim(fleet, model)
    if gone is None:
        return None, 0.0
    return UnloadModel(gone.model, gone.gpu.id), fleet.reload_s(gone.model)


# --- gangs: models on several GPUs ---


def choose_gang_gpus(fleet: Fleet, model: str) -> tuple[FleetGpu, ...]:
    """The GPUs of one node that can be cleared for the model with the least loss; empty
    if there are none.
    """

    def loss(gpu: FleetGpu) -> tuple[bool, int, float]:
        """Whether the GPU is busy, how well its role suits, and how long it takes to
        load its models again.
        """
        staying = [
            holder
            for holder in fleet.holders(gpu)
            if holder.phase is not Phase.UNLOADING and not holder.draining
        ]
        has_busy_model = any(holder.phase is Phase.BUSY for holder in staying)
        is_busy = gpu.worker is not None or has_busy_model
        reload_s = sum(fleet.reload_s(holder.model) for holder in staying)
        return is_busy, fleet.role_order(gpu, model), reload_s

    def losses(gpus: tuple[FleetGpu, ...]) -> list[tuple[bool, int, float]]:
        return sorted(map(loss, gpus), reverse=True)

    clearable = [gpu for gpu in fleet.gpus.values() if _may_clear(fleet, gpu, model)]
    clearable.sort(key=loss)
    return min(_gpus_by_node(fleet, model, clearable), key=losses, default=())


def _may_clear(fleet: Fleet, gpu: FleetGpu, model: str) -> bool:
    """True if the GPU can be cleared for a gang of this model."""
    if gpu.id in fleet.pinned_gpus or gpu.reserved or not fleet.may_use(gpu, model):
        return False
    if fleet.memory_gb[model] > gpu.memory_gb:
        return False
    return all(
        holder.model != model
        and holder.phase is not Phase.BOOTING
        and may_leave(fleet, holder)
        for holder in fleet.holders(gpu)
    )


def clear_for_gang(fleet: Fleet, model: str, gpus: Sequence[FleetGpu]) -> Action | None:
    """The next step to load the model on all of these GPUs: unload or drain what is
    there, then load the model.
    """
    for gpu in gpus:
        for resident in fleet.holders(gpu):
            if resident.phase is Phase.READY:
                return UnloadModel(resident.model, resident.gpu.id)
            if resident.phase is Phase.BUSY and not resident.draining:
                return DrainResident(resident.model, resident.gpu.id)
    return LoadModel.on(model, gpus) if gpus else None


def finish_leaving(fleet: Fleet) -> UnloadModel | DrainResident | None:
    """Unload a resident that has drained, and unload or drain one on a GPU that is
    called back, or for which a gang waits; None if there is none.
    """
    for resident in fleet.residents():
        is_in_the_way = any(gpu.called_back for gpu in resident.gpus) or (
            bool(fleet.gang_sizes) and _blocks_gang(fleet, resident)
        )
        if resident.phase is Phase.READY and (resident.draining or is_in_the_way):
            return UnloadModel(resident.model, resident.gpu.id)
        is_working = resident.phase is Phase.BUSY and not resident.draining
        if is_working and is_in_the_way:
            return DrainResident(resident.model, resident.gpu.id)
    return None


def _blocks_gang(fleet: Fleet, resident: FleetResident) -> bool:
    """True if a gang waits for a GPU of the resident."""
    for gpu in resident.gpus:
        for other in fleet.holders(gpu):
            is_waiting = (
                other.phase is Phase.BOOTING and other.model in fleet.gang_sizes
            )
            if is_waiting and other is not resident:
                return True
    return False


def load_requested(fleet: Fleet) -> LoadModel | None:
    """Load a model for a request that no booting resident will serve, if there is
    room.
    """
    for model in unserved_models(fleet):
        gpus = place_model(fleet, model)
        if gpus and count_booting(fleet, model) < len(fleet.demand[model].waiting):
            return LoadModel.on(model, gpus)
    return None


# --- the policies ---


@dataclass(slots=True)
class ThresholdPolicy:
    """The rules of the seed document: a request loads a model on an idle GPU, and many
    waiting scripts unload models.

    Few waiting scripts must not wait for ever. So a script that has waited for ten
    reloads of the victim also unloads it, and so does a request for a model that is not
    loaded.
    """

    min_scripts: int = 5
    wake_at: float = math.inf

    def act(self, fleet: Fleet, now: float) -> Action | None:
        """Requests first, then scripts."""
        self.wake_at = math.inf
        if action := finish_leaving(fleet) or load_requested(fleet):
            return action
        if gpu := place_script(fleet):
            return RunScript(gpu.id)
        queued = len(fleet.scripts) - fleet.count_leaving()
        found = script_victim(fleet) if queued > 0 else None
        if found and self._must_leave(fleet, found, queued, now):
            return send_away(found[1])
        step, due = make_room_for_model(fleet, _LATE, now)
        if step is None:
            self.wake_at = min(self.wake_at, due)
        return step

    def _must_leave(
        self,
        fleet: Fleet,
        found: tuple[WaitingTask, FleetResident],
        queued: int,
        now: float,
    ) -> bool:
        """True if the victim must make room for `queued` scripts. Otherwise `wake_at`
        is when it must.
        """
        task, gone = found
        candidates = [
            resident
            for resident in fleet.evictable()
            if resident.gpu.id not in fleet.pinned_gpus
        ]
        has_requests = any(demand.waiting for demand in fleet.demand.values())
        if queued > self.min_scripts or (queued > 20 and not has_requests):
            return True
        if queued * SCRIPT_S / len(candidates) > 120:
            return True
        if fleet.count_leaving():
            return False
        due = task.arrived_at + _LATE * fleet.reload_s(gone.model)
        self.wake_at = due
        return now >= due


@dataclass(slots=True)
class LruPolicy:
    """Load and unload at once: the model that was idle longest makes room for whatever
    waits.
    """

    wake_at: float = math.inf

    def act(self, fleet: Fleet, now: float) -> Action | None:
        """Requests first, then scripts."""
        if action := finish_leaving(fleet) or load_requested(fleet):
            return action
        if gpu := place_script(fleet):
            return RunScript(gpu.id)
        if len(fleet.scripts) > fleet.count_leaving():
            found = script_victim(fleet)
            if found:
                return send_away(found[1])
        return make_room_for_model(fleet, 0.0, now)[0]
