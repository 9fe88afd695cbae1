"""Tells the owner of a running job something: a warning that `gpuyard show` prints, and
an event.
"""

from collections.abc import Iterable
from typing import Any

from gpuyard.controller.core import Core
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.units import format_gb
from gpuyard.scheduler.attempts import LiveAttempt


def warn(
    core: Core,
    attempt: LiveAttempt,
    warning: str,
    kind: EventKind,
    info: dict[str, Any],
) -> None:
    """Add `warning` to the job of the attempt, unless it is there already."""
    change = _change(core, attempt.job_id, warning)
    if change is None:
        return  # told before the server was restarted
    data = {"attempt_id": attempt.id, **info}
    core.emit([Event(kind, core.clock(), (change,), attempt.job_id, data)])


def warn_jobs(
    core: Core,
    job_ids: Iterable[str],
    warning: str,
    kind: EventKind,
    info: dict[str, Any],
) -> None:
    """Add `warning` to these jobs, and tell of it in one event, even if there are
    none. The event belongs to the job if there is one only, and names all in `jobs`.
    """
    live = [job_id for job_id in job_ids if job_id in core.view.jobs]
    changes = [_change(core, job_id, warning) for job_id in live]
    known = tuple(change for change in changes if change)
    owner = live[0] if len(live) == 1 else None
    data = {**info, "jobs": live}
    core.emit([Event(kind, core.clock(), known, owner, data)])


def _change(core: Core, job_id: str, warning: str) -> Change | None:
    """The row of the job with this warning; None if it has it, or has ended."""
    job = core.queries.job(job_id)
    if job is None or job_id not in core.view.jobs:
        return None
    warnings: list[str] = job["warnings"] or []
    if warning in warnings:
        return None
    return Change(Table.JOBS, job_id, {"warnings": [*warnings, warning]})


def warn_of_limited_log(core: Core, attempt: LiveAttempt, limit_gb: float) -> None:
    """The log of the attempt has reached its limit."""
    warning = (
        f"its log has reached its limit of {format_gb(limit_gb)}: only the end of its"
        " output is kept; --log-limit-gb sets another"
    )
    info = {"log_limit_gb": limit_gb}
    warn(core, attempt, warning, EventKind.JOB_LOG_LIMITED, info)
