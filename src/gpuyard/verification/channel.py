"""A channel: the way to one executor's solver, whatever carries it."""

from typing import Any, Protocol

from gpuyard.domain.errors import GpuyardError
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import Message

Order = dict[str, Any]


class NotStartedError(GpuyardError):
    """The solver's job has not begun in time: the queue kept it waiting, which is not the executor's fault."""

    code = "verification_not_started"


class GoneError(GpuyardError):
    """The solver has gone before it had said everything."""

    code = "verification_gone"


class Channel(Protocol):
    """All but `close` raise GoneError when nobody is at the other end any more, and other GpuyardErrors when the yard
    cannot be asked."""

    job_id: str | None

    async def ready(self) -> Message | None:
        """Wait until it can be given the seed: what it said first, or None where the seed is what starts it.

        NotStartedError; TimeoutError when it has begun and does not get ready; ProtocolError.
        """
        ...

    async def reveal(self, seed: int) -> float:
        """Give it the seed; since when its time runs (UTC seconds). NotStartedError."""
        ...

    async def receive(self) -> Message:
        """What it says next. ProtocolError for what no solver says, or not now."""
        ...

    async def close(self) -> None:
        """Let it go, and see its job end; does nothing the second time, and raises nothing."""
        ...


class Opens(Protocol):
    """Opens channels: through the yard, or in a test straight to a solver."""

    def open(self, executor: Executor, check_id: str, order: Order) -> Channel:
        """A channel on which nothing has been said; the order has no seed."""
        ...
