"""Residents: the models that are loaded. A policy decides which, where and until when;
this module carries out its decisions.

It acts before each decision about jobs, so that a model that is needed comes before
waiting jobs.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from gpuyard.config.settings import Settings
from gpuyard.controller.core import Core
from gpuyard.controller.job_streams import JobStreams
from gpuyard.controller.requests import Requests
from gpuyard.domain.models import ModelSpec
from gpuyard.gateway.request_queue import RequestQueues
from gpuyard.residency.cost_policy import CostPolicy
from gpuyard.residency.fleet import Fleet, Phase
from gpuyard.residency.policies import (
    Action,
    DrainResident,
    LoadModel,
    LruPolicy,
    ResidencyPolicy,
    RunScript,
    ThresholdPolicy,
    UnloadModel,
    next_step_for,
    place_model,
)
from gpuyard.residency.static_policy import StaticPolicy
from gpuyard.residency.switching import Switch, SwitchTimes
from gpuyard.resource_manager.fleet_snapshot import FleetSnapshot
from gpuyard.resource_manager.learned_timings import LearnedTimings
from gpuyard.resource_manager.model_servers import ModelServers
from gpuyard.resource_manager.resident import Resident
from gpuyard.resource_manager.urgent_models import gpu_of_preemptible_script
from gpuyard.scheduler.preemption import URGENT

# A policy that wants more actions at once is at fault.
_MAX_ACTIONS = 1000
_SHORTEST_PAUSE_S = 0.05
# So often to look whether GPUs that a job reserves may be lent: time is no event.
_LEND_EVERY_S = 30.0
log = structlog.get_logger(__name__)


def policy_of(settings: Settings) -> ResidencyPolicy:
    """The policy that the settings name."""
    match settings.residency.policy:
        case "cost":
            return CostPolicy()
        case "lru":
            return LruPolicy()
        case "static":
            return StaticPolicy()
        case "threshold" | "round_robin":
            # `round_robin` differs only in the items of batches (`batch_items`).
            eviction = settings.resource_manager.eviction_policy
            return ThresholdPolicy(eviction.min_script_queue_for_evict)


class Residents:
    """Decides which models of the settings are loaded.

    `servers`: the model servers. `request_queues`: the waiting requests, by model.
    `pinned`: models that are never unloaded. `closed_for_batch`: an exclusive batch
    runs, and only the models that it loads again may be loaded.
    `items_waiting_for(job_id)`: how many scripts wait for a waiting job.
    `leaves(node_id)`: whether a node is about to go, so that its models must.
    """

    def __init__(self, core: Core, requests: Requests, streams: JobStreams) -> None:
        self._core = core
        self._requests = requests
        self.specs: Mapping[str, ModelSpec] = core.settings.models
        self.request_queues = RequestQueues(
            self.specs,
            self._decide_soon,
            core.policy.ageing_s,
            core.settings.resource_manager.cooling_s,
        )
        self.timings = LearnedTimings(core, self.specs)
        self.request_queues.asked = self.timings.asked
        self.servers = ModelServers(
            core,
            requests,
            self.timings,
            self.request_queues,
            self._decide_soon,
            streams,
        )
        self.pinned: set[str] = set()
        self.closed_for_batch = False
        self.items_waiting_for: Callable[[str], int] = lambda _: 1
        self.leaves: Callable[[str], bool] = lambda _: False
        self._snapshot = FleetSnapshot(
            core, self.specs, self.request_queues, self.timings, self._free_memory_gb
        )
        self._policy = policy_of(core.settings)
        self._alarm: asyncio.TimerHandle | None = None
        self._is_stopping = False

    # --- start and stop ---

    def start(self) -> None:
        """Find what is loaded, and begin to decide."""
        if not self.specs:
            self.servers.find()  # those of models that the settings had before
            return
        self.servers.start()
        self.timings.restore()
        pinned_by_people = {
            row["name"]: row["pinned"] for row in self._core.queries.models()
        }
        self.pinned = {
            model
            for model, spec in self.specs.items()
            if pinned_by_people.get(model, spec.pinned)
        }
        self.servers.find()

    async def close(self) -> None:
        """Stop deciding; the model servers run on."""
        self._is_stopping = True
        if self._alarm:
            self._alarm.cancel()
        await self.servers.close()

    async def leave(self) -> None:
        """Unload all models and wait until they are gone, because the gpuyard server
        stops.
        """
        self._is_stopping = True
        await self.servers.unload_all()

    def stay(self) -> None:
        """Load models again, because the server does not stop after all."""
        self._is_stopping = False

    # --- deciding ---

    def _decide_soon(self) -> None:
        """Decide once for all that happens at this moment."""
        if self.servers.is_started and not self._is_stopping:
            self._core.schedule_soon()

    def act(self) -> None:
        """Do what the policy wants."""
        if not self._has_work():
            return
        servers = self.servers
        for resident in list(servers.live.values()):
            if not resident.must_unload and self.leaves(servers.node_of(resident).id):
                resident.leave(must_unload=True)
            if resident.can_leave_now:
                servers.sleep_or_unload(resident)
        servers.update_bookings()
        servers.start_beside()
        now = time.monotonic()
        fleet = self.fleet(now)
        self._unload_hopeless(fleet)
        self._load_pinned(fleet, now)
        for _ in range(_MAX_ACTIONS):
            action = self._policy.act(fleet, now)
            if action is None:
                break
            self._carry_out(action, fleet, now)
        else:
            policy = type(self._policy).__name__
            log.error("the policy wants more and more actions", policy=policy)
        self._load_urgent(fleet, now)
        self._set_alarm(now)

    def _has_work(self) -> bool:
        if self._is_stopping or not self.servers.is_started:
            return False
        if self.servers.live or self.pinned:
            return True
        return self._has_requests() or bool(self.timings.expected())

    def _has_requests(self) -> bool:
        return any(queue.waiting for queue in self.request_queues.by_model.values())

    def _carry_out(self, action: Action, fleet: Fleet, now: float) -> None:
        """Carry out the action, and change the fleet as if it were done."""
        match action:
            case LoadModel(model, gpus):
                self.servers.load(model, gpus)
                fleet.start_loading(model, gpus, now)
            case UnloadModel(model, gpu):
                self.servers.sleep_or_unload(self.servers.on(model, gpu))
                fleet.gpus[gpu].residents[model].phase = Phase.UNLOADING
            case DrainResident(model, gpu):
                self.servers.on(model, gpu).drain()
                fleet.gpus[gpu].residents[model].draining = True
            case RunScript(gpu):
                # The decision about jobs starts the script.
                fleet.gpus[gpu].worker = fleet.take_script(gpu).name

    def _unload_hopeless(self, fleet: Fleet) -> None:
        """Unload servers that wait for a GPU that is out of use, or that nobody needs
        any more.
        """
        for resident in self.servers.live.values():
            if not self.servers.is_waiting(resident):
                continue
            lost_a_gpu = any(
                gpu not in fleet.gpus and self._state_is_known(gpu)
                for gpu in resident.gpus
            )
            if lost_a_gpu or self._is_unneeded(resident):
                self.servers.unload(resident)
                for gpu in resident.gpus:
                    if gpu in fleet.gpus:
                        fleet.gpus[gpu].residents.pop(resident.model, None)

    def _is_unneeded(self, resident: Resident) -> bool:
        """Whether GPUs are being freed for a model that nobody requests any more."""
        promise = self._core.view.promises.get(resident.job_id)
        waits_for_gpus = promise is not None and bool(promise.attempts)
        has_requests = self.request_queues.by_model[resident.model].waiting
        is_pinned = resident.model in self.pinned
        return waits_for_gpus and not is_pinned and not has_requests

    def _state_is_known(self, gpu: str) -> bool:
        """Whether the state of the GPU is known: false while its node is not
        connected.
        """
        device = self._core.view.devices.get(gpu)
        if device is None or device.node_id is None:
            return True
        return self._core.view.node(device.node_id).state == "online"

    def _failing_models(self, now: float) -> set[str]:
        """The models that failed a moment ago and are not loaded for a while."""
        return {
            model
            for model, failure in self.servers.failures.items()
            if failure.until > now
        }

    def _load_pinned(self, fleet: Fleet, now: float) -> None:
        if self.closed_for_batch:
            return
        for model in sorted(self.pinned - self._failing_models(now)):
            while not fleet.serving(model):
                gpus = place_model(fleet, model)
                if gpus:
                    action = LoadModel.on(model, gpus)
                else:
                    action, _ = next_step_for(fleet, model)
                if action is None:
                    break
                self._carry_out(action, fleet, now)

    def _load_urgent(self, fleet: Fleet, now: float) -> None:
        """Load the models that urgent requests wait for where preemptible scripts run,
        if they are to be loaded nowhere else. The jobs of their servers are urgent as
        well, so the scheduler preempts the scripts.
        """
        if self.closed_for_batch:
            return
        failing = self._failing_models(now)
        for model, queue in self.request_queues.by_model.items():
            is_urgent = queue.waiting.highest_priority() == URGENT
            if not is_urgent or model in failing or fleet.serving(model):
                continue
            gpu = gpu_of_preemptible_script(self._core.view, fleet, model)
            if gpu is None:
                continue
            # A server that sleeps there would wake at once, beside the script. The next
            # decision starts another one.
            is_asleep_there = gpu.resident(model) is not None
            action = (
                UnloadModel(model, gpu.id)
                if is_asleep_there
                else LoadModel.on(model, [gpu])
            )
            self._carry_out(action, fleet, now)

    def _set_alarm(self, now: float) -> None:
        """Decide again when the policy wants to, or when a model that failed and is
        needed may be loaded again.
        """
        needed = set(self.pinned)
        for model, queue in self.request_queues.by_model.items():
            if queue.waiting:
                needed.add(model)
        wake_at = self._policy.wake_at
        if self._snapshot.reserving and self._has_requests():
            wake_at = min(wake_at, now + _LEND_EVERY_S)
        for model in self._failing_models(now) & needed:
            wake_at = min(wake_at, self.servers.failures[model].until)
        if self._alarm:
            self._alarm.cancel()
        self._alarm = None
        if wake_at < math.inf:
            delay = max(wake_at - now, _SHORTEST_PAUSE_S)
            self._alarm = asyncio.get_running_loop().call_later(
                delay, self._core.schedule
            )

    # --- facts ---

    def fleet(self, now: float, *, vacated: str = "") -> Fleet:
        """What the policy sees at `now` (monotonic seconds), if the script on the GPU
        `vacated` were gone.
        """
        fleet = self._snapshot.fleet(
            self.servers.live.values(),
            self.pinned,
            self._failing_models(now),
            self.items_waiting_for,
            now,
            vacated,
        )
        fleet.closed_for_batch = self.closed_for_batch
        return fleet

    def _free_memory_gb(self) -> dict[str, float]:
        """The free memory of each GPU in gigabytes, by the newest reading."""
        return {
            uuid: reading.free_mb / 1024
            for uuid, reading in self._requests.gpus.figures().items()
            if reading.free_mb
        }

    def would_load_on(self, gpu: str) -> bool:
        """Whether the policy would load a model on this GPU if the script there
        ended now.
        """
        for resident in self.servers.live.values():
            if gpu in resident.gpus and self.servers.is_waiting(resident):
                return True  # a model on several GPUs waits for this one
        if self.closed_for_batch or not self._has_requests():
            return False
        now = time.monotonic()
        fleet = self.fleet(now, vacated=gpu)
        # No running worker leaves for a model that may only be needed later.
        fleet.expected_demand = {}
        if gpu not in fleet.gpus:
            return False
        action = self._policy.act(fleet, now)
        return isinstance(action, LoadModel) and gpu in action.gpus

    def reserving(self, model: str) -> tuple[str, Sequence[str]]:
        """The waiting job that keeps GPUs from the model, and these; empty if none
        does.
        """
        snapshot = self._snapshot
        gpus = snapshot.reserved or snapshot.kept_from.get(model, ())
        if gpus and snapshot.reserving in self._core.view.queue:
            return snapshot.reserving, gpus
        return "", ()

    def keeps_brain(self, resident: Resident) -> bool:
        """Whether it never leaves, because it is a model of the brain on its GPUs."""
        return self._snapshot.keeps_brain(resident)

    @property
    def switch_times(self) -> SwitchTimes:
        """How long models take to load, wake and unload."""
        return self.timings.switch_times

    def reload_s(self, model: str) -> float:
        """How long it takes to have the model back; 0 if it is not configured."""
        if model not in self.specs:
            return 0.0
        move = Switch.WAKE if self.specs[model].sleeps else Switch.REBOOT
        return self.switch_times.seconds(model, move)

    def unload_s(self, model: str) -> float:
        """How long it takes to unload the model; 0 if it is not configured."""
        if model not in self.specs:
            return 0.0
        return self.switch_times.seconds(model, Switch.UNLOAD)
