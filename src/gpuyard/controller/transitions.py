"""State changes of jobs and attempts: pure functions from records to events.

Each function first checks the tables of legal moves (`domain/states.py`), so an event
that breaks them is never written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any, overload

import msgspec

from gpuyard.billing.meter import Price, cost
from gpuyard.controller.attempt_outcome import AttemptOutcome, Retry, final_state
from gpuyard.controller.intake import PreparedJob
from gpuyard.controller.new_notices import new_notices
from gpuyard.domain import wire
from gpuyard.domain.errors import IllegalMoveError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.reasons import Reason, RetryRule
from gpuyard.domain.run_time import run_time_s
from gpuyard.domain.shape import Placement
from gpuyard.domain.states import (
    ATTEMPT_MOVES,
    JOB_MOVES,
    AttemptState,
    JobState,
    check_move,
)
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.jobs import LiveJob

Placements = tuple[Placement, ...]

NEWEST = "newest"
"""The value of `resume_from` that means the newest checkpoint of the job."""

_EVENT_OF_FINAL_STATE: Mapping[JobState, EventKind] = {
    JobState.COMPLETED: EventKind.JOB_COMPLETED,
    JobState.FAILED: EventKind.JOB_FAILED,
    JobState.CANCELLED: EventKind.JOB_CANCELLED,
    JobState.TIMED_OUT: EventKind.JOB_TIMED_OUT,
}

_NO_TAKEOVERS: Mapping[str, Placements] = MappingProxyType({})


def _check_job_move(job: LiveJob, state: JobState) -> None:
    check_move(JOB_MOVES, f"job {job.id}", job.state, state)


def _check_attempt_move(attempt: LiveAttempt, state: AttemptState) -> None:
    check_move(ATTEMPT_MOVES, f"attempt {attempt.id}", attempt.state, state)


def _placement_rows(placements: Sequence[Placement]) -> list[dict[str, Any]]:
    return [placement.to_row() for placement in placements]


def submitted(job: PreparedJob, now: float) -> Event:
    """A new job."""
    template = job.template
    values: dict[str, Any] = {
        "name": job.name,
        "kind": template.kind,
        "state": JobState.QUEUED.value,
        "reason": None,
        "exit_code": None,
        "priority": template.priority,
        "project": template.project,
        "labels": job.labels,
        "shape": template.shape_row,
        "created_at": now,
        "started_at": None,
        "ended_at": None,
        "not_before": None,
        "timeout_s": template.timeout_s,
        "estimated_duration_s": template.estimated_duration_s,
        "preemptible": template.preemptible,
        "depends_on": job.parents,
        "retry_count": template.retry_count,
        "failures": 0,
        "attempts": 0,
        "attempt_id": None,
        "cancel_requested": False,
        "resume_from": None,
        "tier": template.tier,
        "idempotency_key": job.key,
        "warnings": template.warnings,
    }
    # What few jobs have is left out, which makes the journal of many shorter.
    if template.held:
        values["held"] = True
    if template.deadline is not None:
        values["deadline"] = template.deadline
    if template.user is not None:
        values["owner"] = template.user
    if template.retry_on is not None:
        values["retry_on"] = template.retry_on
    if job.parent_ends:
        values["parent_ends"] = job.parent_ends
    changes = (
        Change(Table.JOBS, job.id, values),
        Change(Table.SPECS, job.id, {"body": msgspec.Raw(job.body)}),
        *new_notices(job.id, template),
    )
    return Event(
        EventKind.JOB_SUBMITTED,
        now,
        changes,
        job.id,
        {"state": JobState.QUEUED, "name": job.name},
    )


class SubmissionEvents(Sequence[Event]):
    """The events of new `jobs`. Each is made when it is read, because to keep them all
    would take some kilobytes per job.
    """

    def __init__(self, jobs: Sequence[PreparedJob], now: float) -> None:
        self._jobs = jobs
        self._now = now

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [submitted(job, self._now) for job in self._jobs[index]]
        return submitted(self._jobs[index], self._now)


def intended(
    job: LiveJob,
    attempt_id: str,
    *,
    token: int,
    epoch: int,
    provider: str,
    reference: str | None,
    placements: Sequence[Placement],
    price: Price,
    now: float,
    gpu: str | None = None,
) -> Event:
    """The intent to run `job` on `placements`; it is committed before the provider is
    called.

    `reference` is the provider's name for the attempt, if it is known beforehand. `gpu`
    is the kind of its GPUs: empty without any, None if it is not known.
    """
    _check_job_move(job, JobState.ASSIGNED)
    attempt: dict[str, Any] = {
        "job_id": job.id,
        "number": job.attempts + 1,
        "state": AttemptState.INTENDED.value,
        "token": token,
        "epoch": epoch,
        "provider": provider,
        "provider_ref": reference,
        "placements": _placement_rows(placements),
        "created_at": now,
        "started_at": None,
        "ended_at": None,
        "ran_s": None,
        "exit_code": None,
        "signal": None,
        "reason": None,
        "message": None,
        "limits": {},
        "usage": {},
        "resumed_from": None,
        "price_per_hour": str(price.per_hour),
        "currency": price.currency,
        "basis": price.basis,
        "tier": price.tier,
        "cost": "0",
        "project": job.project,
        "owner": job.owner,
        "gpu": gpu,
        "gpus": job.shape.gpus * job.shape.nodes,
        "cpus": job.shape.cpus * job.shape.nodes,
        "gpu_used": None,
    }
    job_values = {
        "state": JobState.ASSIGNED.value,
        "attempts": job.attempts + 1,
        "attempt_id": attempt_id,
        "not_before": None,
        "reason": None,
        "exit_code": None,
        "ended_at": None,
    }
    gpu_uuids = [uuid for placement in placements for uuid in placement.gpu_uuids]
    info = {
        "state": JobState.ASSIGNED,
        "attempt_id": attempt_id,
        "number": job.attempts + 1,
        "provider": provider,
        "node": placements[0].node_id,
        "gpus": gpu_uuids,
    }
    changes = (
        Change(Table.ATTEMPTS, attempt_id, attempt),
        Change(Table.JOBS, job.id, job_values),
    )
    return Event(EventKind.ATTEMPT_INTENDED, now, changes, job.id, info)


def sent(
    attempt: LiveAttempt, reference: str, resumed_from: str | None, now: float
) -> Event:
    """The provider has accepted the attempt; its name there is `reference`."""
    _check_attempt_move(attempt, AttemptState.SENT)
    values = {
        "state": AttemptState.SENT.value,
        "provider_ref": reference,
        "resumed_from": resumed_from,
    }
    change = Change(Table.ATTEMPTS, attempt.id, values)
    info = {"attempt_id": attempt.id, "resumed_from": resumed_from}
    return Event(EventKind.ATTEMPT_SENT, now, (change,), attempt.job_id, info)


def found(attempt: LiveAttempt, reference: str, now: float) -> Event:
    """The provider has an attempt whose submission it never answered; its name there is
    `reference`.
    """
    values = {"provider_ref": reference}
    if attempt.state is AttemptState.INTENDED:
        values["state"] = AttemptState.SENT.value
    change = Change(Table.ATTEMPTS, attempt.id, values)
    info = {"attempt_id": attempt.id, "resumed_from": None}
    return Event(EventKind.ATTEMPT_SENT, now, (change,), attempt.job_id, info)


def pending(attempt: LiveAttempt, now: float) -> Event:
    """The attempt waits in the provider's own queue."""
    _check_attempt_move(attempt, AttemptState.PENDING)
    change = Change(Table.ATTEMPTS, attempt.id, {"state": AttemptState.PENDING.value})
    info = {"attempt_id": attempt.id}
    return Event(EventKind.ATTEMPT_PENDING, now, (change,), attempt.job_id, info)


def started(
    job: LiveJob,
    attempt: LiveAttempt,
    at: float,
    limits: Mapping[str, str],
    placements: Placements | None = None,
    facts: Mapping[str, str] | None = None,
) -> Event:
    """The process of the attempt has been running since `at` (UTC seconds).

    `placements` says where, if an external queue chose the place; `facts` with what it
    runs.
    """
    values: dict[str, Any] = {"started_at": at, "limits": dict(limits)}
    if facts:
        values["facts"] = dict(facts)
    if placements is not None:
        values["placements"] = _placement_rows(placements)
    if attempt.state is not AttemptState.ENDING:
        _check_attempt_move(attempt, AttemptState.RUNNING)
        values["state"] = AttemptState.RUNNING.value
    if job.state is not JobState.RUNNING:
        _check_job_move(job, JobState.RUNNING)
    job_values: dict[str, Any] = {"state": JobState.RUNNING.value}
    if job.started_at is None:
        job_values["started_at"] = at
    changes = (
        Change(Table.ATTEMPTS, attempt.id, values),
        Change(Table.JOBS, job.id, job_values),
    )
    first_placement = (placements or attempt.placements)[0]
    info = {
        "state": JobState.RUNNING,
        "attempt_id": attempt.id,
        "node": first_placement.node_id,
    }
    return Event(EventKind.ATTEMPT_STARTED, at, changes, job.id, info)


def moved(
    attempt: LiveAttempt, gpu_uuids: Sequence[str], now: float, node_id: str = ""
) -> Event:
    """The attempt books these GPUs now, of its node or of the one that has joined."""
    placements = [
        replace(each, gpu_uuids=tuple(gpu_uuids), node_id=node_id or each.node_id)
        for each in attempt.placements
    ]
    values = {"placements": _placement_rows(placements)}
    change = Change(Table.ATTEMPTS, attempt.id, values)
    info = {"attempt_id": attempt.id, "gpus": list(gpu_uuids)}
    return Event(EventKind.ATTEMPT_MOVED, now, (change,), attempt.job_id, info)


def share_ended(attempt: LiveAttempt, rank: int, end: wire.Ended, now: float) -> Event:
    """A share of an attempt on several nodes has ended; others still run."""
    placements = list(attempt.placements)
    row: dict[str, Any] = msgspec.to_builtins(end)
    placements[rank] = replace(placements[rank], end=row)
    values = {"placements": _placement_rows(placements)}
    change = Change(Table.ATTEMPTS, attempt.id, values)
    info = {
        "attempt_id": attempt.id,
        "share": rank,
        "node": placements[rank].node_id,
        "exit_code": end.exit_code,
        "reason": end.reason or end.stopped,
    }
    return Event(EventKind.ATTEMPT_SHARE_ENDED, now, (change,), attempt.job_id, info)


def ending(
    attempt: LiveAttempt, reason: str, now: float, for_job: str | None = None
) -> Event:
    """The attempt will be ended; the provider is called after the commit.

    `for_job` is the job that needs its place, if it is preempted for one.
    """
    _check_attempt_move(attempt, AttemptState.ENDING)
    values = {"state": AttemptState.ENDING.value, "reason": reason}
    changes = [Change(Table.ATTEMPTS, attempt.id, values)]
    kind = EventKind.ATTEMPT_ENDING
    if Reason.of(reason).ends_job:
        changes.append(Change(Table.JOBS, attempt.job_id, {"cancel_requested": True}))
        kind = EventKind.JOB_CANCEL_REQUESTED
    info = {"attempt_id": attempt.id, "reason": reason}
    if for_job:
        info["for_job"] = for_job
    return Event(kind, now, tuple(changes), attempt.job_id, info)


def cancel_requested(job: LiveJob, attempt: LiveAttempt, now: float) -> Event:
    """The owner cancels a job whose attempt is already being ended for another reason:
    the job will not be queued again.
    """
    change = Change(Table.JOBS, job.id, {"cancel_requested": True})
    info = {"attempt_id": attempt.id, "reason": Reason.CANCELLED}
    return Event(EventKind.JOB_CANCEL_REQUESTED, now, (change,), job.id, info)


def attempt_ended(
    job: LiveJob,
    attempt: LiveAttempt,
    outcome: AttemptOutcome,
    retry: Retry,
    takeovers: Mapping[str, Placements] = _NO_TAKEOVERS,
) -> Event:
    """The attempt has ended: its cost, and the new state of its job.

    `takeovers`: the placements that waiting attempts take over from it, by the id of
    the waiting attempt.
    """
    attempt_state = AttemptState.LOST if outcome.lost else AttemptState.ENDED
    _check_attempt_move(attempt, attempt_state)
    started_at = outcome.started_at or attempt.started_at
    ran_s = run_time_s(started_at, outcome.at, outcome.ran_s)
    spent = cost(Decimal(attempt.price_per_hour), outcome.paid_s or ran_s)
    if attempt.offer and job.shape.model:
        spent = Decimal(0)  # the job of its model's server pays for the GPUs
    state, reason = final_state(job, outcome)
    values: dict[str, Any] = {
        "state": attempt_state.value,
        "started_at": started_at,
        "ended_at": outcome.at,
        "ran_s": outcome.ran_s,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "reason": reason,
        "message": outcome.message or None,
        "usage": dict(outcome.usage),
        "gpu_used": _gpu_used(outcome),
        "cost": str(spent),
    }
    if outcome.limits:
        values["limits"] = dict(outcome.limits)
    if outcome.facts:
        values["facts"] = dict(outcome.facts)
    if retry.not_before is not None:
        job_values = _requeued_values(job, reason, retry.not_before)
        kind = EventKind.JOB_REQUEUED
    else:
        job_values = _ended_values(state, reason, outcome)
        kind = _EVENT_OF_FINAL_STATE[state]
    if job.started_at is None and started_at is not None:
        job_values["started_at"] = started_at
    _check_job_move(job, JobState(job_values["state"]))
    info = {
        "state": job_values["state"],
        "attempt_id": attempt.id,
        "exit_code": outcome.exit_code,
        "reason": reason,
        "cost": str(spent),
        "not_before": job_values.get("not_before"),
    }
    changes = (
        Change(Table.ATTEMPTS, attempt.id, values),
        Change(Table.JOBS, job.id, job_values),
        *_takeover_changes(takeovers),
    )
    return Event(kind, outcome.at, changes, job.id, info)


def _gpu_used(outcome: AttemptOutcome) -> float | None:
    """How busy its GPUs were on average, from 0 to 1; None if nobody measured."""
    used = outcome.usage.get(wire.GPU_UTILIZATION)
    return None if used is None else min(max(used, 0.0), 1.0)


def _takeover_changes(takeovers: Mapping[str, Placements]) -> list[Change]:
    changes: list[Change] = []
    for attempt_id, placements in takeovers.items():
        values = {"placements": _placement_rows(placements)}
        changes.append(Change(Table.ATTEMPTS, attempt_id, values))
    return changes


def _ended_values(
    state: JobState, reason: str | None, outcome: AttemptOutcome
) -> dict[str, Any]:
    """The new values of a job that is not tried again."""
    return {
        "state": state.value,
        "reason": reason,
        "exit_code": outcome.exit_code,
        "ended_at": outcome.at,
        "attempt_id": None,
    }


def _requeued_values(
    job: LiveJob, reason: str | None, not_before: float
) -> dict[str, Any]:
    """The new values of a job that is queued again after a failed attempt."""
    why = Reason.of(reason)
    uses_a_retry = why.retry is not RetryRule.FREE
    # An attempt that never began did not read its checkpoint.
    resume_from = job.resume_from if why.never_began else NEWEST
    return {
        "state": JobState.QUEUED.value,
        "reason": reason,
        "attempt_id": None,
        "failures": job.failures + 1 if uses_a_retry else job.failures,
        "not_before": not_before,
        "resume_from": resume_from,
    }


def job_ended(
    job: LiveJob, state: JobState, reason: str, now: float, message: str = ""
) -> Event:
    """A job without a live attempt ends: it was cancelled while queued, or its parent
    failed.
    """
    if job.attempt_id is not None:
        raise IllegalMoveError(
            f"job {job.id} has a live attempt.", "End that, and the job ends with it."
        )
    _check_job_move(job, state)
    values = {
        "state": state.value,
        "reason": reason,
        "ended_at": now,
        "not_before": None,
    }
    if job.held:
        values["held"] = None
    change = Change(Table.JOBS, job.id, values)
    info = {"state": state, "reason": reason, "message": message}
    return Event(_EVENT_OF_FINAL_STATE[state], now, (change,), job.id, info)


def node_silent(job: LiveJob, now: float) -> Event:
    """The node of a running job does not answer: the state of the job is unknown."""
    return _job_moved(
        job, JobState.UNKNOWN, Reason.NODE_SILENT, EventKind.JOB_UNKNOWN, now
    )


def node_back(job: LiveJob, now: float) -> Event:
    """The node of a job in an unknown state answers again: the job is running."""
    return _job_moved(job, JobState.RUNNING, None, EventKind.ATTEMPT_STARTED, now)


def _job_moved(
    job: LiveJob, state: JobState, reason: str | None, kind: EventKind, now: float
) -> Event:
    _check_job_move(job, state)
    change = Change(Table.JOBS, job.id, {"state": state.value, "reason": reason})
    return Event(kind, now, (change,), job.id, {"state": state, "reason": reason})
