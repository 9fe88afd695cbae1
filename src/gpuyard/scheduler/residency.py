"""Residency: which models are loaded where, and when they make room for scripts.

A policy is asked for its next action until it has none; what it remembers is what hysteresis needs. The policies differ
in when a resident gives way and when one is loaded; who gives way is the same for all: with nothing to do, not pinned,
first the one that is back soonest, then the one that was idle longest.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from gpuyard.scheduler.fleet import Fleet, Gpu, Phase, Resident
from gpuyard.scheduler.switching import Move

# Before anything was measured: the seed document's figures for a short answer and a ten-minute video.
ANSWER_S = 15.0
SCRIPT_S = 45.0


@dataclass(frozen=True, slots=True)
class Load:
    """Boot the model on the GPU, or wake it where it sleeps there."""

    model: str
    gpu: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Let the model leave the GPU; one that can sleep goes to sleep."""

    model: str
    gpu: str


@dataclass(frozen=True, slots=True)
class Run:
    """Run the first script in line on the GPU."""

    gpu: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Give the model no more requests on this GPU, so that it can leave."""

    model: str
    gpu: str


Action = Load | Unload | Run | Drain


class Residency(Protocol):
    """A policy. `wake_at`: when its answer may change though nothing happens; infinity if never."""

    wake_at: float

    def act(self, fleet: Fleet, now: float) -> Action | None:
        """The next thing to do at `now`, or None."""
        ...


# Under `threshold` who has waited for so many reloads of the one that is to go is late.
_LATE = 10.0


# --- what all policies do alike ---


def load_s(fleet: Fleet, model: str, gpu: Gpu) -> float:
    """How long the model takes until it is ready there."""
    there = gpu.resident(model)
    return fleet.switching.seconds(model, Move.WAKE if there else Move.BOOT)


def place_model(fleet: Fleet, model: str) -> Gpu | None:
    """Where the model is ready soonest; the fullest of equal ones."""
    found = [gpu for gpu in fleet.roomy(model) if (there := gpu.resident(model)) is None or not there.holds_memory]
    return min(found, key=lambda gpu: (load_s(fleet, model, gpu), fleet.free_gb(gpu)), default=None)


def place_script(fleet: Fleet) -> Gpu | None:
    """Where the first script in line runs: where no model sleeps that would want the GPU back, if there is a choice."""
    if not fleet.scripts:
        return None
    return min(fleet.roomy(fleet.scripts[0].name), key=lambda gpu: (len(gpu.residents), fleet.free_gb(gpu)),
               default=None)  # fmt: skip


def makes_room(fleet: Fleet, resident: Resident, name: str) -> bool:
    """Whether the model or script would fit in the place of the resident, which may have to go."""
    gpu = resident.gpu
    if (
        gpu.id in fleet.pinned
        or gpu.reserved
        or not fleet.will_do(gpu, name)
        or (gpu.worker and name not in fleet.demand)
    ):
        return False
    if resident.model == name:
        return False
    if fleet.whole and all(other is resident or _may_follow(other, name) for other in fleet.holders(gpu)):
        return gpu.memory_gb >= fleet.memory_gb[name]
    script_alone = fleet.whole and name not in fleet.demand
    return not script_alone and fleet.free_gb(gpu) + fleet.memory_gb[resident.model] >= fleet.memory_gb[name]


def _may_follow(other: Resident, name: str) -> bool:
    """Whether another resident of the same GPU can go as well, one after the other."""
    return other.model != name and (other.phase in (Phase.READY, Phase.UNLOADING) or other.draining)


def victim(fleet: Fleet, room_for: str) -> Resident | None:
    """Who gives way so that a model or script finds room."""
    found = [resident for resident in fleet.ready() if makes_room(fleet, resident, room_for)]
    alone = fleet.whole and room_for not in fleet.demand

    def loss_s(resident: Resident) -> float:
        going = fleet.holders(resident.gpu) if alone else [resident]
        return sum(fleet.reload_s(other.model) for other in going)

    return min(found, key=lambda r: (not r.draining, loss_s(r), r.used_at), default=None)


def thirsty(fleet: Fleet) -> list[str]:
    """Models that somebody waits for while none is ready, who waits longest first."""
    waiting = [(demand.waiting[0].arrived_at, model) for model, demand in fleet.demand.items() if demand.waiting]
    ready = {resident.model for resident in fleet.ready() if not resident.draining}
    return [model for _, model in sorted(waiting) if model not in ready]


def booting(fleet: Fleet, model: str) -> int:
    """How many of it are on their way."""
    return sum(1 for resident in fleet.residents(model) if resident.phase is Phase.BOOTING)


def room_for_model(fleet: Fleet, patience: float, now: float) -> tuple[Unload | None, float]:
    """An idle model makes room for one that somebody waits for and that is nowhere, and when it would.

    Not before the request has waited for `patience` times the reload of the one that goes.
    """
    for model in [] if fleet.closed or fleet.leaving() else thirsty(fleet):
        gone = None if fleet.serving(model) else victim(fleet, model)
        if gone:
            due = fleet.demand[model].waiting[0].arrived_at + patience * fleet.reload_s(gone.model)
            return (Unload(gone.model, gone.gpu.id), due) if now >= due else (None, due)
    return None, math.inf


def load_at_once(fleet: Fleet) -> Load | None:
    """A load for a request that none is under way for, where there is room."""
    for model in [] if fleet.closed else thirsty(fleet):
        gpu = place_model(fleet, model)
        if gpu and booting(fleet, model) < len(fleet.demand[model].waiting):
            return Load(model, gpu.id)
    return None


# --- the policies ---


@dataclass(slots=True)
class Threshold:
    """The seed document's rules: a request boots a model on an idle GPU; scripts evict by the length of their line.

    A script that has waited for ten times the victim's boot evicts as well: a short line must not wait for ever. So
    does a request whose model is nowhere.
    """

    min_scripts: int = 5
    wake_at: float = math.inf

    def act(self, fleet: Fleet, now: float) -> Action | None:
        """Requests first, then scripts."""
        self.wake_at = math.inf
        if load := load_at_once(fleet):
            return load
        if gpu := place_script(fleet):
            return Run(gpu.id)
        queued = len(fleet.scripts) - fleet.leaving()
        gone = victim(fleet, fleet.scripts[0].name) if queued > 0 else None
        if gone and self._must_go(fleet, gone, queued, now):
            return Unload(gone.model, gone.gpu.id)
        unload, due = room_for_model(fleet, _LATE, now)
        self.wake_at = min(self.wake_at, due) if unload is None else self.wake_at
        return unload

    def _must_go(self, fleet: Fleet, gone: Resident, queued: int, now: float) -> bool:
        idle = len([r for r in fleet.ready() if r.gpu.id not in fleet.pinned])
        asked = any(demand.waiting for demand in fleet.demand.values())
        due = fleet.scripts[0].arrived_at + _LATE * fleet.reload_s(gone.model)
        if queued > self.min_scripts or (queued > 20 and not asked) or queued * SCRIPT_S / idle > 120:
            return True
        if fleet.leaving() == 0:
            self.wake_at = due
            return now >= due
        return False


@dataclass(slots=True)
class Lru:
    """Load at once, evict at once: whoever has been idle longest gives way to whoever waits."""

    wake_at: float = math.inf

    def act(self, fleet: Fleet, now: float) -> Action | None:
        """Requests first, then scripts."""
        if load := load_at_once(fleet):
            return load
        if gpu := place_script(fleet):
            return Run(gpu.id)
        if len(fleet.scripts) > fleet.leaving() and (gone := victim(fleet, fleet.scripts[0].name)):
            return Unload(gone.model, gone.gpu.id)
        return room_for_model(fleet, 0.0, now)[0]


@dataclass(slots=True)
class Static:
    """Half of the GPUs, rounded up, belong to models, in turn; the others to scripts. Nothing is ever moved."""

    wake_at: float = math.inf

    def act(self, fleet: Fleet, now: float) -> Action | None:
        """Fill the models' half when asked, run scripts on the other."""
        gpus = list(fleet.gpus.values())
        half = math.ceil(len(gpus) / 2) if fleet.demand else 0
        models = sorted(fleet.demand)
        for place, gpu in enumerate(gpus[:half]):
            model = models[place % len(models)]
            if not fleet.closed and fleet.demand[model].waiting and not gpu.residents and fleet.has_room(gpu, model):
                return Load(model, gpu.id)
        if fleet.scripts:
            for gpu in gpus[half:]:
                if fleet.has_room(gpu, fleet.scripts[0].name):
                    return Run(gpu.id)
                for there in gpu.residents.values():  # a model that was there before
                    if there.phase is Phase.READY and gpu.id not in fleet.pinned:
                        return Unload(there.model, gpu.id)
        return None
