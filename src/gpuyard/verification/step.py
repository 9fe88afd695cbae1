"""What every step of a pipeline does alike: it says what it does, and its faults are its own."""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any

import structlog

from gpuyard.domain.errors import GpuyardError
from gpuyard.verification.classes import Class
from gpuyard.verification.context import Busy, Context, LeaseLost, call
from gpuyard.verification.records.events import Kind, Subtype
from gpuyard.verification.trusted import ExecutorFault

log = structlog.get_logger(__name__)


class Outcome(StrEnum):
    """How a step ended. `busy`: somebody else was at it, or had the trusted executor."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"
    BUSY = "busy"


class Skip(Exception):  # noqa: N818  (no error: a step's way out)
    """There is nothing to do, or something is lacking."""

    outcome = Outcome.SKIPPED

    def __init__(self, reason: str, subtype: Subtype = Subtype.SKIPPED, **data: Any) -> None:
        super().__init__(reason)
        self.subtype = subtype
        self.data = data


class Fail(Skip):
    """Nothing came of it."""

    outcome = Outcome.FAILED

    def __init__(self, reason: str, subtype: Subtype = Subtype.FAILURE, **data: Any) -> None:
        super().__init__(reason, subtype, **data)


# What can happen to anyone; other exceptions are faults of ours, or of another's generator, and are logged whole.
_EXPECTED = (ExecutorFault, LeaseLost, OSError, GpuyardError)


class Step:
    """One run of a step of class `cls`: its way to tell what happens."""

    def __init__(self, context: Context, kind: Kind, cls: Class) -> None:
        self.context = context
        self.kind = kind
        self.cls = cls

    async def tell(self, subtype: Subtype, **data: Any) -> None:
        """Record an event."""
        await call(self.context.records.event, self.kind, subtype, self.cls, **data)


async def run_step(
    context: Context, kind: Kind, cls: Class, work: Callable[[Step], Awaitable[Mapping[str, Any]]]
) -> Outcome:
    """Do `work`, which returns the data of its success, or raises; what it raises becomes an event of its class.

    Only a database that fails is raised: where events are kept, faults cannot be told either.
    """
    step = Step(context, kind, cls)
    try:
        data = await work(step)
    except Skip as skip:
        await step.tell(skip.subtype, reason=str(skip), **skip.data)
        return skip.outcome
    except Busy as busy:
        await step.tell(Subtype.SKIPPED, reason=f"somebody else has the lock {str(busy)!r}")
        return Outcome.BUSY
    except Exception as error:  # a class's fault must stay its own
        if not isinstance(error, _EXPECTED):
            log.exception("verification_step_failed", kind=kind, gpu_class=cls)
        await step.tell(Subtype.FAILURE, reason=f"{type(error).__name__}: {error}"[:1000])
        return Outcome.FAILED
    await step.tell(Subtype.SUCCESS, **data)
    return Outcome.DONE
