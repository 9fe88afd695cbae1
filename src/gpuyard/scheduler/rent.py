"""Rent: the residency policy `cost`, which weighs waiting against the measured cost of moving a model.

All its patience is counted in reloads: a model that wakes in seconds is moved at once, one that boots for minutes
seldom. A model gets another GPU when its requests would wait long even so (rent or buy: what has been waited is held
against a reload), and gives one back when the rate of its requests needs fewer and scripts press.
"""

import math
from dataclasses import dataclass, field
from functools import partial

from gpuyard.scheduler.fleet import Demand, Fleet, Phase, Resident, Task
from gpuyard.scheduler.residency import (
    ANSWER_S,
    GATHER_S,
    SCRIPT_S,
    Action,
    Drain,
    Load,
    Run,
    Unload,
    booting,
    gather,
    in_the_way,
    makes_room,
    place_model,
    place_script,
    team_for,
    victim,
)
from gpuyard.scheduler.switching import Move

FIRST_WAIT_S = 24.0
"""After so much waiting, by all together, a model is loaded though scripts wait; at most as long as a reload takes."""
LATE = 10.0
"""Who has waited for so many boots, while nothing of its kind moves, gets the place of somebody at work."""

FORESIGHT_S = 60.0
"""A model that is expected is ready so long before."""


@dataclass(frozen=True, slots=True)
class Patience:
    """What a reload of so many seconds makes of the policy; all in seconds but for `caution`.

    `reload`: that. `window`: over which the rate of requests is taken that may need more GPUs, and `eager` what part of
    them is believed to last; `calm`: over which that is taken that needs fewer, and `caution` how much more than that
    rate those who stay must be able to answer. `backlog`: in what time a line of requests should be served. `quiet`:
    after such a silence requests are over for now. `last`: how long the last resident of a model stays for nothing.
    `wait`: requests that would wait longer are worth another GPU; `spare`: an idle one. `press`: scripts press that
    would wait longer than that; `nudge`: in such a silence. `look`: how often to look again.
    """

    reload: float
    window: float
    eager: float
    calm: float
    caution: float
    backlog: float
    quiet: float
    last: float
    wait: float
    press: float
    nudge: float
    spare: float
    look: float

    @classmethod
    def of(cls, reload: float) -> "Patience":
        """Found by search over workloads of the kinds that `benchmarks.policies` plays."""
        return cls(
            reload=reload,
            window=30.0,
            eager=min(0.3 + reload / 170, 1.0),
            calm=46.0 + 0.62 * reload,
            caution=min(0.78 + reload / 230, 1.3),
            backlog=35.0 + 0.7 * reload,
            quiet=17.0 + reload / 5.2,
            last=4 * max(reload - ANSWER_S, 0.0),
            wait=15.0,
            press=253.0 + 1.9 * reload,
            nudge=4 * reload,
            spare=max(reload / 2, 9.0),
            look=max(reload / 24, 1.0),
        )


@dataclass(slots=True)
class Cost:
    """The policy. It keeps nothing but its own patience by reload time."""

    wake_at: float = math.inf
    _patience: dict[float, Patience] = field(default_factory=dict[float, Patience])

    def act(self, fleet: Fleet, now: float) -> Action | None:
        """First who is worth another GPU, then scripts, then who must make room for either."""
        self.wake_at = math.inf
        if step := in_the_way(fleet):
            return step
        if self._is_late(fleet, now) and (gpu := place_script(fleet)):
            return Run(gpu.id)
        homeless: list[str] = []
        for model in [] if fleet.closed else sorted(fleet.demand, key=lambda name: _waits_since(fleet.demand[name])):
            if self._wants_more(fleet, model, now):
                if gpus := place_model(fleet, model):
                    return Load.on(model, gpus)
                homeless.append(model)
        if gpu := place_script(fleet):
            return Run(gpu.id)
        if gone := self._surplus(fleet, now):
            return Unload(gone.model, gone.gpu.id)
        stuck = [fleet.demand[model].waiting[0] for model in homeless if not fleet.serving(model)]
        if fleet.scripts and not any(gpu.worker for gpu in fleet.gpus.values()):
            stuck.append(fleet.scripts[0])
        for task in stuck:
            if action := self._make_room(fleet, task, now):
                return action
        if action := self._foresee(fleet, now):
            return action
        if fleet.demand and (fleet.scripts or any(demand.waiting for demand in fleet.demand.values())):
            look = now + min(self._of(fleet, model).look for model in fleet.demand)
            self.wake_at = min(self.wake_at, look)
        return None

    def _foresee(self, fleet: Fleet, now: float) -> Load | None:
        """A model that is likely to be asked for soon is loaded where nobody else needs the GPU."""
        for model, (begin, end) in sorted(fleet.expected.items()) if not fleet.closed else ():
            gpus = () if fleet.scripts or fleet.serving(model) else place_model(fleet, model)
            due = begin - max((fleet.load_s(model, gpu) for gpu in gpus), default=0.0) - FORESIGHT_S
            if gpus and due <= now < end:
                return Load.on(model, gpus)
            if gpus and now < due:
                self.wake_at = min(self.wake_at, due)
        return None

    def _is_late(self, fleet: Fleet, now: float) -> bool:
        """Scripts have waited for long, and none runs."""
        if not fleet.scripts or any(gpu.worker for gpu in fleet.gpus.values()):
            return False
        return now >= _stands_since(fleet, fleet.scripts[0]) + max(
            map(partial(_late_s, fleet), fleet.demand), default=0.0
        )

    def _make_room(self, fleet: Fleet, task: Task, now: float) -> Action | None:
        """For the first of its kind, of which none moves: in time, somebody else has to go."""
        if task.name in fleet.gangs:
            return self._gather(fleet, task, now)
        if fleet.leaving():
            return None
        gone, since = victim(fleet, task.name), _stands_since(fleet, task)
        if gone:
            first = self._first_wait_s(fleet, gone) if task.name in fleet.demand else _late_s(fleet, gone.model)
            return Unload(gone.model, gone.gpu.id) if gone.draining or now >= since + first else None
        late = [resident for resident in fleet.residents() if resident.phase is Phase.BUSY
                and makes_room(fleet, resident, task.name)
                and now >= since + _late_s(fleet, resident.model)]  # fmt: skip
        found = min(late, key=lambda resident: (fleet.reload_s(resident.model), resident.gpu.id), default=None)
        return Drain(found.model, found.gpu.id) if found else None

    def _gather(self, fleet: Fleet, task: Task, now: float) -> Action | None:
        """For a model of several GPUs: idle ones go as for any model, whoever is at work when it is late."""
        team = team_for(fleet, task.name)
        there = [resident for gpu in team for resident in fleet.holders(gpu)]
        if any(gpu.worker for gpu in team) or any(resident.phase is Phase.BUSY for resident in there):
            wait = min(_late_s(fleet, task.name), GATHER_S)
        else:
            wait = max((self._first_wait_s(fleet, resident) for resident in there), default=0.0)
        return gather(fleet, task.name, team) if now >= task.arrived_at + wait else None

    def _first_wait_s(self, fleet: Fleet, gone: Resident) -> float:
        """How long a request waits before an idle resident of another model goes; one that has twins goes at once."""
        twins = len(fleet.serving(gone.model)) > 1
        return 0.0 if twins else min(FIRST_WAIT_S, fleet.reload_s(gone.model))

    def _of(self, fleet: Fleet, model: str) -> Patience:
        reload = fleet.reload_s(model)
        return self._patience.get(reload) or self._patience.setdefault(reload, Patience.of(reload))

    def _wants_more(self, fleet: Fleet, model: str, now: float) -> bool:
        demand, patience = fleet.demand[model], self._of(fleet, model)
        if not demand.waiting:
            return False
        answer_s, serving = demand.mean_s(ANSWER_S), len(fleet.serving(model))
        if len(demand.waiting) <= booting(fleet, model):
            return False  # each has one that is on its way
        load = demand.rate(now, patience.window) * answer_s
        work = len(demand.waiting) * answer_s
        need = math.ceil(load * patience.eager + work / patience.backlog - 1e-9)
        if serving == 0:
            waited = sum(now - task.arrived_at for task in demand.waiting)
            return not fleet.scripts or need >= 2 or waited >= min(FIRST_WAIT_S, patience.reload)
        # While it loads, more come than those who serve can answer.
        wait = (work + max(0.0, load - serving) * patience.reload) / serving
        if fleet.scripts:
            return (
                serving < need
                and wait > patience.wait
                and (patience.reload < fleet.script_mean_s(SCRIPT_S) or _leaves_one(fleet))
            )
        return wait > patience.spare or (serving < need and wait > patience.wait)

    def _surplus(self, fleet: Fleet, now: float) -> Resident | None:
        """Who makes room for scripts, if they press and somebody has more than it needs."""
        queued = len(fleet.scripts) - fleet.leaving()
        if queued <= 0:
            return None
        gone = victim(fleet, fleet.scripts[0].name)
        if gone is None:
            return None
        demand, patience = fleet.demand[gone.model], self._of(fleet, gone.model)
        workers = sum(1 for gpu in fleet.gpus.values() if gpu.worker) + fleet.leaving()
        silent = not demand.waiting and now - (demand.arrivals[-1] if demand.arrivals else -math.inf) > patience.quiet
        pressed = queued * fleet.script_mean_s(SCRIPT_S) > (patience.nudge if silent else patience.press) * workers
        if not pressed or self._wants_more(fleet, gone.model, now):
            return None
        serving = len(fleet.serving(gone.model))
        if serving == 1:
            idle = now - gone.used_at >= patience.last
            return gone if idle and demand.rate(now, patience.calm) * demand.mean_s(ANSWER_S) < 0.5 else None
        load = demand.rate(now, patience.calm) * demand.mean_s(ANSWER_S) * patience.caution
        load += len(demand.waiting) * demand.mean_s(ANSWER_S) / patience.backlog
        return gone if silent or load <= serving - 1 else None


def _waits_since(demand: Demand) -> float:
    return demand.waiting[0].arrived_at if demand.waiting else math.inf


def _stands_since(fleet: Fleet, task: Task) -> float:
    """Since when nothing of the task's kind has moved while it waited."""
    return task.arrived_at if task.name in fleet.demand else max(task.arrived_at, fleet.scripts_moved_at)


def _late_s(fleet: Fleet, model: str) -> float:
    return LATE * fleet.switching.seconds(model, Move.BOOT)


def _leaves_one(fleet: Fleet) -> bool:
    """Whether with one model more there is still a GPU for scripts: they would stand still for a whole reload."""
    return sum(len(resident.gpus) for resident in fleet.residents() if resident.serves) < max(1, len(fleet.gpus) - 1)
