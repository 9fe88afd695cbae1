"""A batch that is under way: its items in memory, and the events that move them. Nothing here reads or writes."""

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gpuyard.domain.batches import BatchMode, BatchSpec, BatchState, ItemState
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.scripts import ScriptSpec

MOST_ATTEMPTS = 3
# The newest so many items tell how long one takes.
_LEARNED_FROM = 20


@dataclass(slots=True, eq=False)
class Item:
    """An item. `attempt_id` is the worker that has it; times are UTC seconds."""

    id: str
    number: int
    path: str
    entry: str | None
    seconds: float | None
    args: Mapping[str, Any]
    state: ItemState = ItemState.QUEUED
    attempts: int = 0
    attempt_id: str | None = None
    gpu: str | None = None
    started_at: float | None = None
    ended_at: float | None = None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Item":
        """As the ledger has it."""
        own = {name: row[name] for name in cls.__dataclass_fields__ if name not in ("state", "id")}
        return cls(id=row["id"], state=ItemState(row["state"]), **own)

    def order(self) -> dict[str, Any]:
        """What a worker is told."""
        return {"id": self.id, "number": self.number, "attempts": self.attempts, "path": self.path,
                "entry": self.entry, "args": self.args}  # fmt: skip


@dataclass(slots=True, eq=False)
class Worker:
    """A job that does the batch's items. `gpu` is where it is pinned to; `leaving`: it was called back; `over`: its job
    has ended."""

    job_id: str
    gpu: str | None = None
    completed: int = 0
    leaving: bool = False
    over: bool = False


@dataclass(slots=True, eq=False)
class Batch:
    """A batch that is not over. `row` is its ledger row; `reload` says which model comes back on which GPU.

    `released` are GPUs that do no more for it; `done_on` counts what each has done. `fruitless`: so many workers in a
    row have ended without an item done; the next is tried at `rests_until` (monotonic seconds).
    """

    row: dict[str, Any]
    script: ScriptSpec
    items: list[Item]
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    queued: dict[int, Item] = field(default_factory=dict[int, Item])
    running: dict[int, Item] = field(default_factory=dict[int, Item])
    released: set[str] = field(default_factory=set[str])
    took: list[float] = field(default_factory=list[float])
    done_on: Counter[str] = field(default_factory=Counter[str])
    fruitless: int = 0
    rests_until: float = 0.0
    finishing: bool = False
    _slowness: float = 1.0
    _by_length: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def __post_init__(self) -> None:
        if self.took:
            self._slowness = median(self.took[-_LEARNED_FROM:])
        for item in self.items:
            self._file(item)
            self._count(item)

    @property
    def id(self) -> str:
        """Its name, which is unique."""
        return self.row["id"]

    @property
    def state(self) -> BatchState:
        """Where it stands."""
        return BatchState(self.row["state"])

    @property
    def exclusive(self) -> bool:
        """It has the GPUs for itself."""
        return self.row["mode"] == BatchMode.EXCLUSIVE and self.script.gpus > 0

    @property
    def reload(self) -> dict[str, list[str]]:
        """Models by the GPU on which they come back."""
        return self.row["reload"] or {}

    @property
    def over(self) -> bool:
        """No item is left to do."""
        return not self.queued and not self.running

    def of(self, attempt_id: str) -> Item | None:
        """The item that this worker has now."""
        return next((item for item in self.running.values() if item.attempt_id == attempt_id), None)

    # --- time ---

    def lasts(self, item: Item) -> float:
        """How long it will take: by how long its media play, and how long items took so far."""
        return self._guess_s(item) * self._slowness

    def _guess_s(self, item: Item) -> float:
        return self.script.item_s if item.seconds is None else item.seconds * self.script.pace

    def first(self) -> Item | None:
        """The first of those that wait."""
        return self.queued[min(self.queued)] if self.queued else None

    def longest(self) -> Item | None:
        """The longest of those that wait."""
        while self._by_length and self._by_length[0][1] not in self.queued:
            heapq.heappop(self._by_length)
        return self.queued[self._by_length[0][1]] if self._by_length else None

    def left_s(self, item: Item, now: float) -> float:
        """How much longer a running item will take."""
        return max(self.lasts(item) - (now - (item.started_at or now)), 0.0)

    def _count(self, item: Item) -> None:
        """One that is done counts for its GPU, and the time it took tells of those to come."""
        if item.state is not ItemState.COMPLETED:
            return
        self.done_on[item.gpu or ""] += 1
        guess = self._guess_s(item)
        if item.started_at and item.ended_at and guess:
            self.took.append((item.ended_at - item.started_at) / guess)
            self._slowness = median(self.took[-_LEARNED_FROM:])

    # --- moves ---

    def _file(self, item: Item) -> None:
        self.queued.pop(item.number, None)
        self.running.pop(item.number, None)
        if item.state is ItemState.QUEUED:
            self.queued[item.number] = item
            heapq.heappush(self._by_length, (-self._guess_s(item), item.number))
        elif item.state is ItemState.RUNNING:
            self.running[item.number] = item

    def _moved(self, kind: EventKind, item: Item, now: float, job_id: str | None = None, **values: Any) -> Event:
        """The item now has these values, here and in the event."""
        for name, value in values.items():
            if name in Item.__dataclass_fields__:
                setattr(item, name, value)
        self._file(item)
        self._count(item)
        if job_id:
            values["job_id"] = job_id
        values["state"] = item.state.value
        info = {"batch_id": self.id, "number": item.number, "state": item.state.value, "reason": values.get("reason")}
        return Event(kind, now, (Change(Table.ITEMS, item.id, values),), job_id, info)

    def started(self, item: Item, job_id: str, attempt_id: str, gpu: str | None, now: float) -> Event:
        """A worker has it."""
        return self._moved(EventKind.ITEM_STARTED, item, now, job_id, state=ItemState.RUNNING, attempt_id=attempt_id,
                           gpu=gpu, started_at=now, ended_at=None, attempts=item.attempts + 1, reason=None)  # fmt: skip

    def completed(self, item: Item, now: float) -> Event:
        """It is done."""
        return self._moved(EventKind.ITEM_COMPLETED, item, now, state=ItemState.COMPLETED, ended_at=now, reason=None)

    def failed(self, item: Item, reason: str, now: float) -> Event:
        """It cannot be done."""
        return self._moved(EventKind.ITEM_FAILED, item, now, state=ItemState.FAILED, ended_at=now, reason=reason)

    def cancelled(self, item: Item, now: float) -> Event:
        """Nobody wants it any more."""
        return self._moved(EventKind.ITEM_CANCELLED, item, now, state=ItemState.CANCELLED, ended_at=now,
                           attempt_id=None, reason="cancelled")  # fmt: skip

    def lost(self, item: Item, reason: str, now: float) -> Event:
        """Its worker is gone: it is done by another, unless that happens again and again."""
        if item.attempts >= MOST_ATTEMPTS:
            return self.failed(item, f"{reason}, {item.attempts} times", now)
        return self._moved(EventKind.ITEM_REQUEUED, item, now, state=ItemState.QUEUED, attempt_id=None, gpu=None,
                           started_at=None, reason=reason)  # fmt: skip

    def again(self, item: Item, now: float) -> Event:
        """Somebody has submitted it again."""
        return self._moved(EventKind.ITEM_REQUEUED, item, now, state=ItemState.QUEUED, attempt_id=None, gpu=None,
                           started_at=None, ended_at=None, attempts=0, reason=None)  # fmt: skip

    def changed(self, now: float, kind: EventKind = EventKind.BATCH_CHANGED, **values: Any) -> Event:
        """The batch itself now has these values."""
        self.row |= values
        info = {"batch_id": self.id, "state": self.row["state"], "problem": self.row["problem"]}
        return Event(kind, now, (Change(Table.BATCHES, self.id, values),), None, info)

    def ended(self, now: float) -> Event:
        """It is over, and whatever made room for it is back."""
        cancelled = any(item.state is ItemState.CANCELLED for item in self.items)
        state = BatchState.CANCELLED if cancelled else BatchState.COMPLETED
        return self.changed(now, EventKind.BATCH_ENDED, state=state.value, ended_at=now)

    def worker_gone(self, worker: Worker, *, its_fault: bool) -> None:
        """A worker's job is over."""
        self.workers.pop(worker.job_id, None)
        if worker.completed or not its_fault:
            self.fruitless = 0
            return
        self.fruitless += 1
        self.rests_until = time.monotonic() + 2.0 ** (self.fruitless - 1)


def submitted(batch_id: str, spec: BatchSpec, script: str, mode: BatchMode, digest: str, now: float) -> list[Event]:
    """A new batch, and its items in slices."""
    values: dict[str, Any] = {
        "state": BatchState.RUNNING.value, "script": script, "mode": mode.value, "source": spec.source,
        "results": f"{spec.results.rstrip('/')}/{batch_id}", "args": spec.args, "environment": spec.environment,
        "priority": spec.priority, "total": len(spec.items), "reload": None, "problem": None, "digest": digest,
        "idempotency_key": spec.idempotency_key, "created_at": now, "began_at": None, "ended_at": None,
    }  # fmt: skip
    info = {"batch_id": batch_id, "state": BatchState.RUNNING.value, "total": len(spec.items)}
    events = [Event(EventKind.BATCH_SUBMITTED, now, (Change(Table.BATCHES, batch_id, values),), None, info)]
    rows = list(item_rows(batch_id, spec))
    for start in range(0, len(rows), 500):
        changes = tuple(Change(Table.ITEMS, row["id"], row) for row in rows[start : start + 500])
        events.append(Event(EventKind.BATCH_CHANGED, now, changes, None, {"batch_id": batch_id}))
    return events


def item_rows(batch_id: str, spec: BatchSpec) -> Iterable[dict[str, Any]]:
    """The items of a new batch as rows."""
    for number, item in enumerate(spec.items, 1):
        yield {
            "id": f"{batch_id}/{number:05}", "batch_id": batch_id, "number": number, "state": ItemState.QUEUED.value,
            "path": item.path, "entry": item.entry, "seconds": item.seconds, "args": item.args, "attempts": 0,
            "job_id": None, "attempt_id": None, "gpu": None, "started_at": None, "ended_at": None, "reason": None,
        }  # fmt: skip


def counts(states: Sequence[str]) -> dict[str, int]:
    """How many items are in each state."""
    return {state.value: states.count(state.value) for state in ItemState}
