"""The fleet as a residency policy sees it, made from the view.

Times are monotonic seconds of this server.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from gpuyard.controller.core import Core
from gpuyard.domain.models import ModelSpec, brain_models
from gpuyard.domain.shape import Shape
from gpuyard.gateway.request_queue import RequestQueues
from gpuyard.residency.fleet import (
    Demand,
    Fleet,
    FleetGpu,
    FleetResident,
    Phase,
    WaitingTask,
)
from gpuyard.resource_manager.learned_timings import LearnedTimings
from gpuyard.resource_manager.resident import Resident
from gpuyard.resource_manager.waiting_scripts import SCRIPT, WaitingScripts
from gpuyard.scheduler.fitting import SLACK, allowed, could_hold, suitable_devices

# A policy needs to know of no more waiting scripts, and requests of a model, than this.
_MAX_SCRIPTS = 2000
_MAX_REQUESTS = 2000


class FleetSnapshot:
    """Makes the fleet for the policies, and learns how long scripts keep a GPU.

    `free_memory_gb()` gives the free memory of each GPU, where a reading exists.
    `reserving`: the waiting job that reserves GPUs, empty if none does; `reserved`:
    those that it keeps free; `kept_from`: those that it keeps from this model only.
    """

    def __init__(
        self,
        core: Core,
        specs: Mapping[str, ModelSpec],
        request_queues: RequestQueues,
        timings: LearnedTimings,
        free_memory_gb: Callable[[], Mapping[str, float]],
    ) -> None:
        self._core = core
        self._free_memory_gb = free_memory_gb
        self._specs = specs
        self._request_queues = request_queues
        self._timings = timings
        self._sleepers = frozenset(
            model for model, spec in specs.items() if spec.sleeps
        )
        self._brain_models = brain_models(specs)
        # Models that may only be on nodes which have the folders of this host.
        self._kept_here = frozenset(
            model for model, spec in specs.items() if not spec.joined
        )
        eviction = core.settings.resource_manager.eviction_policy
        self._prefers_idle = eviction.prefer_idle_llm_eviction
        self._gangs = {
            model: spec.gpus for model, spec in specs.items() if spec.gpus > 1
        }
        # By GPU: the attempt or job whose script is on it, and since when.
        self._scripts: dict[str, tuple[str, float]] = {}
        # By waiting job, since when it waits.
        self._waiting_since: dict[str, float] = {}
        # The waiting job that reserves GPUs, and those that it lends to models.
        self.reserving = ""
        self.reserved: Sequence[str] = ()
        self.kept_from: Mapping[str, Sequence[str]] = {}
        self._lent: AbstractSet[str] = frozenset()
        self._last_script_ended_at = 0.0
        self._scripts_ended = 0
        self._scripts_run_s = 0.0

    def fleet(
        self,
        residents: Iterable[Resident],
        pinned: set[str],
        failing: set[str],
        items_waiting_for: Callable[[str], int],
        now: float,
        vacated: str = "",
    ) -> Fleet:
        """All usable GPUs, and what is on them. The script on the GPU `vacated` counts
        as gone.

        Models in `failing` failed a moment ago and count as not requested.
        `items_waiting_for(job_id)`: how many scripts wait for a waiting job.
        """
        residents = list(residents)
        gpus = self._gpus()
        in_use = {gpu for each in residents if each.is_awake for gpu in each.gpus}
        self._track_scripts(gpus, in_use, now)
        for resident in residents:
            _add_resident(gpus, resident)
        fleet = Fleet(
            gpus,
            self._memory_gb(),
            self._timings.switch_times,
            warm_nodes=self._timings.warm,
            expected_demand=self._expected_demand(failing),
            can_sleep=self._sleepers,
            allowed_gpus=self._allowed(gpus),
            gang_sizes=self._gangs,
            pinned_gpus=self._pinned_gpus(residents, pinned),
            brain_models=self._brain_models,
            prefer_idle=self._prefers_idle,
            demand={
                model: self._demand(model, model in failing) for model in self._specs
            },
            last_script_ended_at=self._last_script_ended_at,
            scripts_ended=self._scripts_ended,
            scripts_run_s=self._scripts_run_s,
            exclusive_scripts=True,
            shared_part=self._core.settings.gpus.models_percent / 100,
        )
        if vacated in gpus:
            gpus[vacated].worker = None
        model_jobs = {resident.job_id for resident in residents}
        scripts = self._add_scripts(fleet, model_jobs, pinned, items_waiting_for, now)
        if not vacated:
            self.reserving = scripts.reserving
            self.reserved = scripts.reserved
            self.kept_from = scripts.kept_from
            self._lent = scripts.lent
        return fleet

    def _memory_gb(self) -> dict[str, float]:
        """By what is on a GPU: a script, whatever it needs, or a model."""
        of_models = {model: spec.memory_gb for model, spec in self._specs.items()}
        return {SCRIPT: 0.0, **of_models}

    def _expected_demand(
        self, failing: AbstractSet[str]
    ) -> dict[str, tuple[float, float]]:
        """When models are likely to be requested next, but for those that fail."""
        return {
            model: times
            for model, times in self._timings.expected().items()
            if model not in failing
        }

    def _gpus(self) -> dict[str, FleetGpu]:
        free_memory_gb = self._free_memory_gb()
        view = self._core.view
        return {
            device.uuid: FleetGpu(
                device.uuid,
                device.memory_gb,
                measured_gb=free_memory_gb.get(device.uuid),
                node=device.node_id or "",
                gpu_class=self._timings.kind(device.uuid),
                brain_rank=device.brain_rank,
                away=view.node(device.node_id or "").joined,
            )
            for device in view.usable_devices(joined=self._some_are_joined)
        }

    @property
    def _some_are_joined(self) -> bool:
        return len(self._kept_here) < len(self._specs)

    def _allowed(self, gpus: Mapping[str, FleetGpu]) -> dict[str, frozenset[str]]:
        """The GPUs that each model may use, if not all."""
        own = frozenset(uuid for uuid, gpu in gpus.items() if not gpu.away)
        if len(own) == len(gpus):
            return {}
        return dict.fromkeys(self._kept_here, own)

    def _pinned_gpus(
        self, residents: Iterable[Resident], pinned: set[str]
    ) -> frozenset[str]:
        """The GPUs whose models never leave: those with pinned models, and those of the
        brain with a model of the brain.
        """
        return frozenset(
            gpu
            for resident in residents
            for gpu in resident.gpus
            if resident.model in pinned or self._is_kept_for_brain(resident.model, gpu)
        )

    def keeps_brain(self, resident: Resident) -> bool:
        """Whether it never leaves, because it is a model of the brain on its GPUs."""
        model = resident.model
        return any(self._is_kept_for_brain(model, gpu) for gpu in resident.gpus)

    def _is_kept_for_brain(self, model: str, gpu: str) -> bool:
        return model in self._brain_models and self._is_brain(gpu)

    def _is_brain(self, uuid: str) -> bool:
        device = self._core.view.devices.get(uuid)
        if device is None:
            return False
        return self._core.settings.resource_manager.is_brain(device.index, uuid)

    def _track_scripts(
        self, gpus: Mapping[str, FleetGpu], model_gpus: set[str], now: float
    ) -> None:
        """Note which GPUs run scripts, and which scripts have ended since the last
        call. A booked GPU without an awake model runs a script.
        """
        scripts: dict[str, tuple[str, float]] = {}
        for node in self._core.view.nodes.values():
            for holder, booking in node.bookings.items():
                for uuid in booking.gpu_uuids:
                    if uuid not in gpus or uuid in model_gpus:
                        continue
                    if holder in self._core.view.cooling:
                        gpus[uuid].reserved = True
                        continue
                    gpus[uuid].worker = SCRIPT
                    script = self._scripts.get(uuid)
                    if script is None or script[0] != holder:
                        script = (holder, now)
                    scripts[uuid] = script
        for uuid, (holder, since) in self._scripts.items():
            current = scripts.get(uuid)
            if current is None or current[0] != holder:
                self._last_script_ended_at = now
                self._scripts_ended += 1
                self._scripts_run_s += now - since
        self._scripts = scripts

    def _add_scripts(
        self,
        fleet: Fleet,
        model_jobs: set[str],
        pinned: set[str],
        items_waiting_for: Callable[[str], int],
        now: float,
    ) -> WaitingScripts:
        """Put the jobs that wait for GPUs into the fleet's queue of scripts, once for
        each GPU that they need.
        """
        view = self._core.view
        utc = self._core.clock()
        waiting = [
            job
            for job in islice(view.queue.with_gpus.values(), _MAX_SCRIPTS)
            if job.id not in model_jobs
        ]
        # Known once, a time stays as it is: the clock of the host may be set.
        waiting_since = {
            job.id: self._waiting_since.get(job.id, now - max(utc - job.created_at, 0))
            for job in waiting
        }
        self._waiting_since = waiting_since
        scripts = WaitingScripts(
            fleet,
            self._suitable,
            self._keeping(),
            self._lent,
            lambda gpu: self._busy_s(gpu, now),
            lambda gpu, model: model in pinned or self._is_kept_for_brain(model, gpu),
        )
        for job in sorted(waiting, key=lambda job: (-job.priority, job.created_at)):
            count = 1
            if job.shape.gpus * job.shape.nodes == 1:
                count = min(items_waiting_for(job.id), _MAX_SCRIPTS)
            scripts.add(job.id, job.shape, waiting_since[job.id], count)
        return scripts

    def _busy_s(self, gpu: str, now: float) -> float:
        """How long the script on the GPU is likely to run on: by its estimate, or by
        others of its type. If there is neither, or that time is over, as long again as
        it has run.
        """
        view = self._core.view
        holder, since = self._scripts[gpu]
        attempt = view.attempts.get(holder)
        job = view.jobs.get(attempt.job_id if attempt else holder)
        ran_s = self._core.run_clock.ran_s(holder) or now - since
        if job is None:
            return ran_s
        expected_s = job.estimated_s or view.learning.usual_s(job.job_type) or 0.0
        left_s = expected_s - ran_s if expected_s > ran_s else ran_s
        return left_s if job.timeout_s is None else min(left_s, job.timeout_s - ran_s)

    def _keeping(self) -> str:
        """The job that reserved GPUs the last time, if it waits for nothing else: one
        that lacks cores or memory would keep its GPUs idle for hours.
        """
        view = self._core.view
        job = view.jobs.get(self.reserving)
        if job is None:
            return ""
        shape = job.shape
        places = sum(
            could_hold(node, shape)
            and node.free.cpus + SLACK >= shape.cpus
            and node.free.memory_gb + SLACK >= shape.memory_gb
            for node in view.nodes.values()
        )
        return job.id if places >= shape.nodes else ""

    def _suitable(self, gpus: Iterable[str], shape: Shape) -> frozenset[str]:
        """Those of the GPUs that suit the shape."""
        view = self._core.view
        devices = [view.devices[uuid] for uuid in gpus]
        return frozenset(
            device.uuid
            for device in suitable_devices(devices, shape)
            if allowed(view.node(device.node_id or ""), shape)
        )

    def _demand(self, model: str, is_failing: bool) -> Demand:
        queue = self._request_queues.by_model[model]
        waiting = deque[WaitingTask]()
        if not is_failing:
            since = sorted(
                request.terms.since for request in islice(queue.waiting, _MAX_REQUESTS)
            )
            waiting.extend(WaitingTask(0, model, at) for at in since)
        return Demand(waiting, queue.arrivals, queue.answered, queue.answering_s)


def _add_resident(gpus: Mapping[str, FleetGpu], resident: Resident) -> None:
    """Put the resident on its usable GPUs."""
    own_gpus = [gpus[gpu] for gpu in resident.gpus if gpu in gpus]
    if not own_gpus:
        return
    known = own_gpus[0].resident(resident.model)
    fleet_resident = known or _fleet_resident(resident, own_gpus)
    for gpu in own_gpus:
        gpu.residents[resident.model] = fleet_resident


def _fleet_resident(resident: Resident, gpus: Sequence[FleetGpu]) -> FleetResident:
    phase = resident.phase
    draining = False
    used_at = resident.since
    if resident.replica:
        used_at = resident.replica.used_at
        if phase is Phase.READY:
            draining = resident.replica.draining
            if resident.replica.taken:
                phase = Phase.BUSY
    return FleetResident(
        resident.model,
        gpus[0],
        phase,
        resident.since,
        used_at,
        other_gpus=tuple(gpus[1:]),
        draining=draining,
    )
