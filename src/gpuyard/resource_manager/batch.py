"""A batch under way: its items in memory, and the events that change them.

Nothing here does I/O.
"""

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from gpuyard.domain.batches import (
    NO_OWNER,
    BatchMode,
    BatchOwner,
    BatchSpec,
    BatchState,
    ItemState,
)
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.idempotency_keys import owned_key
from gpuyard.domain.reasons import Reason
from gpuyard.domain.scripts import ScriptSpec

MAX_ATTEMPTS = 3
# How long an item takes is learned from this many of the newest items.
_LEARNED_FROM = 20
# At most this many items in one event.
_ITEMS_PER_EVENT = 500


@dataclass(slots=True, eq=False)
class Item:
    """An item. `attempt_id` is the attempt of the worker that has it, `seconds` the
    playing time of its media. Times are UTC seconds.
    """

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
        """The item of a row of the ledger."""
        values = {name: row[name] for name in cls.__dataclass_fields__}
        values["state"] = ItemState(row["state"])
        return cls(**values)

    def order(self) -> dict[str, Any]:
        """The item in the answer to a worker."""
        return {
            "id": self.id,
            "number": self.number,
            "attempts": self.attempts,
            "path": self.path,
            "entry": self.entry,
            "args": self.args,
        }


@dataclass(slots=True, eq=False)
class Worker:
    """A job that does items of a batch. `gpu`: the GPU that it asks for, if any;
    `code`: see Batch;
    `completed`: how many items it has completed; `cancelled`: it was cancelled while it
    waited; `ended`: its job has ended.
    """

    job_id: str
    gpu: str | None = None
    code: str = ""
    completed: int = 0
    cancelled: bool = False
    ended: bool = False


@dataclass(slots=True, eq=False)
class Batch:
    """A batch that has not ended. `row` is its row in the ledger, `owner` whose it is.
    `code`: the digest of the code that its workers run, empty for that of their start.

    `queued` and `running`: its items by number. `released`: GPUs that it needs no more.
    `back`: models that were loaded again, each with its GPUs; they may have left since.
    `pace_ratios`: of completed items, the time they took divided by the first guess.
    `completed_on`: completed items by GPU. `failed_workers`: how many workers in a row
    have failed without completing an item; no other starts before `paused_until`
    (monotonic seconds). `worker_fault`: what became of the last one that failed.
    `is_finishing`: its index is being written.
    """

    row: dict[str, Any]
    script: ScriptSpec
    items: list[Item]
    owner: BatchOwner = NO_OWNER
    code: str = ""
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    queued: dict[int, Item] = field(default_factory=dict[int, Item])
    running: dict[int, Item] = field(default_factory=dict[int, Item])
    released: set[str] = field(default_factory=set[str])
    back: set[tuple[str, tuple[str, ...]]] = field(
        default_factory=set[tuple[str, tuple[str, ...]]]
    )
    pace_ratios: list[float] = field(default_factory=list[float])
    completed_on: Counter[str] = field(default_factory=Counter[str])
    failed_workers: int = 0
    paused_until: float = 0.0
    worker_fault: str | None = None
    is_finishing: bool = False
    _pace_ratio: float = 1.0
    # A heap of (minus the first guess, number), which may hold items no longer queued.
    _by_length: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def __post_init__(self) -> None:
        if self.pace_ratios:
            self._pace_ratio = median(self.pace_ratios[-_LEARNED_FROM:])
        for item in self.items:
            self._sort_in(item)
            self._learn_from(item)

    @property
    def id(self) -> str:
        """Its unique name."""
        return self.row["id"]

    @property
    def state(self) -> BatchState:
        """Its state."""
        return BatchState(self.row["state"])

    @property
    def exclusive(self) -> bool:
        """True if it has the GPUs for itself."""
        return self.row["mode"] == BatchMode.EXCLUSIVE and self.script.gpus > 0

    @property
    def reload(self) -> dict[str, list[str]]:
        """The models to load again afterwards, by GPU."""
        return self.row["reload"] or {}

    def use_again(self, gpu: str) -> None:
        """A GPU that was released is needed after all: its models leave again."""
        self.released.discard(gpu)
        self.back = {(model, gpus) for model, gpus in self.back if gpu not in gpus}

    @property
    def all_items_ended(self) -> bool:
        """True when no item is queued or running."""
        return not self.queued and not self.running

    def item_of(self, attempt_id: str) -> Item | None:
        """The item that the worker with this attempt has now."""
        for item in self.running.values():
            if item.attempt_id == attempt_id:
                return item
        return None

    # --- time ---

    def expected_s(self, item: Item) -> float:
        """How long the item will take, by the playing time of its media and by the
        times of earlier items.
        """
        return self._first_guess_s(item) * self._pace_ratio

    def _first_guess_s(self, item: Item) -> float:
        if item.seconds is None:
            return self.script.item_s
        return item.seconds * self.script.pace

    def first_queued(self) -> Item | None:
        """The queued item with the lowest number."""
        return self.queued[min(self.queued)] if self.queued else None

    def longest_queued(self) -> Item | None:
        """The queued item that is expected to take longest."""
        while self._by_length and self._by_length[0][1] not in self.queued:
            heapq.heappop(self._by_length)
        return self.queued[self._by_length[0][1]] if self._by_length else None

    def remaining_s(self, item: Item, now: float) -> float:
        """How much longer a running item will take."""
        ran_s = now - (item.started_at or now)
        return max(self.expected_s(item) - ran_s, 0.0)

    def _learn_from(self, item: Item) -> None:
        """Count a completed item for its GPU, and learn from its time."""
        if item.state is not ItemState.COMPLETED:
            return
        self.completed_on[item.gpu or ""] += 1
        guess = self._first_guess_s(item)
        if item.started_at and item.ended_at and guess:
            self.pace_ratios.append((item.ended_at - item.started_at) / guess)
            self._pace_ratio = median(self.pace_ratios[-_LEARNED_FROM:])

    # --- events of items ---

    def _sort_in(self, item: Item) -> None:
        self.queued.pop(item.number, None)
        self.running.pop(item.number, None)
        if item.state is ItemState.QUEUED:
            self.queued[item.number] = item
            heapq.heappush(self._by_length, (-self._first_guess_s(item), item.number))
        elif item.state is ItemState.RUNNING:
            self.running[item.number] = item

    def _change_item(
        self,
        kind: EventKind,
        item: Item,
        now: float,
        job_id: str | None = None,
        **values: Any,
    ) -> Event:
        """Set values of the item in memory; returns the event that sets its columns."""
        for name, value in values.items():
            if name in Item.__dataclass_fields__:
                setattr(item, name, value)
        self._sort_in(item)
        self._learn_from(item)
        if job_id:
            values["job_id"] = job_id
        values["state"] = item.state.value
        info = {
            "batch_id": self.id,
            "number": item.number,
            "state": item.state.value,
            "reason": values.get("reason"),
        }
        return Event(kind, now, (Change(Table.ITEMS, item.id, values),), job_id, info)

    def started(
        self, item: Item, job_id: str, attempt_id: str, gpu: str | None, now: float
    ) -> Event:
        """A worker has taken the item."""
        return self._change_item(
            EventKind.ITEM_STARTED,
            item,
            now,
            job_id,
            state=ItemState.RUNNING,
            attempt_id=attempt_id,
            gpu=gpu,
            started_at=now,
            ended_at=None,
            attempts=item.attempts + 1,
            reason=None,
        )

    def completed(self, item: Item, now: float) -> Event:
        """The item was completed."""
        return self._change_item(
            EventKind.ITEM_COMPLETED,
            item,
            now,
            state=ItemState.COMPLETED,
            ended_at=now,
            reason=None,
        )

    def failed(self, item: Item, reason: str, now: float) -> Event:
        """The item has failed, and is not tried again."""
        return self._change_item(
            EventKind.ITEM_FAILED,
            item,
            now,
            state=ItemState.FAILED,
            ended_at=now,
            reason=reason,
        )

    def cancelled(self, item: Item, now: float) -> Event:
        """The item was cancelled."""
        return self._change_item(
            EventKind.ITEM_CANCELLED,
            item,
            now,
            state=ItemState.CANCELLED,
            ended_at=now,
            attempt_id=None,
            reason=Reason.CANCELLED,
        )

    def lost(self, item: Item, reason: str, now: float) -> Event:
        """The worker of the item was lost: queue the item again, or let it fail after
        MAX_ATTEMPTS.
        """
        if item.attempts >= MAX_ATTEMPTS:
            return self.failed(item, f"{reason}, {item.attempts} times", now)
        return self._change_item(
            EventKind.ITEM_REQUEUED,
            item,
            now,
            state=ItemState.QUEUED,
            attempt_id=None,
            gpu=None,
            started_at=None,
            reason=reason,
        )

    def retried(self, item: Item, now: float) -> Event:
        """A person wants the item to be tried again: queue it as if it were new."""
        return self._change_item(
            EventKind.ITEM_REQUEUED,
            item,
            now,
            state=ItemState.QUEUED,
            attempt_id=None,
            gpu=None,
            started_at=None,
            ended_at=None,
            attempts=0,
            reason=None,
        )

    # --- events of the batch ---

    def changed(
        self,
        now: float,
        kind: EventKind = EventKind.BATCH_CHANGED,
        more: Sequence[Change] = (),
        **values: Any,
    ) -> Event:
        """Set values of the batch in memory; returns the event that sets its
        columns, and carries `more` changes.
        """
        self.row |= values
        changes = [Change(Table.BATCHES, self.id, values), *more]
        info = {
            "batch_id": self.id,
            "state": self.row["state"],
            "problem": self.row["problem"],
        }
        return Event(kind, now, tuple(changes), None, info)

    def ended(self, now: float) -> Event:
        """The batch has ended, and the models that made room for it are loaded."""
        states = {item.state for item in self.items}
        state = BatchState.COMPLETED
        if ItemState.CANCELLED in states:
            state = BatchState.CANCELLED
        elif states == {ItemState.FAILED}:
            state = BatchState.FAILED
        return self.changed(now, EventKind.BATCH_ENDED, state=state.value, ended_at=now)

    def worker_gone(self, worker: Worker, *, its_fault: bool) -> None:
        """The job of a worker has ended; `its_fault` if that counts as a failure."""
        self.workers.pop(worker.job_id, None)
        if worker.completed or not its_fault:
            self.failed_workers = 0
            return
        self.failed_workers += 1
        self.paused_until = time.monotonic() + 2.0 ** (self.failed_workers - 1)


def submitted(
    batch_id: str,
    spec: BatchSpec,
    script: str,
    mode: BatchMode,
    digest: str,
    now: float,
    owner: BatchOwner = NO_OWNER,
    code: str = "",
) -> list[Event]:
    """The events of a new batch: one for the batch, and some for its items."""
    key = spec.idempotency_key
    values: dict[str, Any] = {
        "state": BatchState.RUNNING.value,
        "script": script,
        "mode": mode.value,
        "source": spec.source,
        "results": f"{spec.results.rstrip('/')}/{batch_id}",
        "args": spec.args,
        "environment": spec.environment,
        "secrets": spec.secrets,
        "priority": spec.priority,
        "total": len(spec.items),
        "reload": None,
        "problem": None,
        "digest": digest,
        "idempotency_key": key and owned_key(key, owner.user),
        "created_at": now,
        "began_at": None,
        "ended_at": None,
    }
    info = {
        "batch_id": batch_id,
        "state": BatchState.RUNNING.value,
        "total": len(spec.items),
    }
    changes = [Change(Table.BATCHES, batch_id, values)]
    if owner != NO_OWNER or code:
        changes.append(workers_spec(batch_id, owner, code))
    events = [Event(EventKind.BATCH_SUBMITTED, now, tuple(changes), None, info)]
    rows = list(_item_rows(batch_id, spec))
    for start in range(0, len(rows), _ITEMS_PER_EVENT):
        part = rows[start : start + _ITEMS_PER_EVENT]
        changes = tuple(Change(Table.ITEMS, row["id"], row) for row in part)
        info = {"batch_id": batch_id}
        events.append(Event(EventKind.BATCH_CHANGED, now, changes, None, info))
    return events


def workers_spec(batch_id: str, owner: BatchOwner, code: str) -> Change:
    """The row of what its workers have in common: a spec, which stands where those of
    jobs do.
    """
    body = asdict(owner)
    if code:
        body["submitted_code"] = code
    return Change(Table.SPECS, batch_id, {"body": body})


def _item_rows(batch_id: str, spec: BatchSpec) -> Iterable[dict[str, Any]]:
    """The items of a new batch as rows."""
    for number, item in enumerate(spec.items, 1):
        yield {
            "id": f"{batch_id}/{number:05}",
            "batch_id": batch_id,
            "number": number,
            "state": ItemState.QUEUED.value,
            "path": item.path,
            "entry": item.entry,
            "seconds": item.seconds,
            "args": item.args,
            "attempts": 0,
            "job_id": None,
            "attempt_id": None,
            "gpu": None,
            "started_at": None,
            "ended_at": None,
            "reason": None,
        }


def counts(states: Sequence[str]) -> dict[str, int]:
    """How many items are in each state."""
    return {state.value: states.count(state.value) for state in ItemState}
