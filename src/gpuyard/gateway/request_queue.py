"""Request queues: for each model, the waiting requests and the replicas that answer.

The requests of `/v1` and the prompts that are jobs wait in one queue. Nothing here is
durable: a request of `/v1` lives as long as its connection, and a prompt's job is in
the ledger.
"""

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

PRIORITIES = range(1, 6)
"""As of jobs: 5 is the most urgent."""
REQUEST_PRIORITY = 4
"""Of a request that names none: somebody waits for its answer, and a job's default
is 3."""
# A request that has waited long comes before the most urgent new one, and then only its
# age counts. So nobody waits for ever.
_AGED = 6
# So many that have left may still be in the heaps of a queue.
_LEFT_KEPT = 64
# The request rate is computed from this many of the newest arrivals.
_ARRIVALS_KEPT = 5000


def _now() -> float:
    # Looked up at each call, so that a simulation can have a clock of its own.
    return time.monotonic()


class ModelUnavailableError(Exception):
    """No replica became free in time, or the model cannot be loaded.

    The text says which, for people.
    """


@dataclass(slots=True, eq=False)
class Replica:
    """A model server at `url`, which calls the model `served_name`, on the GPUs `gpus`.

    It answers `slots` requests at a time: `busy` of them answer, and `cooling` of them
    pause after an answer. `draining`: it gets no new requests and will be stopped.
    `suspended`: a request could not reach it; its resident adds it again once it is
    healthy.
    """

    id: str
    model: str
    url: str
    served_name: str
    slots: int = 1
    gpus: tuple[str, ...] = ()
    busy: int = 0
    cooling: int = 0
    draining: bool = False
    suspended: bool = False
    answered: int = 0
    used_at: float = field(default_factory=_now)

    @property
    def open(self) -> bool:
        """Whether it gets requests."""
        return not self.draining and not self.suspended

    @property
    def free(self) -> bool:
        """Whether it takes one more request."""
        return self.open and self.taken < self.slots

    @property
    def taken(self) -> int:
        """How many of its slots are taken."""
        return self.busy + self.cooling


@dataclass(frozen=True, slots=True)
class QueuedRequestTerms:
    """What a request asks for in the request queue of its model.

    `since`: when it came (monotonic seconds). `deadline`: when it gives up; one without
    a deadline also waits while the model cannot be loaded. `gpus`: it waits for a
    replica on one of these while there is such a replica.
    """

    priority: int = REQUEST_PRIORITY
    since: float = field(default_factory=_now)
    deadline: float = math.inf
    gpus: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """A request in the queue of its model, and the replica that it will get."""

    terms: QueuedRequestTerms
    replica: asyncio.Future[Replica]


# A priority, and GPUs.
_Wish = tuple[int, frozenset[str]]


class WaitingRequests:
    """The waiting requests of one model: by priority, which rises by one for each
    `ageing_s` of waiting, then by arrival.
    """

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._requests: dict[WaitingRequest, None] = {}
        # By priority and GPUs, the oldest first. Requests that have left may still be
        # in it.
        self._heaps: dict[_Wish, list[tuple[float, int, WaitingRequest]]] = {}
        self._left = 0
        self._added = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[WaitingRequest]:
        return iter(self._requests)

    def add(self, request: WaitingRequest) -> None:
        """Let the request wait."""
        self._requests[request] = None
        self._added += 1
        wish = request.terms.priority, request.terms.gpus
        heap = self._heaps.setdefault(wish, [])
        heapq.heappush(heap, (request.terms.since, self._added, request))

    def remove(self, request: WaitingRequest) -> None:
        """Let the request leave; idempotent."""
        if request not in self._requests:
            return
        del self._requests[request]
        self._left += 1
        # Behind one that waits for ever, those that give up would pile up.
        if self._left > len(self._requests) + _LEFT_KEPT:
            self._drop_left()

    def _drop_left(self) -> None:
        for wish, heap in list(self._heaps.items()):
            kept = [entry for entry in heap if entry[2] in self._requests]
            heapq.heapify(kept)
            self._heaps[wish] = kept
        self._left = 0

    def first(
        self, may: Callable[[QueuedRequestTerms], bool] = lambda _: True
    ) -> WaitingRequest | None:
        """Whose turn it is, of those whose terms `may` be met now; None if there is
        none.
        """
        now = time.monotonic()
        heads = {wish: self._head(heap) for wish, heap in self._heaps.items()}
        able: list[WaitingRequest] = []
        for wish, head in heads.items():
            if head is None:
                del self._heaps[wish]
            elif may(head.terms):
                able.append(head)
        return min(able, key=lambda head: self._rank(head.terms, now), default=None)

    def highest_priority(self) -> int:
        """The highest priority that one of them asks for; 0 if none waits."""
        priorities = (
            priority for (priority, _), heap in self._heaps.items() if self._head(heap)
        )
        return max(priorities, default=0)

    def ahead_of(self, terms: QueuedRequestTerms) -> int:
        """How many come before the request with these terms. Prompts of one submission
        came at the same time: they have the order in which they were added.
        """
        now = time.monotonic()
        own = self._rank(terms, now)
        ahead = 0
        was_added_before = True
        for other in self._requests:
            if other.terms is terms:
                was_added_before = False
                continue
            rank = self._rank(other.terms, now)
            if rank < own or (rank == own and was_added_before):
                ahead += 1
        return ahead

    def _head(
        self, heap: list[tuple[float, int, WaitingRequest]]
    ) -> WaitingRequest | None:
        while heap and heap[0][2] not in self._requests:
            heapq.heappop(heap)
            self._left -= 1
        return heap[0][2] if heap else None

    def _rank(self, terms: QueuedRequestTerms, now: float) -> tuple[int, float]:
        steps = int(max(now - terms.since, 0.0) / self._ageing_s)
        return -min(terms.priority + steps, _AGED), terms.since


@dataclass(slots=True, eq=False)
class RequestQueue:
    """One model's waiting requests, recent arrivals, and replicas.

    `answering_s`: how long its answers took, all together.
    """

    waiting: WaitingRequests
    arrivals: deque[float] = field(
        default_factory=lambda: deque[float](maxlen=_ARRIVALS_KEPT)
    )
    replicas: dict[str, Replica] = field(default_factory=dict[str, Replica])
    answered: int = 0
    answering_s: float = 0.0

    @property
    def open(self) -> list[Replica]:
        """The replicas that get requests at the moment."""
        return [replica for replica in self.replicas.values() if replica.open]

    @property
    def slots(self) -> int:
        """How many requests its open replicas answer at once."""
        return sum(replica.slots for replica in self.open)

    def free_for(self, terms: QueuedRequestTerms) -> list[Replica]:
        """The free replicas that may answer a request with these terms."""
        wanted = [replica for replica in self.open if terms.gpus & set(replica.gpus)]
        return [replica for replica in wanted or self.open if replica.free]


class RequestQueues:
    """The request queues of all models.

    `changed` is called when a request has to wait and when a replica becomes idle;
    `asked` is called for each request. `ageing_s`: see `WaitingRequests`. `cooling_s`:
    a slot pauses for so long after each answer.
    """

    def __init__(
        self,
        models: Mapping[str, object],
        changed: Callable[[], None] = lambda: None,
        ageing_s: float = math.inf,
        cooling_s: float = 0.0,
    ) -> None:
        self._cooling_s = cooling_s
        self.by_model: dict[str, RequestQueue] = {
            model: RequestQueue(WaitingRequests(ageing_s)) for model in models
        }
        self.changed = changed
        self.asked: Callable[[str], None] = lambda _: None

    async def acquire(self, model: str, terms: QueuedRequestTerms) -> Replica:
        """Wait for a slot of a replica of `model`.

        Raises ModelUnavailableError at the deadline in the terms.
        """
        self.note_arrival(model)
        return await self.acquire_again(model, terms)

    def note_arrival(self, model: str) -> None:
        """Count a request for the model, for the request rate."""
        self.by_model[model].arrivals.append(time.monotonic())
        self.asked(model)

    async def acquire_again(self, model: str, terms: QueuedRequestTerms) -> Replica:
        """Wait for another slot for a request whose replica has died."""
        queue = self.by_model[model]
        future: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        request = WaitingRequest(terms, future)
        queue.waiting.add(request)
        self._assign_replicas(queue)
        if not future.done():
            self.changed()
        left_s = None
        if terms.deadline < math.inf:
            left_s = max(terms.deadline - time.monotonic(), 0.0)
        try:
            if not future.done():
                await asyncio.wait([future], timeout=left_s)
        except asyncio.CancelledError:
            # A slot that was assigned in this very moment must not be lost.
            if future.done() and future.exception() is None:
                self.release(future.result(), None)
            raise
        finally:
            queue.waiting.remove(request)
        if not future.done():
            future.cancel()
            waited_s = time.monotonic() - terms.since
            raise ModelUnavailableError(f"{model} was not free within {waited_s:.0f} s")
        return future.result()

    def release(self, replica: Replica, took_s: float | None) -> None:
        """Free a slot; `took_s` is how long the answer took, if there was one."""
        replica.busy -= 1
        replica.used_at = time.monotonic()
        queue = self.by_model[replica.model]
        if took_s is not None:
            replica.answered += 1
            queue.answered += 1
            queue.answering_s += took_s
        if self._cooling_s:
            replica.cooling += 1
            loop = asyncio.get_running_loop()
            loop.call_later(self._cooling_s, self._end_cooling, replica)
        self._slot_is_free(replica)

    def _end_cooling(self, replica: Replica) -> None:
        replica.cooling -= 1
        self._slot_is_free(replica)

    def _slot_is_free(self, replica: Replica) -> None:
        self._assign_replicas(self.by_model[replica.model])
        if replica.taken == 0:
            self.changed()

    def put(self, replica: Replica) -> None:
        """Add a replica, or one that is healthy again."""
        replica.suspended = False
        queue = self.by_model[replica.model]
        queue.replicas[replica.id] = replica
        self._assign_replicas(queue)

    def drop(self, replica: Replica) -> None:
        """Remove a replica; removing it twice does no harm."""
        queue = self.by_model[replica.model]
        queue.replicas.pop(replica.id, None)
        replica.draining = True
        self._assign_replicas(queue)  # others need not wait for this one any more

    def refuse(self, model: str, reason: str) -> None:
        """Fail the waiting requests of a model that cannot be loaded, but not those
        that wait as long as it takes.
        """
        for request in self.by_model[model].waiting:
            is_patient = request.terms.deadline == math.inf
            if not is_patient and not request.replica.done():
                request.replica.set_exception(ModelUnavailableError(reason))

    def _assign_replicas(self, queue: RequestQueue) -> None:
        while any(replica.free for replica in queue.replicas.values()):
            request = queue.waiting.first(lambda terms: bool(queue.free_for(terms)))
            if request is None:
                return
            queue.waiting.remove(request)
            if request.replica.done():
                continue
            free = queue.free_for(request.terms)
            # The least busy one; of equally busy ones, the one used last.
            replica = min(free, key=lambda r: (r.taken / r.slots, -r.used_at))
            replica.busy += 1
            request.replica.set_result(replica)
