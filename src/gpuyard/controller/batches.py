"""Batches that are under way: workers come, take items and leave; models make room and come back.

A worker is a job of kind `worker`, so that booking, logs, cost and survival of crashes are those of any job. Nothing is
decided that does not follow from the ledger: a server that starts finds its batches and their workers there, and goes
on from whatever step they had come to.
"""

import asyncio
import math
import time
from collections.abc import Iterator
from typing import Any

import structlog

from gpuyard.controller import moves
from gpuyard.controller.batch import Batch, Item, Worker
from gpuyard.controller.batch_index import write_index
from gpuyard.controller.core import Core
from gpuyard.controller.intake import Prepared, Template
from gpuyard.controller.requests import Requests
from gpuyard.controller.residents import Residents
from gpuyard.domain.batches import BatchState
from gpuyard.domain.errors import LedgerError
from gpuyard.domain.events import Event
from gpuyard.domain.jobspec import GpuRequest, JobKind, JobSpec, Resources
from gpuyard.domain.scripts import WORKER_FIELDS, ScriptSpec
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.domain.units import format_gb
from gpuyard.scheduler.batches import FAR_FROM_OVER, Place, next_item
from gpuyard.scheduler.fitting import suitable
from gpuyard.scheduler.fleet import Phase
from gpuyard.scheduler.nodes import Device

# So many workers in a row that did nothing end the batch.
_GIVE_UP = 3
# A worker that ended for one of these was ended by others.
_NOT_ITS_FAULT = frozenset({"gpu_failed", "attempt_lost", "node_silent", "cancelled", "preempted"})
log = structlog.get_logger(__name__)


class Batches:
    """All batches that are not over, by id."""

    def __init__(self, core: Core, requests: Requests, residents: Residents) -> None:
        self._core, self._requests, self._residents = core, requests, residents
        self.live: dict[str, Batch] = {}
        self._alarm: asyncio.TimerHandle | None = None

    # --- life ---

    def start(self) -> None:
        """Find what is under way; also after memory has run ahead of the ledger."""
        queries, self._residents.closed = self._core.queries, False
        self._residents.items_for = self.items_for
        self.live = {row["id"]: self.batch_of(row) for row in queries.live_batches()}
        found = queries.live_of_kind(JobKind.WORKER)
        for job_id, spec in queries.specs(found).items():
            batch = self.live.get(spec["provider_options"]["script"]["batch"])
            if batch:
                batch.workers[job_id] = Worker(job_id, spec["provider_options"]["script"]["gpu"])
            else:
                self._core.spawn(self._requests.cancel(job_id), "call-back")

    def batch_of(self, row: dict[str, Any]) -> Batch:
        """A batch as the ledger has it."""
        script = self._core.scripts[row["script"]] if row["script"] in self._core.scripts else ScriptSpec()
        return Batch(row, script, [Item.of_row(item) for item in self._core.queries.items_of(row["id"])])

    def close(self) -> None:
        """Let go; the workers work on."""
        if self._alarm:
            self._alarm.cancel()

    # --- tending: before each decision ---

    def tend(self) -> None:
        """See who is gone, send for workers, make room and bring back, and end what is over."""
        if not self.live:
            return
        events: list[Event] = []
        for batch in self.live.values():
            events += self._notice(batch)
        self._core.emit(events)
        # One that has no GPU to come to holds nobody up.
        exclusive = [batch for batch in self.live.values() if batch.exclusive and self._ground(batch)]
        alone = min(exclusive, key=lambda batch: batch.row["began_at"] is None, default=None)
        self._residents.closed = alone is not None
        for batch in list(self.live.values()):
            try:
                self._tend(batch, alone)
            except Exception as error:
                log.exception("a batch cannot be tended", batch=batch.id)
                batch.row["problem"] = f"a fault of gpuyard's own: {error}; see the server's log"

    def _tend(self, batch: Batch, alone: Batch | None) -> None:
        if alone in (None, batch) or not batch.script.gpus:
            self._staff(batch)
        else:
            self._call_back(batch, len(batch.workers))
        if batch.over and not batch.workers and self._is_restored(batch) and not batch.finishing:
            batch.finishing = True
            self._core.spawn(self._finish(batch), "batch-end")

    def _notice(self, batch: Batch) -> Iterator[Event]:
        """Workers whose jobs are over, and items whose workers are gone."""
        view, now = self._core.view, self._core.clock()
        for worker in [w for w in batch.workers.values() if w.job_id not in view.jobs and not w.over]:
            worker.over = True
            self._core.spawn(self._see_off(batch, worker), "see-off")
        for item in [i for i in batch.running.values() if i.attempt_id not in view.attempts]:
            yield batch.lost(item, "its worker was lost", now)
        if batch.fruitless >= _GIVE_UP and not batch.running:
            reason = batch.row["problem"] or "its workers end before they have done anything; see their logs"
            for item in list(batch.queued.values()):
                yield batch.failed(item, reason, now)

    async def _see_off(self, batch: Batch, worker: Worker) -> None:
        """Learn how a worker ended, which its row says once it is written."""
        try:
            await self._core.committed()
            row = self._core.queries.job(worker.job_id) or {}
        except LedgerError:
            row = {}  # if memory was read anew, this batch with it
        failed = row.get("state") == JobState.FAILED and row.get("reason") not in _NOT_ITS_FAULT
        batch.worker_gone(worker, its_fault=failed)
        self._core.schedule()

    # --- workers ---

    def _staff(self, batch: Batch) -> None:
        if batch.exclusive:
            self._staff_alone(batch)
            return
        useful = min(self.room(batch), len(batch.queued) + len(batch.running))
        there = sum(1 for worker in batch.workers.values() if not worker.leaving)
        if there > useful:
            self._call_back(batch, there - useful)
        elif useful > there and not self._rests(batch):
            for _ in range(useful - there):
                self._send_for(batch, None)

    def items_for(self, job_id: str) -> int:
        """How much work stands in line with this job: a shared batch's items are as many as wait for each worker."""
        batch = next((b for b in self.live.values() if job_id in b.workers and not b.exclusive), None)
        return math.ceil(len(batch.queued) / max(len(list(self._waiting(batch))), 1)) if batch else 1

    def _waiting(self, batch: Batch) -> Iterator[Worker]:
        """Its workers that no place has been found for."""
        for worker in batch.workers.values():
            job = self._core.view.jobs.get(worker.job_id)
            if job and job.attempt_id is None and not worker.leaving:
                yield worker

    def _call_back(self, batch: Batch, most: int) -> None:
        """End so many of those that wait."""
        for worker in list(self._waiting(batch))[:most]:
            self._call_back_one(worker)

    def _call_back_one(self, worker: Worker) -> None:
        worker.leaving = True
        self._core.spawn(self._requests.cancel(worker.job_id), "call-back")

    def room(self, batch: Batch) -> int:
        """How many workers could work at once."""
        view = self._core.view
        if batch.script.gpus:
            return len(self.devices(batch.script))
        return max(int(sum(node.cpus for node in view.nodes.values() if node.online)), 1)

    def devices(self, script: ScriptSpec) -> list[Device]:
        """The GPUs that will do for a script."""
        there = self._core.view.usable_devices()
        return suitable(there, Shape(gpus=1, gpu_memory_gb=script.memory_gb or 0.0))

    def _ground(self, batch: Batch) -> list[Device]:
        """The GPUs that an exclusive batch has: all but those whose models never give way."""
        manager = self._core.settings.resource_manager
        brains = {d.uuid for d in self._core.view.devices.values() if manager.is_brain(d.index, d.uuid)}
        for resident in self._residents.live.values():
            if resident.model in self._residents.pinned or not brains.isdisjoint(resident.gpus):
                brains.update(resident.gpus)  # it never gives way, on none of its GPUs
        return [device for device in self.devices(batch.script) if device.uuid not in brains]

    def why_not(self, batch: Batch) -> str | None:
        """Why nothing of it can run just now; None where something may."""
        if batch.over or not batch.script.gpus:
            return None
        if not self.devices(batch.script):
            need = f" with {format_gb(batch.script.memory_gb)}" if batch.script.memory_gb else ""
            return f"no GPU{need} is there for it; see `gpuyard gpus`"
        if batch.exclusive and not self._ground(batch):
            return "every GPU is a brain's, or has a pinned model; unpin one, or submit it with --shared"
        return None

    def _rests(self, batch: Batch) -> bool:
        """Whether no worker is sent for just now; it will be looked at again in time."""
        if time.monotonic() < batch.rests_until:
            self._wake_at(batch.rests_until)
            return True
        return batch.fruitless >= _GIVE_UP

    def _send_for(self, batch: Batch, gpu: str | None) -> None:
        """Submit a worker's job."""
        row, script = batch.row, batch.script
        order = script.model_dump(mode="json", include=WORKER_FIELDS)
        order |= {"batch": batch.id, "results": row["results"], "gpu": gpu}
        request = GpuRequest(count=script.gpus, memory_gb=script.memory_gb if script.gpus else None,
                             uuid=(gpu,) if gpu else ())  # fmt: skip
        spec = JobSpec(
            name=f"worker {batch.id}"[:200], kind=JobKind.WORKER, script=row["script"], priority=row["priority"],
            args={**script.args, **row["args"]}, environment=row["environment"], resources=Resources(gpus=request),
            provider_options={"script": order}, labels={"batch": batch.id},
        )  # fmt: skip
        job = Prepared.of(Template.of(spec, ()), spec)
        self._core.emit([moves.submitted(job, self._core.clock())])
        batch.workers[job.id] = Worker(job.id, gpu)

    # --- an exclusive batch ---

    def _staff_alone(self, batch: Batch) -> None:
        ground = [device.uuid for device in self._ground(batch)]
        if not batch.row["began_at"]:
            if not ground or self._is_blind():
                return
            self._begin(batch)
        for worker in list(self._waiting(batch)):
            if batch.over or worker.gpu not in ground:
                self._call_back_one(worker)
            else:
                self._clear(worker.gpu)
        for gpu in ground:
            if not any(worker.gpu == gpu for worker in batch.workers.values()):
                self._use_or_release(batch, gpu)
        self._bring_back(batch)

    def _is_blind(self) -> bool:
        """Whether a node with models on it has not said what it has: this server, or its agent, has just started."""
        view = self._core.view
        there = [gpu for resident in self._residents.live.values() for gpu in resident.gpus]
        homes = {view.devices[gpu].node_id for gpu in there if gpu in view.devices}
        return any(not view.node(home).online for home in homes if home)

    def _clear(self, gpu: str | None) -> None:
        """Models that are awake on a GPU leave it once they have answered what they are at."""
        for resident in self._residents.live.values():
            if gpu in resident.gpus and resident.awake and not resident.leaving:
                resident.leave()

    def _begin(self, batch: Batch) -> None:
        """Note what is to come back, before anything is moved."""
        ground, reload = {device.uuid for device in self._ground(batch)}, dict[str, list[str]]()
        if self._core.settings.resource_manager.batch_settings.reload_llms_after_batch:
            for resident in self._residents.live.values():
                going = resident.phase is Phase.UNLOADING or (resident.replica and resident.replica.draining)
                if ground.issuperset(resident.gpus) and resident.awake and not going:
                    for gpu in resident.gpus:
                        reload.setdefault(gpu, []).append(resident.model)
        self._core.emit([batch.changed(self._core.clock(), began_at=self._core.clock(), reload=reload)])

    def _use_or_release(self, batch: Batch, gpu: str) -> None:
        """Send for a worker on a GPU that has none, and let the models there leave; or do no more with it."""
        stranded = not batch.workers and batch.queued  # the GPUs that were to do the rest are gone
        if self._rests(batch) or (gpu in batch.released and not stranded):
            return
        if self.choose(batch, gpu) is None:
            batch.released.add(gpu)
            return
        batch.released.discard(gpu)
        self._clear(gpu)
        self._send_for(batch, gpu)

    def _bring_back(self, batch: Batch) -> None:
        """Load what made room, one after another, on the GPUs that have run dry."""
        if any(resident.phase is Phase.BOOTING for resident in self._residents.live.values()):
            return
        for model, gpus in self._homes(batch):
            if not batch.over and not batch.released.issuperset(gpus):
                continue
            failure = self._residents.failures.get(model)
            if failure and time.monotonic() < failure.until:
                self._wake_at(failure.until)
            elif not self._is_back(batch, gpus, model) and not self._residents.is_others(gpus):
                self._residents.load(model, gpus)
                return

    def _homes(self, batch: Batch) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The models that made room, each with its GPUs."""
        gangs: dict[str, list[str]] = {}
        for gpu, models in batch.reload.items():
            for model in models:
                spec = self._residents.specs.get(model)
                gang = gangs.setdefault(model, [])
                gang.append(gpu)
                if len(gang) == (spec.gpus if spec else 1):
                    yield model, tuple(gangs.pop(model))

    def _is_back(self, batch: Batch, gpus: tuple[str, ...], model: str) -> bool:
        """Whether the model is there again, or nothing is to be waited for."""
        view = self._core.view
        homes = [view.devices[gpu].node_id if gpu in view.devices else None for gpu in gpus]
        if not all(homes):
            return True  # the GPU is gone
        if not all(view.node(home).online for home in homes if home):
            return False  # its node will say
        if not {device.uuid for device in self._ground(batch)}.issuperset(gpus):
            return True  # it is out of use, or the model on it is pinned by now
        failure = self._residents.failures.get(model)
        if failure is None or (failure.told and time.monotonic() < failure.until):
            return True  # configured no more, or of no use
        if batch.over and not batch.workers and self._residents.is_others(gpus):
            return True  # somebody else was given the GPU: the model comes when it is asked for
        phases = (Phase.READY, Phase.BUSY)
        return any((r.gpus, r.model) == (gpus, model) and r.phase in phases for r in self._residents.live.values())

    def _is_restored(self, batch: Batch) -> bool:
        """Whether all that made room is back; it says so when that begins."""
        if all(self._is_back(batch, gpus, model) for model, gpus in self._homes(batch)):
            return True
        if batch.state is BatchState.RUNNING:
            self._core.emit([batch.changed(self._core.clock(), state=BatchState.RELOADING.value)])
        return False

    async def _finish(self, batch: Batch) -> None:
        """Write the index of its results, and end it."""
        try:
            await self._core.committed()
            items = self._core.queries.items_of(batch.id)
            await asyncio.to_thread(write_index, batch.row, items)
        except LedgerError:
            batch.finishing = False  # looked at again with the next decision
            return
        except OSError as error:
            log.warning("the index of a batch cannot be written", batch=batch.id, cause=str(error))
        if self.live.get(batch.id) is batch:
            if batch.over:
                self._core.emit([batch.ended(self._core.clock())])
                del self.live[batch.id]
            batch.finishing = False
            self._residents.closed = any(other.exclusive for other in self.live.values())
            self._core.schedule()

    # --- items ---

    def choose(self, batch: Batch, gpu: str | None) -> Item | None:
        """The item that a worker on this GPU does next; None when it is to leave."""
        in_order = self._core.settings.residency.policy == "round_robin"
        if not batch.exclusive or gpu is None:
            return batch.first() if in_order else batch.longest()
        if in_order:
            return self._in_turn(batch, gpu)
        places = self.places(batch, gpu)
        here = any(place.gpu == gpu for place in places)
        if not here or len(batch.queued) > FAR_FROM_OVER * len(places):
            return batch.longest()
        queued = list(batch.queued.values())
        number = next_item([batch.lasts(item) for item in queued], places, gpu)
        return None if number is None else queued[number]

    def _in_turn(self, batch: Batch, gpu: str) -> Item | None:
        """The next item of this GPU's share: of three the first has items 1, 4, 7 and so on."""
        ground = [device.uuid for device in sorted(self._ground(batch), key=lambda device: (device.index, device.uuid))]
        if gpu not in ground:
            return None
        mine = (item for item in batch.queued.values() if (item.number - 1) % len(ground) == ground.index(gpu))
        return min(mine, key=lambda item: item.number, default=None)

    def places(self, batch: Batch, asking: str | None = None) -> list[Place]:
        """Its GPUs from now on; whoever is `asking` is free."""
        now, loads = self._core.clock(), self._residents.reload_s
        at_work = {item.gpu: item for item in batch.running.values()}
        waiting = {worker.gpu for worker in self._waiting(batch)}
        found: list[Place] = []
        for device in self._ground(batch) if batch.exclusive else self.devices(batch.script):
            item, gpu = at_work.get(device.uuid), device.uuid
            if gpu in batch.released and gpu != asking:
                continue
            if gpu in waiting and gpu != asking:
                continue  # its turn may come late, or never
            known = any(worker.gpu == gpu for worker in batch.workers.values())
            free_at = batch.left_s(item, now) if item else 0.0 if known or gpu == asking else batch.script.boot_s
            found.append(Place(gpu, free_at, sum(map(loads, batch.reload.get(gpu, ())))))
        return found

    def may_stay(self, batch: Batch, attempt_id: str) -> bool:
        """Whether a worker goes on: not when its GPU is taken from it or in quarantine, nor when a model is worth more
        there."""
        attempt = self._core.view.attempts.get(attempt_id)
        if attempt is None or attempt.state is AttemptState.ENDING:
            return False
        node = self._core.view.node(attempt.node_id)
        gpus = attempt.placements[0].gpu_uuids if attempt.placements else ()
        if not gpus:
            return node.provider not in node.barred
        device = self._core.view.devices.get(gpus[0])
        if device is None or not device.usable or device.quarantine or node.provider in node.barred:
            return False
        return batch.exclusive or not (self._residents.closed or self._residents.would_load_on(gpus[0]))

    def _wake_at(self, at: float) -> None:
        if self._alarm:
            self._alarm.cancel()
        delay = max(at - time.monotonic(), 0.05)
        self._alarm = asyncio.get_running_loop().call_later(delay, self._core.schedule)
