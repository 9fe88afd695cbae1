"""Batches under way: submits their workers, lets models make room for them, and ends
them.

Every step follows from the ledger alone. So a server that starts finds its batches and
their workers there, and continues each at its step.
"""

import asyncio
import math
import time
from collections.abc import Iterable
from typing import Any

import structlog

from gpuyard.config.accounts import Accounts
from gpuyard.controller.core import Core
from gpuyard.controller.requests import Requests
from gpuyard.domain.batches import BatchOwner
from gpuyard.domain.errors import InvalidInputError, LedgerError
from gpuyard.domain.events import Event
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.own_options import WorkerOrder
from gpuyard.domain.reasons import Reason
from gpuyard.domain.scripts import ScriptSpec
from gpuyard.domain.states import JobState
from gpuyard.resource_manager.batch import Batch, Item, Worker
from gpuyard.resource_manager.batch_gpus import BatchGpus
from gpuyard.resource_manager.batch_index import write_index
from gpuyard.resource_manager.batch_items import BatchItems
from gpuyard.resource_manager.batch_workers import BatchWorkers
from gpuyard.resource_manager.model_reload import ModelReload
from gpuyard.resource_manager.residents import Residents

# This many failed workers in a row end the batch.
_MAX_FAILED_WORKERS = 3
_SHORTEST_PAUSE_S = 0.05
log = structlog.get_logger(__name__)


class Batches:
    """All batches that have not ended, in `live` by id."""

    def __init__(self, core: Core, requests: Requests, residents: Residents) -> None:
        self._core = core
        self._residents = residents
        self.gpus = BatchGpus(core, residents)
        self.workers = BatchWorkers(core, requests)
        self.items = BatchItems(core, residents, self.gpus, self.workers)
        self._reload = ModelReload(core, residents, self.gpus, self._wake_at)
        self.live: dict[str, Batch] = {}
        self._alarm: asyncio.TimerHandle | None = None
        # When the alarm rings (monotonic seconds).
        self._alarm_at = math.inf

    # --- start and stop ---

    def start(self) -> None:
        """Find the batches and their workers in the ledger: at the start, and again
        after a failed commit.
        """
        queries = self._core.queries
        self._residents.closed_for_batch = False
        self._residents.items_waiting_for = self.items_waiting_for
        self.live = {row["id"]: self.batch_of(row) for row in queries.live_batches()}
        jobs = queries.live_of_kind(JobKind.WORKER)
        for job_id, spec in queries.specs(jobs).items():
            order = WorkerOrder.read(spec["provider_options"])
            batch = self.live.get(order.batch)
            if batch:
                code = spec.get("submitted_code", "")
                batch.workers[job_id] = Worker(job_id, order.gpu, code)
            else:
                self.workers.cancel_job(job_id)

    def batch_of(self, row: dict[str, Any]) -> Batch:
        """The batch of a row of the ledger, with its items."""
        queries = self._core.queries
        scripts = self._core.scripts
        name: str = row["script"]
        batch_id: str = row["id"]
        spec = queries.specs([batch_id]).get(batch_id, {})
        return Batch(
            row,
            # Its section may have gone from the settings.
            script=scripts[name] if name in scripts else ScriptSpec(),
            items=[Item.of_row(item) for item in queries.items_of(batch_id)],
            owner=BatchOwner.of_spec(spec),
            code=spec.get("submitted_code", ""),
        )

    def owners_of(self, batch_ids: Iterable[str]) -> dict[str, BatchOwner]:
        """Whose these batches are."""
        ids = list(batch_ids)
        specs = self._core.queries.specs(ids)
        return {
            batch_id: BatchOwner.of_spec(specs.get(batch_id, {})) for batch_id in ids
        }

    def close(self) -> None:
        """Stop the timer; the workers run on."""
        self._stop_alarm()

    def _stop_alarm(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        self._alarm_at = math.inf

    # --- before each decision ---

    def advance(self) -> None:
        """Advance every batch: note lost workers and items, submit and cancel workers,
        move models, end batches.
        """
        self._stop_alarm()
        if not self.live:
            return
        events: list[Event] = []
        for batch in self.live.values():
            events += self._note_losses(batch)
        self._core.emit(events)
        alone = self.exclusive_batch()
        self._residents.closed_for_batch = alone is not None
        for batch in list(self.live.values()):
            try:
                self._advance_one(batch, alone)
            except Exception as error:
                log.exception("a batch cannot be advanced", batch=batch.id)
                batch.row["problem"] = (
                    f"a fault of gpuyard's own: {error}; see the server's log"
                )

    def exclusive_batch(self) -> Batch | None:
        """The exclusive batch whose turn it is: one that has begun before others.

        A batch without any GPU does not count, so that it holds up no other.
        """
        exclusive = [
            batch
            for batch in self.live.values()
            if batch.exclusive and self.gpus.exclusive(batch)
        ]
        return min(
            exclusive, key=lambda batch: batch.row["began_at"] is None, default=None
        )

    def _advance_one(self, batch: Batch, alone: Batch | None) -> None:
        """`alone`: the exclusive batch; the others get no GPUs while it runs."""
        if alone is None or alone is batch or not batch.script.gpus:
            if batch.exclusive:
                self._staff_exclusive(batch)
            else:
                self._staff_shared(batch)
        else:
            self.workers.cancel_waiting(batch, len(batch.workers))
        if not batch.all_items_ended or batch.workers:
            return
        if self._reload.is_complete(batch) and not batch.is_finishing:
            batch.is_finishing = True
            self._core.spawn(self._finish(batch), "batch-end")

    def _note_losses(self, batch: Batch) -> list[Event]:
        """Note workers whose jobs have ended; the events of items that they had."""
        view = self._core.view
        now = self._core.clock()
        for worker in batch.workers.values():
            if worker.job_id not in view.jobs and not worker.ended:
                worker.ended = True
                self._core.spawn(self._note_worker_end(batch, worker), "worker-end")
        running = list(batch.running.values())
        lost = [item for item in running if item.attempt_id not in view.attempts]
        events = [batch.lost(item, "its worker was lost", now) for item in lost]
        if batch.failed_workers >= _MAX_FAILED_WORKERS and not batch.running:
            reason = (
                batch.row["problem"]
                or batch.worker_fault
                or "its workers end before they have done anything; see their logs"
            )
            queued = list(batch.queued.values())
            events += [batch.failed(item, reason, now) for item in queued]
        return events

    async def _note_worker_end(self, batch: Batch, worker: Worker) -> None:
        """Read from the ledger how a worker ended, once that is committed."""
        try:
            await self._core.committed()
            row = self._core.queries.job(worker.job_id) or {}
            attempts = self._core.queries.attempts_of([worker.job_id])
        except LedgerError:
            if self.live.get(batch.id) is not batch:
                # Memory was read again, and in it the worker has not ended. To decide
                # at once would end it again, and so on while the disk is full.
                return
            row = {}
            attempts = {}
        counts = Reason.of(row.get("reason")).counts_against_batch
        its_fault = row.get("state") == JobState.FAILED and counts
        if its_fault and (tried := attempts.get(worker.job_id)):
            batch.worker_fault = tried[-1]["message"]
        batch.worker_gone(worker, its_fault=its_fault)
        self._core.schedule()

    # --- workers ---

    def _staff_shared(self, batch: Batch) -> None:
        """Submit or cancel workers, so that there are as many as are useful."""
        items = len(batch.queued) + len(batch.running)
        useful = min(self.gpus.max_workers(batch), items)
        count = sum(not worker.cancelled for worker in batch.workers.values())
        if count > useful:
            self.workers.cancel_waiting(batch, count - useful)
        elif useful > count and not self._is_paused(batch):
            for _ in range(useful - count):
                self.workers.submit(batch, None)

    def items_waiting_for(self, job_id: str) -> int:
        """How many scripts wait for this job: one, or for a worker of a shared batch
        its share of the queued items.
        """
        for batch in self.live.values():
            if job_id in batch.workers and not batch.exclusive:
                waiting = len(list(self.workers.waiting(batch)))
                return math.ceil(len(batch.queued) / max(waiting, 1))
        return 1

    def _is_paused(self, batch: Batch) -> bool:
        """Whether no worker is submitted now, because workers have failed."""
        if time.monotonic() < batch.paused_until:
            self._wake_at(batch.paused_until)
            return True
        return batch.failed_workers >= _MAX_FAILED_WORKERS

    def _wake_at(self, at: float) -> None:
        """Decide again at this monotonic time at the latest."""
        if self._alarm_at <= at:
            return
        self._stop_alarm()
        self._alarm_at = at
        delay = max(at - time.monotonic(), _SHORTEST_PAUSE_S)
        self._alarm = asyncio.get_running_loop().call_later(delay, self._core.schedule)

    # --- an exclusive batch ---

    def _staff_exclusive(self, batch: Batch) -> None:
        """Give each GPU of the batch one worker, or release it."""
        gpus = [device.uuid for device in self.gpus.exclusive(batch)]
        if not batch.row["began_at"]:
            if not gpus or self.gpus.missing_node(batch):
                return
            self._reload.note_models(batch)
        for worker in list(self.workers.waiting(batch)):
            if batch.all_items_ended or worker.gpu not in gpus:
                self.workers.cancel(worker)
            else:
                self._clear(worker.gpu)
        for gpu in gpus:
            if not any(worker.gpu == gpu for worker in batch.workers.values()):
                self._use_or_release(batch, gpu)
        self._reload.load_next(batch)

    def _clear(self, gpu: str | None) -> None:
        """Let the awake models on the GPU leave once their requests are answered."""
        for resident in self._residents.servers.live.values():
            if gpu in resident.gpus and resident.is_awake and not resident.must_leave:
                resident.leave()

    def _use_or_release(self, batch: Batch, gpu: str) -> None:
        """Submit a worker for a GPU that has none and let its models leave; release the
        GPU if it has no more items to do.
        """
        # The GPUs that should have done the rest may be gone.
        rest_has_no_worker = batch.queued and not batch.workers
        is_released = gpu in batch.released and not rest_has_no_worker
        if self._is_paused(batch) or is_released:
            return
        if self.items.choose(batch, gpu) is None:
            batch.released.add(gpu)
            return
        batch.use_again(gpu)
        self._clear(gpu)
        self.workers.submit(batch, gpu)

    # --- the end ---

    async def _finish(self, batch: Batch) -> None:
        """Write the index of the results, and end the batch."""
        try:
            await self._core.committed()
            items = self._core.queries.items_of(batch.id)
            await asyncio.to_thread(self._write_index, batch, items)
        except LedgerError:
            batch.is_finishing = False  # the next decision tries again
            return
        except (OSError, InvalidInputError) as error:
            log.warning(
                "the index of a batch cannot be written",
                batch=batch.id,
                cause=str(error),
            )
        if self.live.get(batch.id) is not batch:
            return
        # Items may have been queued again in the meantime.
        if batch.all_items_ended:
            self._core.emit([batch.ended(self._core.clock())])
            del self.live[batch.id]
        batch.is_finishing = False
        others = self.live.values()
        self._residents.closed_for_batch = any(other.exclusive for other in others)
        self._core.schedule()

    def _write_index(self, batch: Batch, items: list[dict[str, Any]]) -> None:
        """OSError; InvalidInputError where the batch has no account any more."""
        node = self._core.settings.node
        account = None
        if accounts := Accounts.of(node):
            owner = batch.owner
            account = accounts.of_job(owner.project or "", owner.user or "")
        write_index(batch.row, items, account, int(node.job_umask, 8))
