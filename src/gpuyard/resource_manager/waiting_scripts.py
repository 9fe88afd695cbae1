"""The jobs that wait for GPUs, as the scripts of a fleet.

A job of several GPUs reserves those that are free, or lends them to models while the
scripts on the others still run for long.

Jobs of one shape are one kind of script. What there is to know of a kind is found once,
so thousands of jobs cost little, however many GPUs there are.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from gpuyard.domain.shape import Shape
from gpuyard.residency.fleet import Fleet, FleetGpu, WaitingTask
from gpuyard.residency.switching import Switch

SCRIPT = "script"
"""What a script on a GPU is called, whatever it is."""
# A model on a GPU that is lent answers at least as long as it takes to load and unload.
_WORTH_LENDING = 2.0
_Suitable = Callable[[Iterable[str], Shape], frozenset[str]]


@dataclass(slots=True)
class _Kind:
    """The waiting jobs of one shape. `free`: the GPUs that they could have now and that
    no job before them takes. `on_nodes`: of jobs of several GPUs, the name and the
    number of scripts for each node; None until the first of them is added.
    """

    name: str
    free: Iterator[FleetGpu] = field(default_factory=lambda: iter(()))
    on_nodes: list[tuple[str, int]] | None = None


class WaitingScripts:
    """Fills the queue of scripts of a fleet, the first job first. `reserving`: the job
    that reserves GPUs; empty if none does. `reserved`: those that it keeps free.
    `lent`: those of its GPUs that models may use, or have not left since they might.
    `kept_from`: those that it lends, but not to this model, which would never leave.

    The first job of several GPUs that has to wait reserves the free ones of its nodes
    which no job before it takes, as in the queue of the scheduler. Otherwise the policy
    would give them to models, and would free them and lose them again and again. Once
    it has all, it keeps them until it starts.

    While scripts are likely to run for long on the others, it lends them to models, and
    until they end it is no script that waits, so no model leaves for it. Then models
    leave what was lent.
    """

    def __init__(
        self,
        fleet: Fleet,
        suitable: _Suitable,
        reserved: str = "",
        lent: AbstractSet[str] = frozenset(),
        busy_s: Callable[[str], float] = lambda _: 0.0,
        stays: Callable[[str, str], bool] = lambda _gpu, _model: False,
    ) -> None:
        """`suitable(gpus, shape)`: those of the GPUs that suit jobs of this shape.
        `reserved`: the job that reserved GPUs the last time, if it may keep them, and
        `lent` those that it lent. `busy_s(gpu)`: how long the script on the GPU is
        likely to run on. `stays(gpu, model)`: whether the model never leaves this GPU.
        """
        self.reserving = ""
        self.reserved: list[str] = []
        self.lent: AbstractSet[str] = frozenset()
        self.kept_from: dict[str, list[str]] = {}
        self._reserved = reserved
        self._lent_before = lent
        self._busy_s = busy_s
        self._stays = stays
        self._fleet = fleet
        self._suitable = suitable
        # The fleet's own may be shared with others.
        self._memory_gb = dict(fleet.memory_gb)
        self._allowed = dict(fleet.allowed_gpus)
        fleet.memory_gb = self._memory_gb
        fleet.allowed_gpus = self._allowed
        self._kinds: dict[Shape, _Kind] = {}
        # The free GPUs that jobs get at once, before one reserves.
        self._taken: set[str] = set()

    def add(self, job_id: str, shape: Shape, since: float, count: int) -> None:
        """Add a job that waits since then; `count`: how many scripts it is, if it needs
        one GPU for each.
        """
        kind = self._kinds.get(shape) or self._add_kind(shape)
        if shape.gpus * shape.nodes > 1:
            self._add_wide(kind, job_id, shape, since)
        elif self._allowed[kind.name] - self._fleet.pinned_gpus:
            self._take_free(kind, count)
            task = WaitingTask(0, kind.name, since)
            self._fleet.scripts.extend([task] * count)

    def _add_kind(self, shape: Shape) -> _Kind:
        fleet = self._fleet
        kind = _Kind(f"{SCRIPT} {len(self._kinds)}")
        self._kinds[shape] = kind
        # The scheduler lets no job behind it start on what is lent, but short ones.
        suitable = self._suitable(fleet.gpus, shape) - self.lent
        self._describe(kind.name, shape, suitable)
        kind.free = (
            gpu
            for gpu in fleet.gpus.values()
            if gpu.id not in self._taken and fleet.has_room(gpu, kind.name)
        )
        return kind

    def _describe(self, name: str, shape: Shape, gpus: frozenset[str]) -> None:
        self._memory_gb[name] = shape.gpu_memory_gb
        self._allowed[name] = gpus

    def _take_free(self, kind: _Kind, count: int) -> None:
        """Note the GPUs that these scripts get at once."""
        if self.reserving:
            return
        for _ in range(count):
            gpu = next(kind.free, None)
            if gpu is None:
                return
            self._taken.add(gpu.id)

    def _add_wide(self, kind: _Kind, job_id: str, shape: Shape, since: float) -> None:
        """Put a job of several GPUs in the queue, on the nodes where it can be. One
        that reserves waits only for the GPUs that are not free.
        """
        on_nodes = kind.on_nodes
        if on_nodes is None or (on_nodes and not self.reserving):
            on_nodes = self._place(kind, job_id, shape)
            # Those behind it find no free GPUs any more: they wait for all of theirs.
            kind.on_nodes = [(name, shape.gpus) for name, _ in on_nodes]
        for name, count in on_nodes:
            task = WaitingTask(0, name, since)
            self._fleet.scripts.extend([task] * count)

    def _place(self, kind: _Kind, job_id: str, shape: Shape) -> list[tuple[str, int]]:
        """The names of the scripts of this shape on each node where they can be, and
        how many GPUs the first of these jobs waits for there.
        """
        nodes = self._nodes_for(shape, kind.name)
        lent = self._lent_before if job_id == self._reserved else frozenset[str]()
        own = [self._own_gpus(gpus, kind.name, lent)[: shape.gpus] for gpus in nodes]
        reserves = self._begins_to_reserve(job_id, own, shape)
        if reserves:
            self.reserving = job_id
            own_ids = {gpu.id for gpus in own for gpu in gpus}
            if self._waits_long(nodes, own, shape):
                self._lend(own_ids)
                return []
            self.lent = lent & own_ids
            self.reserved = sorted(own_ids)
        placed: list[tuple[str, int]] = []
        for gpus, own_gpus in zip(nodes, own, strict=True):
            name = f"{kind.name} on {gpus[0].node}"
            self._describe(name, shape, frozenset(gpu.id for gpu in gpus))
            missing = shape.gpus - len(own_gpus)
            placed.append((name, missing if reserves else shape.gpus))
            self._taken.update(gpu.id for gpu in own_gpus)
            if reserves:
                self._reserve(own_gpus)
        return placed

    def _own_gpus(
        self, gpus: Iterable[FleetGpu], name: str, lent: AbstractSet[str]
    ) -> list[FleetGpu]:
        """Those of the GPUs that a job could have now: free ones, and those that it
        lends to models.
        """
        return [
            gpu
            for gpu in gpus
            if (gpu.id in lent and gpu.worker is None) or self._is_free(gpu, name)
        ]

    def _begins_to_reserve(
        self, job_id: str, own: Sequence[Sequence[FleetGpu]], shape: Shape
    ) -> bool:
        """Whether the job is the first that has to wait, or has reserved before. `own`:
        on each of its nodes, the GPUs that it could have now.
        """
        if self.reserving:
            return False
        must_wait = any(len(gpus) < shape.gpus for gpus in own)
        has_reserved = bool(own) and job_id == self._reserved
        return must_wait or has_reserved

    def _reserve(self, gpus: Iterable[FleetGpu]) -> None:
        for gpu in gpus:
            gpu.reserved = True
            if gpu.id in self.lent:
                gpu.called_back = True

    def _lend(self, own: set[str]) -> None:
        """Let models use these GPUs, but for those that would never leave them."""
        self.lent = own
        for model in self._fleet.demand:
            kept = sorted(gpu for gpu in own if self._stays(gpu, model))
            if kept:
                self.kept_from[model] = kept
                before = self._allowed.get(model, frozenset(self._fleet.gpus))
                self._allowed[model] = before.difference(kept)

    def _waits_long(
        self,
        nodes: Sequence[Sequence[FleetGpu]],
        own: Sequence[Sequence[FleetGpu]],
        shape: Shape,
    ) -> bool:
        """Whether scripts are likely to hold the missing GPUs for so long that models
        may use the others.
        """
        waits = [0.0]
        for gpus, own_gpus in zip(nodes, own, strict=True):
            missing = shape.gpus - len(own_gpus)
            others = [gpu for gpu in gpus if gpu not in own_gpus]
            waits += sorted(map(self._free_in_s, others))[:missing]
        return max(waits) > _WORTH_LENDING * self._longest_move_s()

    def _free_in_s(self, gpu: FleetGpu) -> float:
        return self._busy_s(gpu.id) if gpu.worker else 0.0

    def _longest_move_s(self) -> float:
        """How long the slowest model takes to load and to unload."""
        seconds = self._fleet.switching.seconds
        return max(
            (
                seconds(model, Switch.BOOT) + seconds(model, Switch.UNLOAD)
                for model in self._fleet.demand
            ),
            default=math.inf,
        )

    def _is_free(self, gpu: FleetGpu, name: str) -> bool:
        return gpu.id not in self._taken and self._fleet.has_room(gpu, name)

    def _nodes_for(self, shape: Shape, name: str) -> list[list[FleetGpu]]:
        """The nodes where a job of several GPUs can be once models have left, each with
        the GPUs that suit it: those where it can be soonest. Empty if they are too few.
        """
        fleet = self._fleet
        by_node: dict[str, list[FleetGpu]] = {}
        for gpu in fleet.gpus.values():
            if fleet.may_use(gpu, name) and gpu.id not in fleet.pinned_gpus:
                by_node.setdefault(gpu.node, []).append(gpu)
        found = [gpus for gpus in by_node.values() if len(gpus) >= shape.gpus]
        if len(found) < shape.nodes:
            return []
        found.sort(key=lambda gpus: self._missing_on(gpus, shape.gpus, name))
        return found[: shape.nodes]

    def _missing_on(
        self, gpus: Sequence[FleetGpu], wanted: int, name: str
    ) -> tuple[int, int]:
        """For how many of the wanted GPUs a script must end, and how many are not free:
        what has less of the first, then of the second, can start sooner.
        """
        without_script = sum(gpu.worker is None for gpu in gpus)
        free = sum(self._is_free(gpu, name) for gpu in gpus)
        return max(wanted - without_script, 0), max(wanted - free, 0)
