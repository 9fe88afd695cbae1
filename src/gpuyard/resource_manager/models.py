"""Requests about models: list, load, unload, pin."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpuyard.controller.core import Core
from gpuyard.domain.errors import NotFoundError, RefusedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.states import GpuState
from gpuyard.domain.units import format_duration, format_gb
from gpuyard.residency.cost_policy import IDLE_LATE, LATE
from gpuyard.residency.fleet import Fleet, Phase
from gpuyard.residency.policies import choose_gang_gpus, place_model
from gpuyard.residency.switching import Switch
from gpuyard.resource_manager.resident import Failure, Resident, model_shape
from gpuyard.resource_manager.residents import Residents
from gpuyard.scheduler.pool_demand import pools_for

GPU_STATES = {
    Phase.BOOTING: GpuState.BOOTING_LLM,
    Phase.READY: GpuState.LLM_READY,
    Phase.BUSY: GpuState.LLM_BUSY,
    Phase.UNLOADING: GpuState.UNLOADING,
    Phase.ASLEEP: GpuState.ASLEEP,
}
PHASES_BY_ACTIVITY = (
    Phase.BUSY,
    Phase.READY,
    Phase.BOOTING,
    Phase.UNLOADING,
    Phase.ASLEEP,
)
"""The most active server of a model, or on a GPU, gives the state that is shown."""
# A model that boots is always slower than one that is loaded.
_ALMOST_LOADED_S = 0.1
# Sums of floats are not exact.
_SLACK_PERCENT = 1e-4


class Models:
    """Carries out requests about the models of the settings."""

    def __init__(self, core: Core, residents: Residents) -> None:
        self._core = core
        self._residents = residents

    def why_not(self, model: str) -> str | None:
        """Why a request for the model is refused at once; None if it may wait."""
        failure = self._residents.servers.failures[model]
        is_failing = failure.refuses_requests and failure.until > time.monotonic()
        if is_failing and not self._residents.request_queues.by_model[model].open:
            return f"{model} cannot be loaded: {failure.reason}"
        view = self._core.view
        spec = self._residents.specs[model]
        is_awaited = bool(pools_for(view, model_shape(spec)))
        if is_awaited or not any(node.online for node in view.nodes.values()):
            return None
        devices = [
            device
            for device in view.devices.values()
            if device.node_id and (spec.joined or not view.node(device.node_id).joined)
        ]
        memory = format_gb(spec.memory_gb)
        if not devices:
            return f"{model} needs a GPU with {memory}; there is none here"
        largest_gb = max(device.memory_gb for device in devices)
        if spec.memory_gb > largest_gb:
            largest = format_gb(largest_gb)
            return f"{model} needs a GPU with {memory}; the largest here has {largest}"
        large_gpus_by_node = Counter(
            device.node_id for device in devices if device.memory_gb >= spec.memory_gb
        )
        most = max(large_gpus_by_node.values())
        if spec.gpus > most:
            return (
                f"{model} needs {spec.gpus} GPUs with {memory} on one machine; the most"
                f" is {most}"
            )
        return None

    def why_busy(self, model: str) -> str:
        """Why a request for the model has to wait, for people."""
        residents = self._residents
        queue = residents.request_queues.by_model[model]
        failure = residents.servers.failures[model]
        if queue.slots:
            return f"{model} answers {queue.slots} at once, and all are taken"
        if any(replica.suspended for replica in queue.replicas.values()):
            return f"the server of {model} does not answer; it is asked again soon"
        if residents.closed_for_batch:
            return "a batch has the GPUs for itself, and models are loaded after it"
        if failure.reason:
            return f"{model} could not be loaded: {failure.reason}; it is tried again"
        own = [each for each in residents.servers.live.values() if each.model == model]
        if any(each.phase is Phase.BOOTING for each in own):
            boot_s = residents.switch_times.seconds(model, Switch.BOOT)
            return f"{model} is being loaded, which takes {format_duration(boot_s)}"
        return (
            self._why_no_room(model)
            or self._why_reserved(model)
            or f"no GPU is free for {model}{self._what_pools_do(model)}"
        )

    def _what_pools_do(self, model: str) -> str:
        """Why pools bring a GPU for the model, or bring none, to stand behind a reason;
        empty if there is no pool for it.
        """
        shape = model_shape(self._residents.specs[model])
        pools = pools_for(self._core.view, shape).items()
        return "".join(f"; the pool {name}: {pool.why}" for name, pool in pools)

    def _why_reserved(self, model: str) -> str:
        """Which GPUs are kept from the model, and for which job; empty if none is."""
        job_id, gpus = self._residents.reserving(model)
        devices = self._core.view.devices
        indexes = [str(devices[gpu].index) for gpu in gpus if gpu in devices]
        row = self._core.queries.job(job_id) if indexes else None
        if row is None:
            return ""
        shown = (
            f"GPU {indexes[0]} is"
            if len(indexes) == 1
            else (f"GPUs {', '.join(indexes)} are")
        )
        return f"{shown} kept for job {row['name']} ({job_id}), which needs more"

    def _why_no_room(self, model: str) -> str:
        """Why the model may not share a GPU on which it would fit; empty if there is
        no such GPU.
        """
        specs = self._residents.specs
        spec = specs[model]
        percent = self._core.settings.gpus.models_percent
        if spec.gpus > 1:
            return ""
        for device in self._core.view.usable_devices(joined=spec.joined):
            names = self._residents.servers.models_on(device.uuid)
            taken_gb = sum(specs[name].memory_gb for name in names if name in specs)
            part = 100 * (taken_gb + spec.memory_gb) / device.memory_gb
            if names and percent + _SLACK_PERCENT < part <= 100:
                # Rounded up: it must not read as what they may take.
                shown = math.ceil(part - _SLACK_PERCENT)
                return (
                    f"{model} and {' and '.join(names)} would take {shown}% of the"
                    f" memory of GPU {device.index}, and models that share a GPU may"
                    f" take {percent:g}% ([gpus] models_percent)"
                )
        return ""

    def when_it_leaves(self, job_id: str) -> str:
        """When the server that this job runs may leave its GPU for a script, in a few
        words; empty if the job runs no model.
        """
        residents = self._residents
        resident = residents.servers.live.get(job_id)
        if resident is None:
            return ""
        model = resident.model
        if model in residents.pinned:
            return f"pinned: it stays until `gpuyard models unpin {model}`"
        if residents.keeps_brain(resident):
            return "a model of the brain: it never leaves the brain's GPUs"
        is_busy = resident.replica is not None and resident.replica.taken > 0
        doing = "it answers requests" if is_busy else "it is idle"
        policy = self._core.settings.residency.policy
        if policy == "static":
            return f"{doing}; the policy static never unloads it"
        latest = ""
        if policy == "cost":
            seconds = residents.switch_times.seconds
            idle_s = IDLE_LATE * residents.reload_s(model)
            wait_s = LATE * seconds(model, Switch.BOOT) if is_busy else idle_s
            latest = (
                f", after {format_duration(wait_s)} of waiting at the latest if no"
                " script runs"
            )
        return f"{doing}; the policy {policy} unloads it when that is worth it{latest}"

    def load_s(self, model: str) -> float:
        """In how many seconds the model can answer: 0 if it is loaded, infinity if it
        cannot be loaded.
        """
        if self.why_not(model):
            return math.inf
        live = self._residents.servers.live.values()
        waits = [self._wait_s(each) for each in live if each.model == model]
        was_loaded_here = self._residents.timings.warm[model]
        move = Switch.REBOOT if was_loaded_here else Switch.BOOT
        waits.append(self._residents.switch_times.seconds(model, move))
        return min(waits)

    def _wait_s(self, resident: Resident) -> float:
        """In how many seconds this server can answer; infinity if it is leaving."""
        times = self._residents.switch_times
        if resident.phase is Phase.ASLEEP:
            return times.seconds(resident.model, Switch.WAKE)
        if resident.phase is Phase.UNLOADING or resident.must_leave:
            return math.inf
        if resident.phase is Phase.BOOTING:
            booting_s = time.monotonic() - resident.since
            boot_s = times.seconds(resident.model, Switch.BOOT)
            return max(boot_s - booting_s, _ALMOST_LOADED_S)
        return 0.0

    def _check(self, model: str) -> None:
        if model not in self._residents.specs:
            names = ", ".join(self._residents.specs)
            known = names or "none; add [models.NAME] to gpuyard.toml"
            raise NotFoundError(
                f"There is no model {model!r}.", f"Configured are: {known}."
            )

    async def load(self, model: str) -> None:
        """Load the model now on free GPUs.

        Raises RefusedError if there are none; its text names idle models to unload.
        """
        self._check(model)
        reason = self.why_not(model)
        if reason:
            raise RefusedError(
                f"{reason}.", "Look at `gpuyard gpus` and `gpuyard models`."
            )
        fleet = self._residents.fleet(time.monotonic())
        if not fleet.serving(model):
            gpus = place_model(fleet, model)
            if not gpus:
                reason = self._why_no_room(model)
                fault = f"No place is free for {model}"
                raise RefusedError(
                    f"{fault}: {reason}." if reason else f"{fault}.",
                    _how_to_get_room(fleet, model),
                )
            self._residents.servers.load(model, tuple(gpu.id for gpu in gpus))
        self._core.schedule()
        await self._core.committed()

    async def unload(self, model: str) -> None:
        """Unload every replica of the model once its requests are answered; also unpin
        the model.
        """
        self._check(model)
        await self.pin(model, pinned=False)
        self._residents.timings.dismiss(model)
        for resident in self._residents.servers.live.values():
            if resident.model == model:
                resident.leave(must_unload=True)
        self._core.schedule()
        await self._core.committed()

    async def pin(self, model: str, *, pinned: bool) -> None:
        """Keep the model always loaded, or (`pinned` false) let the policy decide
        again.
        """
        self._check(model)
        core = self._core
        pinned_models = self._residents.pinned
        if pinned != (model in pinned_models):
            change = Change(Table.MODELS, model, {"pinned": pinned})
            info = {"model": model, "pinned": pinned}
            kind = EventKind.MODEL_CHANGED
            core.emit([Event(kind, core.clock(), (change,), None, info)])
            if pinned:
                pinned_models.add(model)
            else:
                pinned_models.discard(model)
            core.schedule()
        await core.committed()

    def waiting(self, model: str) -> int:
        """How many requests and prompts wait for the model: those in its queue, and the
        prompts that still wait in the queue of the jobs.
        """
        line = self._residents.request_queues.by_model[model].waiting
        return len(line) + self._core.view.queue.prompts[model]

    def listing(self) -> list[dict[str, Any]]:
        """Every model with its replicas, for people and programs."""
        return [self._listed(model) for model in sorted(self._residents.specs)]

    def _listed(self, model: str) -> dict[str, Any]:
        residents = self._residents
        spec = residents.specs[model]
        queue = residents.request_queues.by_model[model]
        failure = residents.servers.failures[model]
        live = residents.servers.live.values()
        replicas = [resident for resident in live if resident.model == model]
        times = residents.switch_times
        is_pinned = model in residents.pinned
        no_room = self._why_no_room(model) if is_pinned and not replicas else ""
        reserving = "" if replicas else residents.reserving(model)[0]
        return {
            "name": model,
            "engine": spec.engine.value,
            "memory_gb": spec.memory_gb,
            "gpus": spec.gpus,
            "state": _state_of_model(replicas, failure),
            "pinned": is_pinned,
            "waiting": self.waiting(model),
            "why_waiting": self.why_busy(model) if queue.waiting else None,
            # The job that keeps GPUs free on which the model might be.
            "reserving_job_id": reserving or None,
            "answered": queue.answered,
            "boot_s": times.seconds(model, Switch.BOOT),
            "boot_p90_s": times.seconds(model, Switch.BOOT, quantile=0.9),
            "replicas": [_listed_replica(resident) for resident in replicas],
            "problem": failure.reason or self.why_not(model) or no_room or None,
        }


def _how_to_get_room(fleet: Fleet, model: str) -> str:
    idle: set[str] = set()
    for gpu in choose_gang_gpus(fleet, model):
        for resident in fleet.holders(gpu):
            if resident.phase is Phase.READY:
                idle.add(f"{resident.model} is idle on GPU {resident.gpu.id}")
    if not idle:
        return "Requests for it stand in line until one is."
    return f"{' and '.join(sorted(idle))}: unload that first."


def _state_of_model(replicas: Sequence[Resident], failure: Failure) -> str:
    phases = {resident.current_phase for resident in replicas}
    for phase in PHASES_BY_ACTIVITY:
        if phase in phases:
            return phase.value
    return "failing" if failure.until > time.monotonic() else "absent"


def _listed_replica(resident: Resident) -> dict[str, Any]:
    now = time.monotonic()
    replica = resident.replica
    return {
        "gpu": resident.gpu,
        "gpus": list(resident.gpus),
        "job_id": resident.job_id,
        "state": resident.current_phase.value,
        "port": resident.port,
        "for_s": now - resident.since,
        "answered": replica.answered if replica else 0,
        "idle_s": now - replica.used_at if replica and not replica.busy else None,
    }
