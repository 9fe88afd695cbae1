"""What each GPU is at: the one answer behind `gpu_state.json`, `gpuyard gpus` and `gpuyard top`.

Times are UTC seconds.
"""

import time
from collections.abc import Mapping
from typing import Any

from gpuyard.controller.batch import Batch, Item
from gpuyard.controller.batches import Batches
from gpuyard.controller.core import Core
from gpuyard.controller.models import GPU_STATES
from gpuyard.controller.resident import Resident
from gpuyard.controller.residents import Residents
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.states import GpuState, gpu_state
from gpuyard.scheduler.fleet import Phase
from gpuyard.scheduler.nodes import Device
from gpuyard.scheduler.switching import Move
from gpuyard.scheduler.view import LiveAttempt

Work = dict[str, Any]
# The most active of several models on a GPU says what the GPU does.
_MOST_ACTIVE = (Phase.BUSY, Phase.READY, Phase.BOOTING, Phase.UNLOADING, Phase.ASLEEP)


class GpuWork:
    """Looks at everything that may be on a GPU."""

    def __init__(self, core: Core, residents: Residents, batches: Batches) -> None:
        self._core, self._residents, self._batches = core, residents, batches
        self._titles: dict[str, str] = {}  # what jobs are called, by id

    def all(self) -> dict[str, Work]:
        """By UUID: its `state`, and who is on it since when and how far."""
        view = self._core.view
        holders = {uuid: a for a in view.attempts.values() for place in a.placements for uuid in place.gpu_uuids}
        residents: dict[str, list[Resident]] = {}
        for resident in sorted(self._residents.live.values(), key=lambda r: _MOST_ACTIVE.index(r.now_in)):
            for gpu in resident.gpus:
                residents.setdefault(gpu, []).append(resident)
        self._learn_titles({attempt.job_id for attempt in holders.values()})
        return {uuid: self._at(device, residents.get(uuid, []), holders.get(uuid))
                for uuid, device in view.devices.items() if device.node_id}  # fmt: skip

    def quarantine(self, device: Device) -> str:
        """Why the GPU, or its node, gets only jobs that allow a quarantine; empty when it gets all."""
        node = self._core.view.node(device.node_id or "")
        return device.quarantine or node.barred.get(node.provider, "")

    def _learn_titles(self, job_ids: set[str]) -> None:
        """What to call the jobs; each is read once."""
        self._titles = {job_id: title for job_id, title in self._titles.items() if job_id in job_ids}
        new = job_ids - set(self._titles)
        for job_id, spec in (self._core.queries.specs(new) if new else {}).items():
            self._titles[job_id] = str(spec.get("script") or spec.get("name") or spec.get("kind") or JobKind.COMMAND)

    def _at(self, device: Device, residents: list[Resident], holder: LiveAttempt | None) -> Work:
        """The most active of its models says what it does; one that sleeps says so only where nothing else is."""
        jobs = self._core.view.jobs
        # One that needs several GPUs waits where somebody else still is.
        coming = {r.job_id for r in residents if holder and (job := jobs.get(r.job_id)) and job.attempt_id is None}
        residents = [resident for resident in residents if resident.job_id not in coming]
        awake = [resident for resident in residents if resident.awake]
        resident = next(iter(awake or ([] if holder else residents)), None)
        of_model = GPU_STATES[resident.now_in] if resident else None
        state = gpu_state(GpuState(device.state), of_model, busy=holder is not None, draining=device.draining)
        if state is GpuState.IDLE and self.quarantine(device):
            state = GpuState.QUARANTINED
        job_id = holder.job_id if holder else None
        work: Work = {"state": state, "job_id": job_id, "pid": self._core.pids.get(job_id or "")}
        if resident:
            work |= {"job_id": resident.job_id, "pid": self._core.pids.get(resident.job_id)}
            pair = [self._core.view.devices[gpu].index for gpu in resident.gpus if gpu != device.uuid]
            return {**work, **self._of_resident(resident), "models": [r.model for r in residents], "paired_with": pair}
        return {**work, **self._of_script(holder, device.uuid)} if holder else work

    def _of_resident(self, resident: Resident) -> Work:
        now, monotonic = self._core.clock(), time.monotonic()
        began, replica = now - (monotonic - resident.since), resident.replica
        idle_s = monotonic - replica.used_at if replica and not replica.busy else None
        work: Work = {"model": resident.model, "port": resident.port, "since": began, "idle_s": idle_s,
                      "tasks_completed": replica.answered if replica else 0}  # fmt: skip
        if resident.phase is Phase.BOOTING:
            work["expected_at"] = began + self._residents.switching.seconds(resident.model, Move.BOOT)
        return work

    def _of_script(self, holder: LiveAttempt, uuid: str) -> Work:
        seen: Mapping[str, Any] = self._core.progress.get(holder.job_id, {})
        step, total = seen.get("step"), seen.get("total")
        work: Work = {
            "script": self._titles.get(holder.job_id), "task_id": holder.job_id, "eta_s": seen.get("eta_s"),
            "since": holder.started_at or holder.created_at,
            "progress": round(step / total, 4) if step is not None and total else None,
        }  # fmt: skip
        batch = next((batch for batch in self._batches.live.values() if holder.job_id in batch.workers), None)
        return work | self._of_batch(batch, batch.of(holder.id), uuid) if batch else work

    def _of_batch(self, batch: Batch, item: Item | None, uuid: str) -> Work:
        work: Work = {"batch_id": batch.id, "tasks_completed": batch.done_on[uuid]}
        if item is None:
            return work
        now = self._core.clock()
        return work | {"task_id": item.id, "since": item.started_at, "eta_s": batch.left_s(item, now)}
