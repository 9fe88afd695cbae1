"""What happens to jobs, as pure functions from records to events. Every legal move of the tables is made here.

Each checks the table of legal moves first, so an event that breaks it can never be written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any, overload

import msgspec

from gpuyard.billing.meter import Price, cost
from gpuyard.controller.intake import Prepared
from gpuyard.domain.errors import IllegalMoveError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.shape import Placement
from gpuyard.domain.states import ATTEMPT_MOVES, JOB_MOVES, AttemptState, JobState, check_move
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.observe import PREEMPTED, REVOKED, UNREACHABLE
from gpuyard.scheduler.view import LiveAttempt

# A program that cannot be started will not start the next time either.
NEVER_RETRIED = frozenset({"command_not_found", "not_executable", "workdir_missing", "bad_resume"})
# Nor does it count as a failure when gpuyard took the place away, took back what it had sent ahead, or could not bring
# the checkpoint.
NOT_ITS_FAULT = frozenset({PREEMPTED, REVOKED, UNREACHABLE})
NEWEST = "newest"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. `stopped` is why gpuyard ended it, if it did: `timed_out`, `cancelled`, `preempted`, or
    `revoked` for one that was sent ahead and taken back.
    """

    at: float
    started_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    stopped: str = ""
    message: str = ""
    usage: Mapping[str, float] = field(default_factory=dict[str, float])
    limits: Mapping[str, str] = field(default_factory=dict[str, str])
    lost: bool = False


Places = tuple[Placement, ...]
_NO_HEIRS: Mapping[str, Places] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Retry:
    """What a failure leads to: another attempt, but `not_before` this time; None for none.

    A time of the server's clock: the one of the node that reports the failure may be hours off.
    """

    not_before: float | None


def submitted(job: Prepared, now: float) -> Event:
    """A new job."""
    template = job.template
    values: dict[str, Any] = {
        "name": job.name, "kind": template.kind, "state": JobState.QUEUED.value, "reason": None, "exit_code": None,
        "priority": template.priority, "project": template.project, "labels": job.labels,
        "shape": template.shape_row, "created_at": now, "started_at": None, "ended_at": None, "not_before": None,
        "timeout_s": template.timeout_s, "estimated_duration_s": template.estimated_duration_s,
        "preemptible": template.preemptible, "depends_on": job.parents, "retry_count": template.retry_count,
        "failures": 0, "attempts": 0, "attempt_id": None, "cancel_requested": False, "resume_from": None,
        "tier": template.tier, "idempotency_key": job.key, "warnings": template.warnings,
    }  # fmt: skip
    changes = (Change(Table.JOBS, job.id, values), Change(Table.SPECS, job.id, {"body": msgspec.Raw(job.body)}))
    return Event(EventKind.JOB_SUBMITTED, now, changes, job.id, {"state": JobState.QUEUED, "name": job.name})


class Submissions(Sequence[Event]):
    """The events of new `jobs`, made whenever they are looked at: kept, they would be some kilobytes a job."""

    def __init__(self, jobs: Sequence[Prepared], now: float) -> None:
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
    job: LiveJob, attempt_id: str, *, token: int, epoch: int, provider: str, reference: str | None,
    placements: Sequence[Placement], price: Price, now: float,
) -> Event:  # fmt: skip
    """The intent to run `job` on `placements`: committed before the provider hears of it.

    `reference` is what the provider will call the attempt, where that is known beforehand.
    """
    check_move(JOB_MOVES, f"job {job.id}", job.state, JobState.ASSIGNED)
    attempt: dict[str, Any] = {
        "job_id": job.id, "number": job.attempts + 1, "state": AttemptState.INTENDED.value, "token": token,
        "epoch": epoch, "provider": provider, "provider_ref": reference,
        "placements": [placement.to_row() for placement in placements],
        "created_at": now, "started_at": None, "ended_at": None, "exit_code": None, "signal": None, "reason": None,
        "message": None, "limits": {}, "usage": {}, "resumed_from": None, "price_per_hour": str(price.per_hour),
        "currency": price.currency, "basis": price.basis, "tier": price.tier, "cost": "0",
    }  # fmt: skip
    changed = {"state": JobState.ASSIGNED.value, "attempts": job.attempts + 1, "attempt_id": attempt_id,
               "not_before": None, "reason": None, "exit_code": None, "ended_at": None}  # fmt: skip
    info = {"state": JobState.ASSIGNED, "attempt_id": attempt_id, "number": job.attempts + 1, "provider": provider,
            "node": placements[0].node_id, "gpus": [u for p in placements for u in p.gpu_uuids]}  # fmt: skip
    changes = (Change(Table.ATTEMPTS, attempt_id, attempt), Change(Table.JOBS, job.id, changed))
    return Event(EventKind.ATTEMPT_INTENDED, now, changes, job.id, info)


def sent(attempt: LiveAttempt, reference: str, resumed_from: str | None, now: float) -> Event:
    """The provider has taken the attempt and calls it `reference`."""
    check_move(ATTEMPT_MOVES, f"attempt {attempt.id}", attempt.state, AttemptState.SENT)
    values = {"state": AttemptState.SENT.value, "provider_ref": reference, "resumed_from": resumed_from}
    info = {"attempt_id": attempt.id, "resumed_from": resumed_from}
    return Event(EventKind.ATTEMPT_SENT, now, (Change(Table.ATTEMPTS, attempt.id, values),), attempt.job_id, info)


def found(attempt: LiveAttempt, reference: str, now: float) -> Event:
    """The provider has an attempt whose submission was never answered, and calls it `reference`."""
    values = {"provider_ref": reference}
    if attempt.state is AttemptState.INTENDED:
        values["state"] = AttemptState.SENT.value
    info = {"attempt_id": attempt.id, "resumed_from": None}
    return Event(EventKind.ATTEMPT_SENT, now, (Change(Table.ATTEMPTS, attempt.id, values),), attempt.job_id, info)


def pending(attempt: LiveAttempt, now: float) -> Event:
    """The provider has it in its own queue."""
    check_move(ATTEMPT_MOVES, f"attempt {attempt.id}", attempt.state, AttemptState.PENDING)
    change = Change(Table.ATTEMPTS, attempt.id, {"state": AttemptState.PENDING.value})
    return Event(EventKind.ATTEMPT_PENDING, now, (change,), attempt.job_id, {"attempt_id": attempt.id})


def started(
    job: LiveJob, attempt: LiveAttempt, at: float, limits: Mapping[str, str], places: Places | None = None
) -> Event:
    """The attempt's process runs since `at`; `places` is where, when somebody else chose it."""
    values: dict[str, Any] = {"started_at": at, "limits": dict(limits)}
    if places is not None:
        values["placements"] = [place.to_row() for place in places]
    if attempt.state is not AttemptState.ENDING:
        check_move(ATTEMPT_MOVES, f"attempt {attempt.id}", attempt.state, AttemptState.RUNNING)
        values["state"] = AttemptState.RUNNING.value
    if job.state is not JobState.RUNNING:
        check_move(JOB_MOVES, f"job {job.id}", job.state, JobState.RUNNING)
    changed: dict[str, Any] = {"state": JobState.RUNNING.value}
    if job.started_at is None:
        changed["started_at"] = at
    changes = (Change(Table.ATTEMPTS, attempt.id, values), Change(Table.JOBS, job.id, changed))
    info = {"state": JobState.RUNNING, "attempt_id": attempt.id, "node": (places or attempt.placements)[0].node_id}
    return Event(EventKind.ATTEMPT_STARTED, at, changes, job.id, info)


def moved(attempt: LiveAttempt, gpu_uuids: Sequence[str], now: float) -> Event:
    """What the attempt books of its node's GPUs has changed: a model server went to sleep, or is to wake."""
    places = [replace(place, gpu_uuids=tuple(gpu_uuids)) for place in attempt.placements]
    change = Change(Table.ATTEMPTS, attempt.id, {"placements": [place.to_row() for place in places]})
    info = {"attempt_id": attempt.id, "gpus": list(gpu_uuids)}
    return Event(EventKind.ATTEMPT_MOVED, now, (change,), attempt.job_id, info)


def ending(attempt: LiveAttempt, reason: str, now: float, for_job: str | None = None) -> Event:
    """Somebody wants the attempt to end, or `for_job` needs its place; the provider is told after the commit."""
    check_move(ATTEMPT_MOVES, f"attempt {attempt.id}", attempt.state, AttemptState.ENDING)
    changes = [Change(Table.ATTEMPTS, attempt.id, {"state": AttemptState.ENDING.value, "reason": reason})]
    if reason == "cancelled":
        changes.append(Change(Table.JOBS, attempt.job_id, {"cancel_requested": True}))
    kind = EventKind.JOB_CANCEL_REQUESTED if reason == "cancelled" else EventKind.ATTEMPT_ENDING
    info = {"attempt_id": attempt.id, "reason": reason} | ({"for_job": for_job} if for_job else {})
    return Event(kind, now, tuple(changes), attempt.job_id, info)


def cancel_requested(job: LiveJob, attempt: LiveAttempt, now: float) -> Event:
    """The owner wants a job to end whose attempt is on its way out already: it will not be queued again."""
    change = Change(Table.JOBS, job.id, {"cancel_requested": True})
    info = {"attempt_id": attempt.id, "reason": "cancelled"}
    return Event(EventKind.JOB_CANCEL_REQUESTED, now, (change,), job.id, info)


def ended(
    job: LiveJob, attempt: LiveAttempt, outcome: Outcome, retry: Retry, heirs: Mapping[str, Places] = _NO_HEIRS
) -> Event:
    """The attempt is over: what that makes of its job, what it cost, and who has its place now (`heirs`, by id)."""
    over = AttemptState.LOST if outcome.lost else AttemptState.ENDED
    check_move(ATTEMPT_MOVES, f"attempt {attempt.id}", attempt.state, over)
    began = outcome.started_at or attempt.started_at
    spent = cost(Decimal(attempt.price_per_hour), began, outcome.at)
    state, reason = verdict(job, outcome)
    record: dict[str, Any] = {
        "state": over.value, "started_at": began, "ended_at": outcome.at, "exit_code": outcome.exit_code,
        "signal": outcome.signal, "reason": reason, "message": outcome.message or None, "usage": dict(outcome.usage),
        "cost": str(spent),
    }  # fmt: skip
    if outcome.limits:
        record["limits"] = dict(outcome.limits)
    changed, kind = _job_after(job, state, reason, outcome, retry)
    if job.started_at is None and began is not None:
        changed["started_at"] = began
    check_move(JOB_MOVES, f"job {job.id}", job.state, JobState(changed["state"]))
    info = {"state": changed["state"], "attempt_id": attempt.id, "exit_code": outcome.exit_code, "reason": reason,
            "cost": str(spent), "not_before": changed.get("not_before")}  # fmt: skip
    inherited = [Change(Table.ATTEMPTS, heir, {"placements": [place.to_row() for place in places]})
                 for heir, places in heirs.items()]  # fmt: skip
    changes = (Change(Table.ATTEMPTS, attempt.id, record), Change(Table.JOBS, job.id, changed), *inherited)
    return Event(kind, outcome.at, changes, job.id, info)


def verdict(job: LiveJob, outcome: Outcome) -> tuple[JobState, str | None]:
    """The job's state if no retry follows, and the reason. A clean exit beats a cancel that came too late."""
    if outcome.stopped == "timed_out":
        return JobState.TIMED_OUT, "timed_out"
    if outcome.stopped == "cancelled" or (outcome.stopped and job.cancel_requested):
        return JobState.CANCELLED, "cancelled"
    if outcome.stopped == PREEMPTED:
        return JobState.FAILED, PREEMPTED  # a clean exit too: it was asked to save its work and leave, and it did
    if outcome.exit_code == 0 and not outcome.reason:
        return JobState.COMPLETED, None
    reason = outcome.stopped or outcome.reason or ("killed_by_signal" if outcome.signal else "exit_code")
    if job.cancel_requested:
        return JobState.CANCELLED, "cancelled"
    return JobState.FAILED, reason


_KINDS: Mapping[JobState, EventKind] = {
    JobState.COMPLETED: EventKind.JOB_COMPLETED,
    JobState.FAILED: EventKind.JOB_FAILED,
    JobState.CANCELLED: EventKind.JOB_CANCELLED,
    JobState.TIMED_OUT: EventKind.JOB_TIMED_OUT,
}


def _job_after(
    job: LiveJob, state: JobState, reason: str | None, outcome: Outcome, retry: Retry
) -> tuple[dict[str, Any], EventKind]:
    if state is JobState.FAILED and retry.not_before is not None:
        failed = reason not in NOT_ITS_FAULT
        resume_from = job.resume_from if reason in (REVOKED, UNREACHABLE) else NEWEST
        changed: dict[str, Any] = {
            "state": JobState.QUEUED.value, "reason": reason, "attempt_id": None, "failures": job.failures + failed,
            "not_before": retry.not_before, "resume_from": resume_from,
        }  # fmt: skip
        return changed, EventKind.JOB_REQUEUED
    changed = {"state": state.value, "reason": reason, "exit_code": outcome.exit_code, "ended_at": outcome.at,
               "attempt_id": None}  # fmt: skip
    return changed, _KINDS[state]


def wants_retry(job: LiveJob, outcome: Outcome) -> bool:
    """Does the retry policy grant another attempt? What is not its fault always does, and costs no retry."""
    state, reason = verdict(job, outcome)
    if state is not JobState.FAILED or reason in NEVER_RETRIED:
        return False
    return reason in NOT_ITS_FAULT or job.failures < job.retry_count


def settled(job: LiveJob, state: JobState, reason: str, now: float, message: str = "") -> Event:
    """A job that has no live attempt ends: cancelled while queued, or failed with its parent."""
    if job.attempt_id is not None:
        raise IllegalMoveError(f"job {job.id} has a live attempt.", "End that, and the job ends with it.")
    check_move(JOB_MOVES, f"job {job.id}", job.state, state)
    values = {"state": state.value, "reason": reason, "ended_at": now, "not_before": None}
    info = {"state": state, "reason": reason, "message": message}
    return Event(_KINDS[state], now, (Change(Table.JOBS, job.id, values),), job.id, info)


def resumed(row: Mapping[str, Any], checkpoint: str, now: float) -> Event:
    """The owner wants an ended job (its whole ledger `row`) to go on, from a checkpoint id or from NEWEST.

    The event names every column, because memory let go of the job when it ended.
    """
    state = JobState(row["state"])
    if not state.terminal:
        raise IllegalMoveError(f"job {row['id']} is {state}.", "Only a job that is over can be resumed.")
    check_move(JOB_MOVES, f"job {row['id']}", state, JobState.QUEUED)
    changed = {"state": JobState.QUEUED.value, "reason": None, "exit_code": None, "ended_at": None,
               "cancel_requested": False, "failures": 0, "not_before": None, "resume_from": checkpoint}  # fmt: skip
    values = {**{name: value for name, value in row.items() if name != "id"}, **changed}
    info = {"state": JobState.QUEUED, "resume_from": checkpoint}
    return Event(EventKind.JOB_RESUMED, now, (Change(Table.JOBS, row["id"], values),), row["id"], info)


def unreachable(job: LiveJob, now: float, *, lost_sight: bool) -> Event:
    """The job's node went silent (`lost_sight`), or answers again."""
    state = JobState.UNKNOWN if lost_sight else JobState.RUNNING
    check_move(JOB_MOVES, f"job {job.id}", job.state, state)
    reason = "node_silent" if lost_sight else None
    changes = (Change(Table.JOBS, job.id, {"state": state.value, "reason": reason}),)
    kind = EventKind.JOB_UNKNOWN if lost_sight else EventKind.ATTEMPT_STARTED
    return Event(kind, now, changes, job.id, {"state": state, "reason": reason})
