"""Sight: the yard as a residency policy sees it. Times in it are monotonic seconds of this server."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from gpuyard.controller.core import Core
from gpuyard.controller.experience import Experience
from gpuyard.controller.resident import Resident
from gpuyard.domain.models import ModelSpec
from gpuyard.domain.shape import Shape
from gpuyard.gateway.line import Lines
from gpuyard.scheduler.fitting import allowed, suitable
from gpuyard.scheduler.fleet import Demand, Fleet, Gpu, Phase, Task
from gpuyard.scheduler.fleet import Resident as Standing

# So many waiting scripts tell a policy all it needs.
_SCRIPTS = 2000
_SCRIPT = "script"


class Sight:
    """Makes a fleet of the view, and learns meanwhile how long scripts keep a GPU.

    `measured()` says how much of each GPU's memory is free (gigabytes), where somebody can tell.
    """

    def __init__(
        self,
        core: Core,
        specs: Mapping[str, ModelSpec],
        lines: Lines,
        experience: Experience,
        measured: Callable[[], Mapping[str, float]],
    ) -> None:
        self._core = core
        self._measured = measured
        self._specs = specs
        self._lines = lines
        self._experience = experience
        self._sleepers = frozenset(model for model, spec in specs.items() if spec.sleeps)
        self._gangs = {model: spec.gpus for model, spec in specs.items() if spec.gpus > 1}
        self._working: dict[str, tuple[str, float]] = {}  # by GPU, whose script is on it and since when
        self._moved_at, self._ended, self._took_s = 0.0, 0, 0.0

    def fleet(
        self,
        residents: Iterable[Resident],
        pinned: set[str],
        tired: set[str],
        items_for: Callable[[str], int],
        now: float,
    ) -> Fleet:
        """All usable GPUs with what is on them. Nobody asks for models that are `tired`: they failed a moment ago.

        `items_for(job_id)`: how many scripts stand in line with a job that waits.
        """
        view, there = self._core.view, list(residents)
        free = self._measured()
        gpus = {uuid: Gpu(uuid, device.memory_gb, measured_gb=free.get(uuid), node=device.node_id or "",
                          kind=self._experience.kind(uuid))
                for device in view.usable_devices() if (uuid := device.uuid)}  # fmt: skip
        self._see_scripts(gpus, {gpu for resident in there if resident.awake for gpu in resident.gpus}, now)
        for resident in there:
            for gpu in (homes := [gpus[gpu] for gpu in resident.gpus if gpu in gpus]):
                gpu.residents[resident.model] = homes[0].resident(resident.model) or _standing(resident, homes)
        stays = frozenset(gpu for r in there for gpu in r.gpus if r.model in pinned or self._is_brain(gpu))
        fleet = Fleet(
            gpus, {_SCRIPT: 0.0} | {model: spec.memory_gb for model, spec in self._specs.items()},
            self._experience.switching, warm=self._experience.warm,
            expected={m: times for m, times in self._experience.expected().items() if m not in tired},
            sleepers=self._sleepers, gangs=self._gangs, pinned=stays,
            demand={model: self._demand(model, model in tired) for model in self._specs},
            scripts_moved_at=self._moved_at, scripts_ended=self._ended, scripts_took_s=self._took_s, whole=True,
        )  # fmt: skip
        self._line_up(fleet, {resident.job_id for resident in there}, items_for, now)
        return fleet

    def _is_brain(self, uuid: str) -> bool:
        device = self._core.view.devices.get(uuid)
        return device is not None and self._core.settings.resource_manager.is_brain(device.index, uuid)

    def _see_scripts(self, gpus: Mapping[str, Gpu], homes: set[str], now: float) -> None:
        """What is booked and no resident's is a script's; one that is there no more has ended."""
        working: dict[str, tuple[str, float]] = {}
        for node in self._core.view.nodes.values():
            for holder, share in node.bookings.items():
                for uuid in share.gpu_uuids:
                    if uuid in gpus and uuid not in homes:
                        gpus[uuid].worker = _SCRIPT
                        before = self._working.get(uuid)
                        working[uuid] = before if before and before[0] == holder else (holder, now)
        for uuid, (holder, since) in self._working.items():
            if working.get(uuid, ("", 0.0))[0] != holder:
                self._moved_at, self._ended, self._took_s = now, self._ended + 1, self._took_s + now - since
        self._working = working

    def _line_up(self, fleet: Fleet, servers: set[str], items_for: Callable[[str], int], now: float) -> None:
        """Let the jobs that wait for GPUs stand in the fleet's line, once for each GPU they need.

        The first of those that need several keeps what is free, as it does in the queue: nobody would start there, and
        a policy that thought so would free no more.
        """
        view, utc, kept = self._core.view, self._core.clock(), False
        waiting = [job for job in islice(view.queue, _SCRIPTS) if job.shape.gpus and job.id not in servers]
        names: dict[Shape, str] = {}
        for job in sorted(waiting, key=lambda job: (-job.priority, job.created_at)):
            name = names.get(job.shape) or names.setdefault(job.shape, self._name(fleet, job.shape, len(names)))
            if not fleet.only[name] - fleet.pinned:
                continue  # nobody may make room for it
            need, free = job.shape.gpus * job.shape.nodes, fleet.roomy(name)
            if len(free) < need and need > 1 and not kept:
                kept, need = True, need - len(free)
                for gpu in free:
                    gpu.reserved = True
            task = Task(0, name, now - max(utc - job.created_at, 0.0))
            fleet.scripts.extend([task] * (need if need > 1 else min(items_for(job.id), _SCRIPTS)))

    def _name(self, fleet: Fleet, shape: Shape, number: int) -> str:
        """What the fleet calls scripts of this shape; it learns which GPUs will do for them."""
        view, name = self._core.view, f"{_SCRIPT} {number}"
        devices = [view.devices[uuid] for uuid in fleet.gpus]
        will_do = [d.uuid for d in suitable(devices, shape) if allowed(view.node(d.node_id or ""), shape)]
        fleet.memory_gb = {**fleet.memory_gb, name: shape.gpu_memory_gb}
        fleet.only = {**fleet.only, name: frozenset(will_do)}
        return name

    def _demand(self, model: str, tired: bool) -> Demand:
        line = self._lines.lines[model]
        waiting = deque(Task(0, model, waiter.since) for waiter in line.waiting if not tired)
        return Demand(waiting, line.arrivals, line.answered, line.answering_s)


def _standing(resident: Resident, homes: Sequence[Gpu]) -> Standing:
    replica = resident.replica
    phase = Phase.BUSY if resident.phase is Phase.READY and replica and replica.busy else resident.phase
    used_at = replica.used_at if replica else resident.since
    leaving = resident.phase is Phase.READY and replica is not None and replica.draining
    return Standing(resident.model, homes[0], phase, resident.since, used_at, others=tuple(homes[1:]),
                    draining=leaving)  # fmt: skip
