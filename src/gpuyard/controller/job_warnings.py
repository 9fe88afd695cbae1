"""Tells the owner of a running job something: a warning that `gpuyard show` prints, and
an event.
"""

from typing import Any

from gpuyard.controller.core import Core
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.units import format_gb
from gpuyard.scheduler.view import LiveAttempt


def warn(
    core: Core,
    attempt: LiveAttempt,
    warning: str,
    kind: EventKind,
    info: dict[str, Any],
) -> None:
    """Add `warning` to the job of the attempt, unless it is there already."""
    job = core.queries.job(attempt.job_id)
    if job is None or attempt.job_id not in core.view.jobs:
        return
    warnings: list[str] = job["warnings"] or []
    if warning in warnings:
        return  # told before the server was restarted
    change = Change(Table.JOBS, attempt.job_id, {"warnings": [*warnings, warning]})
    data = {"attempt_id": attempt.id, **info}
    core.emit([Event(kind, core.clock(), (change,), attempt.job_id, data)])


def warn_of_limited_log(core: Core, attempt: LiveAttempt, limit_gb: float) -> None:
    """The log of the attempt has reached its limit."""
    warning = (
        f"its log has reached its limit of {format_gb(limit_gb)}: only the end of its"
        " output is kept; --log-limit-gb sets another"
    )
    info = {"log_limit_gb": limit_gb}
    warn(core, attempt, warning, EventKind.JOB_LOG_LIMITED, info)
