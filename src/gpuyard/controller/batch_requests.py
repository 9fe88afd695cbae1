"""What people and workers ask of batches: submit, estimate, take an item, cancel, try again, show."""

import asyncio
import hashlib
import re
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from gpuyard.controller.batch import Batch, Item, counts, submitted
from gpuyard.controller.batches import Batches
from gpuyard.controller.core import Core
from gpuyard.controller.requests import Requests
from gpuyard.controller.residents import Residents
from gpuyard.domain.batches import BatchMode, BatchSpec, BatchState, ItemState, record
from gpuyard.domain.errors import NotFoundError, RefusedError
from gpuyard.domain.events import Event
from gpuyard.scheduler.batches import Leg, Place, course

# A plan for more items than these takes longer than it is worth to whoever only looks.
_PLANNED = 1000


class BatchRequests:
    """Requests about batches, carried out on the core."""

    def __init__(self, core: Core, requests: Requests, residents: Residents, batches: Batches) -> None:
        self._core, self._requests, self._residents, self._batches = core, requests, residents, batches
        self._door = asyncio.Lock()

    # --- submit ---

    async def submit(self, spec: BatchSpec) -> dict[str, Any]:
        """Queue a batch; a repeated key is the first batch again, unless it was another one (RefusedError)."""
        script = self._core.scripts.named(spec.script)
        digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
        async with self._door:  # behind it no name and no key comes into use twice
            return await self._submit(spec, script, digest)

    async def _submit(self, spec: BatchSpec, script: str, digest: str) -> dict[str, Any]:
        if spec.idempotency_key and (known := self._core.queries.batch_by_key(spec.idempotency_key)):
            if known["digest"] != digest:
                raise RefusedError(
                    f"idempotency_key {spec.idempotency_key!r} was used for another batch ({known['id']}).",
                    "Use a new key.",
                )
            return self.show(known["id"])
        batch_id, core = self._name(script, spec.source), self._core
        events = submitted(batch_id, spec, script, self._mode(spec.mode, script, len(spec.items)), digest, core.clock())
        core.writer.put(events)
        await core.committed()
        row = core.queries.batch(batch_id)
        assert row is not None
        self._batches.live[batch_id] = self._batches.batch_of(row)
        core.schedule()
        return self.show(batch_id)

    def _mode(self, wanted: BatchMode | None, script: str, count: int) -> BatchMode:
        if wanted:
            return wanted
        least = self._core.settings.resource_manager.batch_settings.auto_exclusive_threshold
        alone = count >= least and self._core.scripts[script].gpus > 0
        return BatchMode.EXCLUSIVE if alone else BatchMode.SHARED

    def _name(self, script: str, source: str) -> str:
        """The seed document's form: what, from where, when. A second of that name is numbered."""
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(source).stem).strip("-") or "items"
        day = datetime.fromtimestamp(self._core.clock(), UTC).date()
        name = f"{script.split('_')[0]}-{stem[:80]}-{day}"
        taken = set(self._core.queries.batch_ids(name))
        return next(n for n in (name, *(f"{name}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)

    # --- estimate ---

    def estimate(self, spec: BatchSpec) -> dict[str, Any]:
        """What a batch would take, from now, without submitting it; seconds."""
        name = self._core.scripts.named(spec.script)
        mode = self._mode(spec.mode, name, len(spec.items))
        row: dict[str, Any] = {
            "id": "",
            "state": "running",
            "mode": mode.value,
            "reload": None,
            "problem": None,
            "args": {},
        }
        items = [Item("", number, item.path, item.entry, item.seconds, item.args)
                 for number, item in enumerate(spec.items, 1)]  # fmt: skip
        batch = Batch(row, self._core.scripts[name], items, took=self._experience(name))
        unload_s = 0.0
        if batch.exclusive:
            reload = row["reload"] = dict[str, list[str]]()
            for resident in self._residents.live.values():
                for gpu in resident.gpus:
                    reload.setdefault(gpu, []).append(resident.model)
            unload_s = max((self._residents.unload_s(r.model) for r in self._residents.live.values()), default=0.0)
        legs = self._course(batch, unload_s)
        return {"script": name, "mode": mode.value, "items": len(items), "pace_known": bool(batch.took),
                "work_s": sum(map(batch.lasts, items)), **self._plan(legs, unload_s, batch)}  # fmt: skip

    def _experience(self, script: str) -> list[float]:
        """How the newest items of a script compare with what was expected of them."""
        rows = self._core.queries.newest_items(script, 20)
        return Batch({}, self._core.scripts[script], [Item.of_row(row) for row in rows]).took

    def _course(self, batch: Batch, unload_s: float = 0.0) -> list[Leg]:
        places = self._batches.places(batch)
        if not batch.script.gpus:
            places = [Place("", 0.0) for _ in range(self._batches.room(batch))]
        waiting = [batch.lasts(item) for item in batch.queued.values()]
        return course(waiting, [Place(p.gpu, p.free_at + unload_s, p.load_s) for p in places], batch.script.exit_s)

    def _eta_s(self, batch: Batch) -> float | None:
        """When its last model is back; of a long batch that is far from over, about when its last item is done."""
        if len(batch.queued) <= _PLANNED:
            return max((leg.over_at for leg in self._course(batch)), default=None)
        gpus = len(self._batches.places(batch)) if batch.script.gpus else self._batches.room(batch)
        return sum(map(batch.lasts, batch.queued.values())) / gpus if gpus else None

    def _plan(self, legs: list[Leg], unload_s: float, batch: Batch) -> dict[str, Any]:
        used = [leg for leg in legs if leg.items]
        index = {uuid: device.index for uuid, device in self._core.view.devices.items()}
        return {
            "total_s": max((leg.over_at for leg in used), default=None), "unload_s": unload_s,
            "boot_s": batch.script.boot_s, "dry_s": max((leg.dry_at for leg in used), default=None),
            "plan": [{"gpu": index.get(leg.gpu), "uuid": leg.gpu or None, "items": leg.items,
                      "begins_s": leg.begins_at, "dry_s": leg.dry_at, "over_s": leg.over_at,
                      "reload": batch.reload.get(leg.gpu, [])} for leg in used],
        }  # fmt: skip

    # --- a worker's word ---

    async def take(self, batch_id: str, attempt_id: str, done: Any, fault: str | None) -> dict[str, Any] | None:
        """Take in how the last item went, and give the next; None when the worker is to leave. Safe to repeat."""
        core, batch = self._core, self._batches.live.get(batch_id)
        attempt = core.view.attempts.get(attempt_id)
        if batch is None:
            self._row(batch_id)
            return None  # it is over
        if attempt is None or attempt.job_id not in batch.workers:
            raise RefusedError(f"Attempt {attempt_id} is no worker of {batch_id}.", "Its items are others' by now.")
        worker, now, events = batch.workers[attempt.job_id], core.clock(), list[Event]()
        if fault:
            core.emit([batch.changed(now, problem=fault)])
            await core.committed()
            return None
        held = batch.of(attempt_id)
        if done and held and (held.number, held.attempts) == (done["number"], done["attempts"]):
            core.emit([_settled(batch, held, done, now)])  # at once: what follows may fail
            worker.completed += 1
            batch.fruitless, held = 0, None
        if held is None and self._batches.may_stay(batch, attempt_id):
            gpus = attempt.placements[0].gpu_uuids if attempt.placements else ()
            gpu = gpus[0] if gpus else None
            held = self._batches.choose(batch, gpu)
            if held:
                events.append(batch.started(held, attempt.job_id, attempt_id, gpu, now))
            elif gpu:
                batch.released.add(gpu)
        core.emit(events)
        if held is None or batch.over:
            core.schedule()
        await core.committed()
        return held.order() if held else None

    # --- cancel and again ---

    def _live(self, batch_id: str) -> Batch:
        batch = self._batches.live.get(batch_id)
        if batch is None:
            self._row(batch_id)
            raise RefusedError(f"The batch {batch_id} is over.", "`gpuyard batch retry` does its failed items again.")
        return batch

    def _row(self, batch_id: str) -> dict[str, Any]:
        row = self._core.queries.batch(batch_id)
        if row is None:
            raise NotFoundError(f"There is no batch {batch_id!r}.", "`gpuyard batch list` shows them.")
        return row

    async def cancel(self, batch_id: str) -> dict[str, Any]:
        """End the batch: what waits and what runs; models that made room come back."""
        batch, now = self._live(batch_id), self._core.clock()
        left = [*batch.queued.values(), *batch.running.values()]
        self._core.emit([batch.cancelled(item, now) for item in left])
        for job_id in list(batch.workers):
            await self._requests.cancel(job_id)
        self._core.schedule()
        await self._core.committed()
        return self.show(batch_id)

    def abandon(self) -> None:
        """End every batch, and bring nothing back: the server stops, and was asked to cancel what runs."""
        now = self._core.clock()
        for batch in list(self._batches.live.values()):
            left = [*batch.queued.values(), *batch.running.values()]
            self._core.emit([*(batch.cancelled(item, now) for item in left), batch.ended(now)])
            del self._batches.live[batch.id]

    async def retry(self, batch_id: str, mode: BatchMode | None) -> dict[str, Any]:
        """Queue the items again that failed or were cancelled; the others stay as they are. RefusedError if none."""
        row, now = self._row(batch_id), self._core.clock()
        batch = self._batches.live.get(batch_id) or self._batches.batch_of(row)
        failed = [i for i in batch.items if i.state in (ItemState.FAILED, ItemState.CANCELLED)]
        if not failed:
            raise RefusedError(f"No item of {batch_id} has failed.", "There is nothing to do again.")
        if batch.state.terminal:
            mode = self._mode(mode, row["script"], len(failed))
            events = [batch.changed(now, state=BatchState.RUNNING.value, mode=mode.value, reload=None, began_at=None,
                                    ended_at=None, problem=None)]  # fmt: skip
        else:
            events = [batch.changed(now, state=BatchState.RUNNING.value, problem=None)]
        batch.fruitless = 0
        self._core.emit([*events, *(batch.again(item, now) for item in failed)])
        self._batches.live[batch_id] = batch
        self._core.schedule()
        await self._core.committed()
        return self.show(batch_id)

    # --- show ---

    def waiting(self) -> int:
        """How many scripts wait: jobs, and the items of batches in place of their workers."""
        live = self._batches.live.values()
        workers = sum(1 for batch in live for job_id in batch.workers if job_id in self._core.view.queue)
        return len(self._core.view.queue) - workers + sum(len(batch.queued) for batch in live)

    def listing(self) -> list[dict[str, Any]]:
        """All batches, the newest first."""
        states = self._core.queries.item_counts()
        return [self._shown(row, states.get(row["id"], {})) for row in self._core.queries.batches()]

    def glance(self, batch_id: str) -> dict[str, Any]:
        """One batch without its items."""
        return self._shown(self._row(batch_id), self._core.queries.item_counts(batch_id).get(batch_id, {}))

    def show(self, batch_id: str) -> dict[str, Any]:
        """One batch with its items: the seed document's record, and more."""
        row, items = self._row(batch_id), self._core.queries.items_of(batch_id)
        shown = self._shown(row, counts([item["state"] for item in items]))
        found = record(row, items)
        for told, item in zip(found["items"], items, strict=True):
            told |= {name: item[name] for name in ("number", "state", "attempts", "gpu", "seconds", "started_at",
                                                   "ended_at", "reason")}  # fmt: skip
        return {**shown, **found}

    def _shown(self, row: dict[str, Any], states: dict[str, int]) -> dict[str, Any]:
        live = self._batches.live.get(row["id"])
        shown = {name: row[name] for name in ("script", "source", "results", "state", "problem", "created_at",
                                              "began_at", "ended_at")}  # fmt: skip
        if live and not shown["problem"]:
            shown["problem"] = self._batches.why_not(live)
        return {
            "batch_id": row["id"], "gpu_mode": row["mode"], "total_items": row["total"], **shown,
            "completed": states.get("completed", 0), "failed": states.get("failed", 0),
            "counts": {state.value: states.get(state.value, 0) for state in ItemState},
            "workers": sum(not worker.over for worker in live.workers.values()) if live else 0,
            "eta_s": self._eta_s(live) if live else None,
        }  # fmt: skip


def _settled(batch: Batch, item: Item, done: dict[str, Any], now: float) -> Event:
    """How it went: an item whose script crashed is tried once more, one that the script refused is not."""
    if not done.get("fault"):
        return batch.completed(item, now)
    if done.get("crashed") and item.attempts < 2:
        return batch.lost(item, done["fault"], now)
    return batch.failed(item, done["fault"], now)
