"""Lines: per model, who waits for an answer and which replicas give one.

Nothing here is durable: a request lives as long as the connection it came on.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

# So many of the newest arrivals tell the rate.
_KEPT = 5000


class NoAnswerError(Exception):
    """No replica became free in time, or the model cannot be loaded. The text says which, for people."""


@dataclass(slots=True, eq=False)
class Replica:
    """A model server that answers: at `url`, which calls the model `served_name`, `slots` requests at a time.

    `draining`: it is to leave. `suspended`: a request could not reach it; whoever looks after it says when it is well.
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
class Waiter:
    """Somebody waits since `since` (monotonic seconds)."""

    since: float
    turn: asyncio.Future[Replica]


@dataclass(slots=True, eq=False)
class Line:
    """One model's: who waits in order, when the newest came, how long answers took, and who answers."""

    waiting: deque[Waiter] = field(default_factory=deque[Waiter])
    arrivals: deque[float] = field(default_factory=lambda: deque[float](maxlen=_KEPT))
    replicas: dict[str, Replica] = field(default_factory=dict[str, Replica])
    answered: int = 0
    answering_s: float = 0.0


class Lines:
    """All models' lines. `changed` is called when somebody came who has to wait, and when a replica became idle;
    `asked` for each request.
    """

    def __init__(self, models: Mapping[str, object], changed: Callable[[], None] = lambda: None) -> None:
        self.lines: dict[str, Line] = {model: Line() for model in models}
        self.changed = changed
        self.asked: Callable[[str], None] = lambda _: None

    async def acquire(self, model: str, timeout_s: float) -> Replica:
        """A slot of a replica of `model`, in the order of arrival; NoAnswerError after `timeout_s`."""
        line = self.lines[model]
        line.arrivals.append(time.monotonic())
        self.asked(model)
        return await self._next(line, model, timeout_s)

    async def again(self, model: str, timeout_s: float) -> Replica:
        """Another slot for a request whose replica has died."""
        return await self._next(self.lines[model], model, timeout_s)

    async def _next(self, line: Line, model: str, timeout_s: float) -> Replica:
        waiter = Waiter(time.monotonic(), asyncio.get_running_loop().create_future())
        line.waiting.append(waiter)
        self._hand_out(line)
        if not waiter.turn.done():
            self.changed()
        # A turn that comes in the moment in which its waiter gives up is given back, not lost.
        try:
            await asyncio.wait([waiter.turn], timeout=timeout_s)
        except asyncio.CancelledError:
            if waiter.turn.done() and waiter.turn.exception() is None:
                self.release(waiter.turn.result(), None)
            raise
        finally:
            with suppress(ValueError):
                line.waiting.remove(waiter)
        if not waiter.turn.done():
            waiter.turn.cancel()
            raise NoAnswerError(f"{model} was not free within {timeout_s:g} s")
        return waiter.turn.result()

    def release(self, replica: Replica, took_s: float | None) -> None:
        """The slot is free again; `took_s` is how long the answer took, if there was one."""
        replica.busy -= 1
        replica.used_at = time.monotonic()
        line = self.lines[replica.model]
        if took_s is not None:
            replica.answered += 1
            line.answered += 1
            line.answering_s += took_s
        self._hand_out(line)
        if replica.busy == 0:
            self.changed()

    def put(self, replica: Replica) -> None:
        """One more that answers, or one that is well again."""
        replica.suspended = False
        line = self.lines[replica.model]
        line.replicas[replica.id] = replica
        self._hand_out(line)

    def drop(self, replica: Replica) -> None:
        """It answers no more; nothing changes the second time."""
        self.lines[replica.model].replicas.pop(replica.id, None)
        replica.draining = True

    def refuse(self, model: str, reason: str) -> None:
        """Everybody who waits for the model is told why it cannot be."""
        line = self.lines[model]
        while line.waiting:
            waiter = line.waiting.popleft()
            if not waiter.turn.done():
                waiter.turn.set_exception(NoAnswerError(reason))

    def _hand_out(self, line: Line) -> None:
        while line.waiting:
            free = [replica for replica in line.replicas.values() if replica.free]
            if not free:
                return
            waiter = line.waiting.popleft()
            if waiter.turn.done():
                continue
            replica = min(free, key=lambda r: (r.busy / r.slots, -r.used_at))
            replica.busy += 1
            waiter.turn.set_result(replica)
