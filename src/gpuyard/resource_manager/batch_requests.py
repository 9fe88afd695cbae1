"""Requests about batches: people submit, cancel, retry and show them, and workers take
their items.
"""

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

import structlog

from gpuyard.controller.access import ALL_RIGHTS, Rights
from gpuyard.controller.core import Core
from gpuyard.controller.requests import Requests
from gpuyard.controller.secrets import Secrets
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.batches import (
    BatchMode,
    BatchOwner,
    BatchSpec,
    BatchState,
    ItemState,
    record,
)
from gpuyard.domain.errors import NotFoundError, RefusedError
from gpuyard.domain.events import Event
from gpuyard.domain.idempotency_keys import owned_key
from gpuyard.resource_manager.batch import (
    Batch,
    Item,
    counts,
    submitted,
    workers_spec,
)
from gpuyard.resource_manager.batch_estimates import BatchEstimates
from gpuyard.resource_manager.batches import Batches
from gpuyard.resource_manager.residents import Residents
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.storage.place import in_background

log = structlog.get_logger(__name__)

_LONGEST_STEM = 80
# Columns of a batch and of an item that are shown as they are.
_BATCH_FIELDS = (
    "script",
    "source",
    "results",
    "state",
    "problem",
    "created_at",
    "began_at",
    "ended_at",
)
_ITEM_FIELDS = (
    "number",
    "state",
    "attempts",
    "gpu",
    "seconds",
    "started_at",
    "ended_at",
    "reason",
)


class BatchRequests:
    """Carries out requests about batches."""

    def __init__(
        self,
        core: Core,
        requests: Requests,
        residents: Residents,
        batches: Batches,
        secrets: Secrets,
    ) -> None:
        self._secrets = secrets
        self._core = core
        self._requests = requests
        self._residents = residents
        self._batches = batches
        self._submit_lock = asyncio.Lock()
        self.estimates = BatchEstimates(core, residents, batches)

    # --- submit ---

    async def submit(
        self,
        spec: BatchSpec,
        user: str | None = None,
        rights: Rights = ALL_RIGHTS,
    ) -> dict[str, Any]:
        """Queue a batch, which `user` submits, if that is known, and with these
        `rights`.

        A repeated idempotency key gives the first batch with that key; RefusedError if
        that was another batch.
        """
        rights.check_submits(spec.project)
        script = self._core.scripts.named(spec.script)
        await self._secrets.check(
            {**self._core.scripts[script].secrets, **spec.secrets}, user
        )
        owner = BatchOwner(spec.project, user)
        code = await self._code_of(script, owner)
        # Under the lock, no two batches get the same name or key.
        async with self._submit_lock:
            return await self._submit(spec, script, owner, code)

    async def _code_of(self, script: str, owner: BatchOwner) -> str:
        """The digest of the code that a script has now; empty for one without a file,
        and if the code cannot be stored: then each worker runs that of its start.
        """
        file = self._core.scripts[script].file
        if file is None or not file.is_absolute():
            return ""
        submissions = self._requests.submissions
        digest, why = await in_background(
            submissions.take_script, file.parent, owner.project or "", owner.user
        )
        if why:
            log.warning("the code of a script is not stored", script=script, why=why)
        return digest

    async def _submit(
        self, spec: BatchSpec, script: str, owner: BatchOwner, code: str
    ) -> dict[str, Any]:
        digest = spec.digest(owner.user)
        earlier_id = self._earlier_batch(spec.idempotency_key, owner.user, digest)
        if earlier_id:
            return self.show(earlier_id)
        batch_id = self._name(script, spec.source)
        core = self._core
        mode = self.estimates.mode_of(spec.mode, script, len(spec.items))
        now = core.clock()
        events = submitted(batch_id, spec, script, mode, digest, now, owner, code)
        core.writer.add_events(events)
        await core.committed()
        row = core.queries.batch(batch_id)
        assert row is not None
        self._batches.live[batch_id] = self._batches.batch_of(row)
        core.schedule()
        return self.show(batch_id)

    def _earlier_batch(
        self, key: str | None, user: str | None, digest: str
    ) -> str | None:
        """The id of the batch that this user submitted with this idempotency key."""
        if not key:
            return None
        queries = self._core.queries
        row = queries.batch_by_key(owned_key(key, user))
        if row is None:
            # Those of users from earlier versions stand there as they were given.
            row = queries.batch_by_key(key)
            owner = self._batches.owners_of([row["id"]])[row["id"]] if row else None
            if owner is None or owner.user != user:
                return None
        assert row is not None
        if row["digest"] != digest:
            raise RefusedError(
                f"idempotency_key {key!r} was used for another batch ({row['id']}).",
                "Use a new key.",
            )
        return row["id"]

    def _name(self, script: str, source: str) -> str:
        """A name in the form of the seed document: script, source, day.

        If the name is taken, it gets a number.
        """
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(source).stem).strip("-")
        stem = (stem or "items")[:_LONGEST_STEM]
        day = datetime.fromtimestamp(self._core.clock(), UTC).date()
        first_name = f"{script.split('_')[0]}-{stem}-{day}"
        taken = set(self._core.queries.batch_ids(first_name))
        name = first_name
        number = 1
        while name in taken:
            number += 1
            name = f"{first_name}-{number}"
        return name

    # --- workers ---

    async def take(
        self, batch_id: str, attempt_id: str, done: Any, fault: str | None
    ) -> dict[str, Any] | None:
        """Record how the last item of a worker ended (`done`) and give it the next one;
        None if the worker must end. Safe to repeat.

        `fault`: why the worker cannot work at all.
        """
        core = self._core
        batch = self._batches.live.get(batch_id)
        if batch is None:
            self._row(batch_id)
            return None  # the batch has ended
        attempt = core.view.attempts.get(attempt_id)
        if attempt is None or attempt.job_id not in batch.workers:
            raise RefusedError(
                f"Attempt {attempt_id} is no worker of {batch_id}.",
                "Its items are others' by now.",
            )
        if fault:
            core.emit([batch.changed(core.clock(), problem=fault)])
            await core.committed()
            return None
        item = batch.item_of(attempt_id)
        if item and done and _is_same_try(item, done):
            # Emitted now, because the rest may fail.
            core.emit([_item_ended(batch, item, done, core.clock())])
            batch.workers[attempt.job_id].completed += 1
            batch.failed_workers = 0
            item = None
        has_its_code = batch.workers[attempt.job_id].code == batch.code
        if (
            item is None
            and has_its_code
            and self._batches.gpus.may_stay(batch, attempt_id)
        ):
            item = self._start_next(batch, attempt)
        if item is None or batch.all_items_ended:
            core.schedule()
        await core.committed()
        return item.order() if item else None

    def _start_next(self, batch: Batch, attempt: LiveAttempt) -> Item | None:
        """Give the worker an item; None, and its GPU is released, if there is none."""
        gpus = attempt.placements[0].gpu_uuids if attempt.placements else ()
        gpu = gpus[0] if gpus else None
        item = self._batches.items.choose(batch, gpu)
        if item:
            now = self._core.clock()
            self._core.emit([batch.started(item, attempt.job_id, attempt.id, gpu, now)])
        elif gpu:
            batch.released.add(gpu)
        return item

    # --- cancel and retry ---

    def _live(self, batch_id: str) -> Batch:
        batch = self._batches.live.get(batch_id)
        if batch is None:
            self._row(batch_id)
            raise RefusedError(
                f"The batch {batch_id} is over.",
                "`gpuyard batch retry` does its failed items again.",
            )
        return batch

    def _row(self, batch_id: str) -> dict[str, Any]:
        row = self._core.queries.batch(batch_id)
        if row is None:
            raise _unknown(batch_id)
        return row

    def check_seen(self, batch_id: str, visibility: Visibility) -> None:
        """NotFoundError if there is no such batch, or none for who asks."""
        self._row(batch_id)
        if visibility.hidden:
            owner = self._batches.owners_of([batch_id])[batch_id]
            if not visibility.sees(owner.project):
                raise _unknown(batch_id)

    async def cancel(self, batch_id: str) -> dict[str, Any]:
        """End all items and workers of the batch. Models that made room are loaded
        again.
        """
        batch = self._live(batch_id)
        self._core.emit(self._cancel_items(batch))
        for job_id in list(batch.workers):
            await self._requests.cancel(job_id)
        self._core.schedule()
        await self._core.committed()
        return self.show(batch_id)

    def abandon(self) -> None:
        """End every batch that runs, because the server stops and what runs is
        cancelled. Those that wait are there when it starts again.
        """
        for batch in list(self._batches.live.values()):
            if not batch.running:
                continue
            events = self._cancel_items(batch)
            events.append(batch.ended(self._core.clock()))
            self._core.emit(events)
            del self._batches.live[batch.id]

    def _cancel_items(self, batch: Batch) -> list[Event]:
        """Cancel all items that wait or run; returns the events."""
        now = self._core.clock()
        items = [*batch.queued.values(), *batch.running.values()]
        return [batch.cancelled(item, now) for item in items]

    async def retry(self, batch_id: str, mode: BatchMode | None) -> dict[str, Any]:
        """Queue the items again that failed or were cancelled. They, and those that
        still wait, are done with the code that the script has now.

        `mode` counts only if the batch has ended. Raises RefusedError if there is no
        such item.
        """
        row = self._row(batch_id)
        code = await self._present_code(row)
        # Its end may be decided, and not yet be in its row.
        await self._core.committed()
        row = self._row(batch_id)
        now = self._core.clock()
        batch = self._batches.live.get(batch_id) or self._batches.batch_of(row)
        retried = (ItemState.FAILED, ItemState.CANCELLED)
        failed = [item for item in batch.items if item.state in retried]
        if not failed:
            raise RefusedError(
                f"No item of {batch_id} has failed.", "There is nothing to do again."
            )
        values: dict[str, Any] = {"state": BatchState.RUNNING.value, "problem": None}
        if batch.state.terminal:
            mode = self.estimates.mode_of(mode, row["script"], len(failed))
            values |= {
                "mode": mode.value,
                "reload": None,
                "began_at": None,
                "ended_at": None,
            }
        batch.code = code
        spec = [workers_spec(batch_id, batch.owner, code)]
        events = [batch.changed(now, more=spec, **values)]
        events += [batch.retried(item, now) for item in failed]
        batch.failed_workers = 0
        self._core.emit(events)
        self._batches.live[batch_id] = batch
        self._batches.workers.cancel_other_code(batch)
        self._core.schedule()
        await self._core.committed()
        return self.show(batch_id)

    async def _present_code(self, row: Mapping[str, Any]) -> str:
        """The digest of the code that the script of this batch has now."""
        script = row["script"]
        if script not in self._core.scripts:
            return ""
        return await self._code_of(
            script, self._batches.owners_of([row["id"]])[row["id"]]
        )

    # --- show ---

    def waiting(self) -> int:
        """How many scripts wait: the queued jobs but prompts and model servers, and of
        batches their queued items instead of their workers.
        """
        queue = self._core.view.queue
        servers = self._residents.servers.live
        count = len(queue) - queue.prompts.total()
        count -= sum(job_id in queue for job_id in servers)
        for batch in self._batches.live.values():
            count += len(batch.queued)
            count -= sum(job_id in queue for job_id in batch.workers)
        return count

    def listing(self) -> list[dict[str, Any]]:
        """All batches without their items, the newest first."""
        states = self._core.queries.item_counts()
        rows = self._core.queries.batches()
        owners = self._batches.owners_of(row["id"] for row in rows)
        return [
            self._summary_of(row, states.get(row["id"], {}), owners[row["id"]])
            for row in rows
        ]

    def summary(self, batch_id: str) -> dict[str, Any]:
        """One batch without its items."""
        states = self._core.queries.item_counts(batch_id)
        owner = self._batches.owners_of([batch_id])[batch_id]
        return self._summary_of(self._row(batch_id), states.get(batch_id, {}), owner)

    def show(self, batch_id: str) -> dict[str, Any]:
        """One batch with its items: the record of the seed document, with more
        fields.
        """
        row = self._row(batch_id)
        items = self._core.queries.items_of(batch_id)
        states = counts([item["state"] for item in items])
        owner = self._batches.owners_of([batch_id])[batch_id]
        shown = {**self._summary_of(row, states, owner), **record(row, items)}
        for shown_item, item in zip(shown["items"], items, strict=True):
            shown_item |= {name: item[name] for name in _ITEM_FIELDS}
        return shown

    def _summary_of(
        self, row: dict[str, Any], states: dict[str, int], owner: BatchOwner
    ) -> dict[str, Any]:
        """`states`: how many items are in each state."""
        batch = self._batches.live.get(row["id"])
        shown = {name: row[name] for name in _BATCH_FIELDS}
        workers = 0
        eta_s = None
        if batch:
            workers = sum(not worker.ended for worker in batch.workers.values())
            eta_s = self.estimates.eta_s(batch)
            if not shown["problem"]:
                shown["problem"] = self._batches.gpus.why_not(batch)
        return {
            "batch_id": row["id"],
            "gpu_mode": row["mode"],
            "total_items": row["total"],
            **shown,
            "project": owner.project,
            "user": owner.user,
            "completed": states.get("completed", 0),
            "failed": states.get("failed", 0),
            "counts": {state.value: states.get(state.value, 0) for state in ItemState},
            "workers": workers,
            "eta_s": eta_s,
        }


def _unknown(batch_id: str) -> NotFoundError:
    return NotFoundError(
        f"There is no batch {batch_id!r}.", "`gpuyard batch list` shows them."
    )


def _is_same_try(item: Item, done: dict[str, Any]) -> bool:
    return item.number == done["number"] and item.attempts == done["attempts"]


def _item_ended(batch: Batch, item: Item, done: dict[str, Any], now: float) -> Event:
    """The event of an item that has ended. If its script crashed, the item is tried
    once more; if the script refused the item, it has failed.
    """
    if not done.get("fault"):
        return batch.completed(item, now)
    if done.get("crashed") and item.attempts < 2:
        return batch.lost(item, done["fault"], now)
    return batch.failed(item, done["fault"], now)
