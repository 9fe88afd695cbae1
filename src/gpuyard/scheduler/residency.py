"""Residency: which models are loaded where, and when they make room for scripts.

A policy is asked for its next action until it has none; what it remembers is what hysteresis needs. The policies differ
in when a resident gives way and when one is loaded; who gives way is the same for all: with nothing to do, not pinned,
first the one that is back soonest, then the one that was idle longest.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Protocol

from gpuyard.scheduler.fleet import Fleet, Gpu, Phase, Resident

# Before anything was measured: the seed document's figures for a short answer and a ten-minute video.
ANSWER_S = 15.0
SCRIPT_S = 45.0


@dataclass(frozen=True, slots=True)
class Load:
    """Boot the model on the GPU, or wake it where it sleeps there.

    A model of several gets them as soon as whoever is there has left.
    """

    model: str
    gpus: tuple[str, ...]

    @classmethod
    def on(cls, model: str, gpus: Iterable[Gpu]) -> "Load":
        """The model on these."""
        return cls(model, tuple(gpu.id for gpu in gpus))


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
GATHER_S = 120.0
"""A model of several GPUs gets those of others at work after so long at most: well before its requests give up."""


# --- what all policies do alike ---


def place_model(fleet: Fleet, model: str) -> tuple[Gpu, ...]:
    """Where the model is ready soonest; the fullest of equal ones. Nothing, where it has no room."""
    found = [gpu for gpu in fleet.roomy(model) if (there := gpu.resident(model)) is None or not there.holds_memory]
    found.sort(key=lambda gpu: (fleet.load_s(model, gpu), fleet.free_gb(gpu)))
    return next(_teams(fleet, model, found), ())


def _teams(fleet: Fleet, model: str, gpus: Iterable[Gpu]) -> Iterator[tuple[Gpu, ...]]:
    """The first of these GPUs on each node, as many as the model needs."""
    need, nodes = fleet.gangs.get(model, 1), dict[str, list[Gpu]]()
    for gpu in gpus:
        nodes.setdefault(gpu.node, []).append(gpu)
    for there in nodes.values():
        if len(there) >= need:
            yield tuple(there[:need])


def place_script(fleet: Fleet) -> Gpu | None:
    """Where the first script in line runs: where no model sleeps that would want the GPU back, if there is a choice."""
    if not fleet.scripts:
        return None
    return min(fleet.roomy(fleet.scripts[0].name), key=lambda gpu: (len(gpu.residents), fleet.free_gb(gpu)),
               default=None)  # fmt: skip


def makes_room(fleet: Fleet, resident: Resident, name: str) -> bool:
    """Whether the model or script would fit in the place of the resident, which may have to go."""
    if resident.model == name or name in fleet.gangs or not stays_not(fleet, resident):
        return False
    return any(_has_room_without(fleet, resident, gpu, name) for gpu in resident.gpus)


def stays_not(fleet: Fleet, resident: Resident) -> bool:
    """Whether it may be asked to leave."""
    return not any(gpu.id in fleet.pinned or gpu.reserved for gpu in resident.gpus)


def _has_room_without(fleet: Fleet, resident: Resident, gpu: Gpu, name: str) -> bool:
    if not fleet.will_do(gpu, name) or (gpu.worker and name not in fleet.demand):
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
        going = fleet.holders(resident.gpu) if alone and not resident.others else [resident]
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


def room_for_model(fleet: Fleet, patience: float, now: float) -> tuple[Action | None, float]:
    """An idle model makes room for one that somebody waits for and that is nowhere, and when it would.

    Not before the request has waited for `patience` times the reload of the one that goes.
    """
    for model in [] if fleet.closed else thirsty(fleet):
        step, loss_s = (None, 0.0) if fleet.serving(model) else way_for(fleet, model)
        if step:
            wait_s = min(patience * loss_s, GATHER_S) if model in fleet.gangs else patience * loss_s
            due = fleet.demand[model].waiting[0].arrived_at + wait_s
            return (step, due) if now >= due else (None, due)
    return None, math.inf


def way_for(fleet: Fleet, model: str) -> tuple[Action | None, float]:
    """The next step to a place for the model, and how long it takes whoever leaves it to be back."""
    if model in fleet.gangs:
        team = team_for(fleet, model)
        return gather(fleet, model, team), max((fleet.reload_s(r.model) for gpu in team for r in fleet.holders(gpu)),
                                               default=fleet.reload_s(model))  # fmt: skip
    gone = None if fleet.leaving() else victim(fleet, model)
    return (Unload(gone.model, gone.gpu.id), fleet.reload_s(gone.model)) if gone else (None, 0.0)


# --- models of several GPUs ---


def team_for(fleet: Fleet, model: str) -> tuple[Gpu, ...]:
    """The GPUs of one node that are cleared for the model at the least loss; none, where that cannot be."""

    def loss(gpu: Gpu) -> tuple[bool, float]:
        staying = [r for r in fleet.holders(gpu) if r.phase is not Phase.UNLOADING and not r.draining]
        at_work = gpu.worker is not None or any(r.phase is Phase.BUSY for r in staying)
        return at_work, sum(fleet.reload_s(r.model) for r in staying)

    def may_be_cleared(gpu: Gpu) -> bool:
        free = gpu.id not in fleet.pinned and not gpu.reserved and fleet.memory_gb[model] <= gpu.memory_gb
        return free and all(r.model != model and r.phase is not Phase.BOOTING and stays_not(fleet, r)
                            for r in fleet.holders(gpu))  # fmt: skip

    found = sorted(filter(may_be_cleared, fleet.gpus.values()), key=loss)
    return min(_teams(fleet, model, found), key=lambda team: sorted(map(loss, team), reverse=True), default=())


def gather(fleet: Fleet, model: str, team: Sequence[Gpu]) -> Action | None:
    """The next step to load the model on all of these: whoever is there leaves, and then the places are its own."""
    for there in (resident for gpu in team for resident in fleet.holders(gpu)):
        if there.phase is Phase.READY:
            return Unload(there.model, there.gpu.id)
        if there.phase is Phase.BUSY and not there.draining:
            return Drain(there.model, there.gpu.id)
    return Load.on(model, team) if team else None


def in_the_way(fleet: Fleet) -> Unload | Drain | None:
    """Somebody who was to leave and has nothing more to do, or is where a model of several GPUs waits for the rest."""
    for resident in fleet.residents():
        others = (other for gpu in resident.gpus for other in fleet.holders(gpu) if other is not resident)
        gang = bool(fleet.gangs) and any(
            other.model in fleet.gangs and other.phase is Phase.BOOTING for other in others
        )
        if resident.phase is Phase.READY and (resident.draining or gang):
            return Unload(resident.model, resident.gpu.id)
        if resident.phase is Phase.BUSY and gang and not resident.draining:
            return Drain(resident.model, resident.gpu.id)
    return None


def load_at_once(fleet: Fleet) -> Load | None:
    """A load for a request that none is under way for, where there is room."""
    for model in [] if fleet.closed else thirsty(fleet):
        gpus = place_model(fleet, model)
        if gpus and booting(fleet, model) < len(fleet.demand[model].waiting):
            return Load.on(model, gpus)
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
        if action := in_the_way(fleet) or load_at_once(fleet):
            return action
        if gpu := place_script(fleet):
            return Run(gpu.id)
        queued = len(fleet.scripts) - fleet.leaving()
        gone = victim(fleet, fleet.scripts[0].name) if queued > 0 else None
        if gone and self._must_go(fleet, gone, queued, now):
            return Unload(gone.model, gone.gpu.id)
        step, due = room_for_model(fleet, _LATE, now)
        self.wake_at = min(self.wake_at, due) if step is None else self.wake_at
        return step

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
        if action := in_the_way(fleet) or load_at_once(fleet):
            return action
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
        if step := in_the_way(fleet):
            return step
        gpus = list(fleet.gpus.values())
        half = math.ceil(len(gpus) / 2) if fleet.demand else 0
        for model, team in _in_turn(fleet, gpus[:half]):
            free = not any(gpu.residents for gpu in team) and all(fleet.has_room(gpu, model) for gpu in team)
            if not fleet.closed and fleet.demand[model].waiting and free:
                return Load.on(model, team)
        if fleet.scripts:
            for gpu in gpus[half:]:
                if fleet.has_room(gpu, fleet.scripts[0].name):
                    return Run(gpu.id)
                for there in gpu.residents.values():  # a model that was there before
                    if there.phase is Phase.READY and gpu.id not in fleet.pinned:
                        return Unload(there.model, gpu.id)
        return None


def _in_turn(fleet: Fleet, gpus: Iterable[Gpu]) -> Iterator[tuple[str, tuple[Gpu, ...]]]:
    """The GPUs dealt to the models, to each as many as it needs, until they run out."""
    left = iter(gpus)
    for model in cycle(sorted(fleet.demand)):
        team = tuple(islice(left, fleet.gangs.get(model, 1)))
        if len(team) < fleet.gangs.get(model, 1):
            return
        if len({gpu.node for gpu in team}) == 1:
            yield model, team
