"""What each GPU does, for `gpu_state.json`, `gpuyard gpus` and `gpuyard top`.

Times are UTC seconds.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from gpuyard.controller.core import Core
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.states import GpuState, gpu_state
from gpuyard.domain.tasks import task_id_of
from gpuyard.residency.fleet import Phase
from gpuyard.residency.switching import Switch
from gpuyard.resource_manager.batch import Batch
from gpuyard.resource_manager.batches import Batches
from gpuyard.resource_manager.models import GPU_STATES, PHASES_BY_ACTIVITY
from gpuyard.resource_manager.resident import Resident
from gpuyard.resource_manager.residents import Residents
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.nodes import Device
from gpuyard.scheduler.view import cooling_holder

Work = dict[str, Any]


class GpuWork:
    """Collects from the view, the residents and the batches what each GPU does."""

    def __init__(self, core: Core, residents: Residents, batches: Batches) -> None:
        self._core = core
        self._residents = residents
        self._batches = batches
        self._started_at = core.clock()
        # The titles of jobs and the ids of their tasks, by the id of the job.
        self._names: dict[str, tuple[str, str]] = {}

    def all(self) -> dict[str, Work]:
        """By UUID: the `state` of each GPU, and what runs on it."""
        return {device.uuid: work for device, work in self.each()}

    def each(self) -> Iterator[tuple[Device, Work]]:
        """The same, one GPU after the other, so that others can have their turn between
        thousands.
        """
        view = self._core.view
        holders: dict[str, LiveAttempt] = {}
        for attempt in view.attempts.values():
            for placement in attempt.placements:
                holders.update(dict.fromkeys(placement.booked_gpus, attempt))
        residents: dict[str, list[Resident]] = {}
        for resident in self._residents_by_activity():
            for gpu in resident.gpus:
                residents.setdefault(gpu, []).append(resident)
        self._read_names({attempt.job_id for attempt in holders.values()})
        for uuid, device in list(view.devices.items()):
            if device.node_id:
                work = self._work_of(device, residents.get(uuid, []), holders.get(uuid))
                yield device, work

    def _residents_by_activity(self) -> list[Resident]:
        return sorted(
            self._residents.servers.live.values(),
            key=lambda resident: PHASES_BY_ACTIVITY.index(resident.current_phase),
        )

    def quarantine(self, device: Device) -> str:
        """Why the GPU or its node gets only jobs that allow a quarantine; empty if it
        is in none.
        """
        node = self._core.view.node(device.node_id or "")
        return device.quarantine or node.barred.get(node.provider, "")

    def _read_names(self, job_ids: set[str]) -> None:
        """Read the names of these jobs, each once; forget all others."""
        self._names = {
            job_id: names for job_id, names in self._names.items() if job_id in job_ids
        }
        new = job_ids - set(self._names)
        if not new:
            return
        for job_id, spec in self._core.queries.specs(new).items():
            title = spec.get("script") or spec.get("name") or spec.get("kind")
            task_id = task_id_of(job_id, spec.get("name", ""), spec.get("labels", {}))
            self._names[job_id] = (str(title or JobKind.COMMAND), task_id)

    def _work_of(
        self, device: Device, residents: list[Resident], holder: LiveAttempt | None
    ) -> Work:
        """What the GPU does; `residents` are the models there, the most active first.

        A sleeping model is shown only if nothing else is on the GPU.
        """
        if holder:
            # A model on several GPUs still waits while another job has this one.
            residents = [each for each in residents if not self._is_queued(each)]
        shown = [each for each in residents if each.is_awake]
        if not shown and not holder:
            shown = residents
        resident = shown[0] if shown else None
        state = self._state_of(device, resident, holder)
        cools_until = self._core.view.cooling.get(cooling_holder(device.uuid))
        if cools_until and state in (GpuState.IDLE, GpuState.ASLEEP):
            return {
                "state": GpuState.COOLING,
                "job_id": None,
                "pid": None,
                "expected_at": cools_until,
            }
        owner = resident or holder
        job_id = owner.job_id if owner else None
        pid = self._core.pids.get(job_id or "")
        cools = state is GpuState.LLM_BUSY and resident and resident.cools
        work: Work = {
            "state": GpuState.COOLING if cools else state,
            "job_id": job_id,
            "pid": pid,
        }
        if resident:
            work |= self._resident_work(resident)
            work["models"] = [each.model for each in residents]
            work["paired_with"] = [
                self._core.view.devices[gpu].index
                for gpu in resident.gpus
                if gpu != device.uuid
            ]
        elif holder:
            work |= self._script_work(holder, device.uuid)
            if state is GpuState.BOOTING_SCRIPT:
                work["expected_at"] = work["since"] + self._boot_s(holder)
        return work

    def _state_of(
        self, device: Device, resident: Resident | None, holder: LiveAttempt | None
    ) -> GpuState:
        """The state of the GPU, but for how warm it is. `resident`: the model that is
        shown on it; `holder`: the attempt that has it.
        """
        state = gpu_state(
            GpuState(device.state),
            GPU_STATES[resident.current_phase] if resident else None,
            busy=holder is not None,
            draining=device.draining,
        )
        if state is GpuState.IDLE and self.quarantine(device):
            return GpuState.QUARANTINED
        if state is GpuState.SCRIPT_BUSY and holder and self._is_booting(holder):
            return GpuState.BOOTING_SCRIPT
        return state

    def _is_booting(self, holder: LiveAttempt) -> bool:
        """Whether a registered script on a GPU has not loaded yet. It shows progress as
        soon as it has, but not again for a server that starts meanwhile.
        """
        job = self._core.view.jobs.get(holder.job_id)
        if job is None or job.kind not in (JobKind.SCRIPT, JobKind.WORKER):
            return False
        if holder.created_at < self._started_at:
            return False
        if self._core.progress.get(job.id, {}).get("step") is not None:
            return False
        return not any(
            batch.item_of(holder.id)
            for batch in self._batches.live.values()
            if job.id in batch.workers
        )

    def _boot_s(self, holder: LiveAttempt) -> float:
        script, _ = self._names.get(holder.job_id, ("", ""))
        scripts = self._core.scripts
        return scripts[script].boot_s if script in scripts else 0.0

    def _is_queued(self, resident: Resident) -> bool:
        job = self._core.view.jobs.get(resident.job_id)
        return job is not None and job.attempt_id is None

    def _resident_work(self, resident: Resident) -> Work:
        now = self._core.clock()
        monotonic = time.monotonic()
        since = now - (monotonic - resident.since)
        replica = resident.replica
        idle_s = monotonic - replica.used_at if replica and not replica.busy else None
        work: Work = {
            "model": resident.model,
            "port": resident.port,
            "since": since,
            "idle_s": idle_s,
            "tasks_completed": replica.answered if replica else 0,
        }
        if resident.phase is Phase.BOOTING:
            times = self._residents.switch_times
            work["expected_at"] = since + times.seconds(resident.model, Switch.BOOT)
        return work

    def _script_work(self, holder: LiveAttempt, uuid: str) -> Work:
        progress: Mapping[str, Any] = self._core.progress.get(holder.job_id, {})
        step = progress.get("step")
        total = progress.get("total")
        title, task_id = self._names.get(holder.job_id, (None, holder.job_id))
        work: Work = {
            "script": title,
            "task_id": task_id,
            "eta_s": progress.get("eta_s"),
            "since": holder.started_at or holder.created_at,
            "progress": round(step / total, 4) if step is not None and total else None,
        }
        for batch in self._batches.live.values():
            if holder.job_id in batch.workers:
                work |= self._batch_work(batch, holder.id, uuid)
                break
        return work

    def _batch_work(self, batch: Batch, attempt_id: str, uuid: str) -> Work:
        work: Work = {"batch_id": batch.id, "tasks_completed": batch.completed_on[uuid]}
        item = batch.item_of(attempt_id)
        if item:
            work["task_id"] = item.id
            work["since"] = item.started_at
            work["eta_s"] = batch.remaining_s(item, self._core.clock())
        return work
