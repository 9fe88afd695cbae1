"""What the steps of all pipelines share: events, and isolation from other classes."""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any

import structlog

from gpuyard.domain.errors import GpuyardError
from gpuyard.verification.classes import Class
from gpuyard.verification.context import Context, LeaseBusy, LeaseLost, call
from gpuyard.verification.records.events import EventSubtype, PipelineEventKind
from gpuyard.verification.trusted_changes import note_silence
from gpuyard.verification.trusted_executor import ExecutorFault

log = structlog.get_logger(__name__)


class StepOutcome(StrEnum):
    """How a step ended.

    `busy`: another process had the step or the trusted executor.
    """

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"
    BUSY = "busy"


class StepSkipped(Exception):  # noqa: N818  (not an error here)
    """Raised to end a step: there is nothing to do, or something is missing."""

    outcome = StepOutcome.SKIPPED

    def __init__(
        self, reason: str, subtype: EventSubtype = EventSubtype.SKIPPED, **data: Any
    ) -> None:
        super().__init__(reason)
        self.subtype = subtype
        self.data = data


class StepFailed(StepSkipped):
    """Raised to end a step that achieved nothing."""

    outcome = StepOutcome.FAILED

    def __init__(
        self, reason: str, subtype: EventSubtype = EventSubtype.FAILURE, **data: Any
    ) -> None:
        super().__init__(reason, subtype, **data)


# Errors that are expected. Others are bugs of ours or of a foreign generator, and are
# logged with their traceback.
_EXPECTED = (ExecutorFault, LeaseLost, OSError, GpuyardError)


class StepRun:
    """One run of a step for a class, which can record events."""

    def __init__(self, context: Context, kind: PipelineEventKind, cls: Class) -> None:
        self.context = context
        self.kind = kind
        self.cls = cls

    async def tell(self, subtype: EventSubtype, **data: Any) -> None:
        """Record an event."""
        await call(self.context.records.event, self.kind, subtype, self.cls, **data)


async def run_step(
    context: Context,
    kind: PipelineEventKind,
    cls: Class,
    work: Callable[[StepRun], Awaitable[Mapping[str, Any]]],
) -> StepOutcome:
    """Do `work` and record its result, or what it raises, as an event of its class.

    `work` returns the data of the success event. Only DatabaseError is raised, since
    without the database no event can be recorded.
    """
    step = StepRun(context, kind, cls)
    try:
        data = await work(step)
    except StepSkipped as skip:
        await step.tell(skip.subtype, reason=str(skip), **skip.data)
        return skip.outcome
    except LeaseBusy as busy:
        await step.tell(
            EventSubtype.SKIPPED, reason=f"somebody else has the lock {str(busy)!r}"
        )
        return StepOutcome.BUSY
    except Exception as error:  # it must not stop other classes
        if not isinstance(error, _EXPECTED):
            log.exception("verification_step_failed", kind=kind, gpu_class=cls)
        if isinstance(error, ExecutorFault):
            await note_silence(context, cls, error)
        await step.tell(
            EventSubtype.FAILURE, reason=f"{type(error).__name__}: {error}"[:1000]
        )
        return StepOutcome.FAILED
    await step.tell(EventSubtype.SUCCESS, **data)
    return StepOutcome.DONE
