"""Request queues: for each model, the waiting requests and the replicas that answer.

Nothing here is durable: a request lives as long as its connection.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

# The request rate is computed from this many of the newest arrivals.
_ARRIVALS_KEPT = 5000


class ModelUnavailableError(Exception):
    """No replica became free in time, or the model cannot be loaded.

    The text says which, for people.
    """


@dataclass(slots=True, eq=False)
class Replica:
    """A model server at `url`, which calls the model `served_name`.

    It answers `slots` requests at a time. `draining`: it gets no new requests and will
    be stopped. `suspended`: a request could not reach it; its resident adds it again
    once it is healthy.
    """

    id: str
    model: str
    url: str
    served_name: str
    slots: int = 1
    busy: int = 0
    draining: bool = False
    suspended: bool = False
    answered: int = 0
    used_at: float = field(default_factory=time.monotonic)

    @property
    def free(self) -> bool:
        """Whether it takes one more request."""
        return not self.draining and not self.suspended and self.busy < self.slots


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """A request that waits for a replica since `since` (monotonic seconds)."""

    since: float
    replica: asyncio.Future[Replica]


@dataclass(slots=True, eq=False)
class RequestQueue:
    """One model's waiting requests in order, recent arrivals, and replicas.

    `answering_s`: how long its answers took, all together.
    """

    waiting: deque[WaitingRequest] = field(default_factory=deque[WaitingRequest])
    arrivals: deque[float] = field(
        default_factory=lambda: deque[float](maxlen=_ARRIVALS_KEPT)
    )
    replicas: dict[str, Replica] = field(default_factory=dict[str, Replica])
    answered: int = 0
    answering_s: float = 0.0


class RequestQueues:
    """The request queues of all models.

    `changed` is called when a request has to wait and when a replica becomes idle;
    `asked` is called for each request.
    """

    def __init__(
        self, models: Mapping[str, object], changed: Callable[[], None] = lambda: None
    ) -> None:
        self.by_model: dict[str, RequestQueue] = {
            model: RequestQueue() for model in models
        }
        self.changed = changed
        self.asked: Callable[[str], None] = lambda _: None

    async def acquire(self, model: str, timeout_s: float) -> Replica:
        """Wait for a slot of a replica of `model`, first come first served.

        Raises ModelUnavailableError after `timeout_s`.
        """
        queue = self.by_model[model]
        queue.arrivals.append(time.monotonic())
        self.asked(model)
        return await self._next(queue, model, timeout_s)

    async def acquire_again(self, model: str, timeout_s: float) -> Replica:
        """Wait for another slot for a request whose replica has died."""
        return await self._next(self.by_model[model], model, timeout_s)

    async def _next(self, queue: RequestQueue, model: str, timeout_s: float) -> Replica:
        future: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        request = WaitingRequest(time.monotonic(), future)
        queue.waiting.append(request)
        self._assign_replicas(queue)
        if not future.done():
            self.changed()
        try:
            await asyncio.wait([future], timeout=timeout_s)
        except asyncio.CancelledError:
            # A slot that was assigned in this very moment must not be lost.
            if future.done() and future.exception() is None:
                self.release(future.result(), None)
            raise
        finally:
            with suppress(ValueError):
                queue.waiting.remove(request)
        if not future.done():
            future.cancel()
            raise ModelUnavailableError(f"{model} was not free within {timeout_s:g} s")
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
        self._assign_replicas(queue)
        if replica.busy == 0:
            self.changed()

    def put(self, replica: Replica) -> None:
        """Add a replica, or one that is healthy again."""
        replica.suspended = False
        queue = self.by_model[replica.model]
        queue.replicas[replica.id] = replica
        self._assign_replicas(queue)

    def drop(self, replica: Replica) -> None:
        """Remove a replica; removing it twice does no harm."""
        self.by_model[replica.model].replicas.pop(replica.id, None)
        replica.draining = True

    def refuse(self, model: str, reason: str) -> None:
        """Fail every waiting request of a model that cannot be loaded."""
        queue = self.by_model[model]
        while queue.waiting:
            request = queue.waiting.popleft()
            if not request.replica.done():
                request.replica.set_exception(ModelUnavailableError(reason))

    def _assign_replicas(self, queue: RequestQueue) -> None:
        while queue.waiting:
            free = [replica for replica in queue.replicas.values() if replica.free]
            if not free:
                return
            request = queue.waiting.popleft()
            if request.replica.done():
                continue
            # The least busy one; of equally busy ones, the one used last.
            replica = min(free, key=lambda r: (r.busy / r.slots, -r.used_at))
            replica.busy += 1
            request.replica.set_result(replica)
