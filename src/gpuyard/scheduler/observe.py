"""Observing: folds events into the view.

An event carries rows with the new values of changed columns; the first row of a thing
has all columns. Folding is idempotent. Only live attempts hold bookings, so each
booking is freed once.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from gpuyard.domain.events import Event, Row, Table
from gpuyard.domain.gpus import classify
from gpuyard.domain.reasons import Blame, Reason
from gpuyard.domain.run_time import run_time_s
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.scheduler.advance import AdvanceReservation
from gpuyard.scheduler.array_limits import limit_array
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.budgets import EndedCost
from gpuyard.scheduler.history import AttemptEnd
from gpuyard.scheduler.jobs import NO_SERVICE, LiveJob, Service, retries_of
from gpuyard.scheduler.nodes import Device
from gpuyard.scheduler.view import View

_JOB_COLUMNS = (
    "priority",
    "created_at",
    "not_before",
    "timeout_s",
    "deadline",
    "deadline_told",
    "preemptible",
    "tier",
    "started_at",
    "attempts",
    "attempt_id",
    "failures",
    "cancel_requested",
    "resume_from",
)
# What people are told of a job changes nothing for the queue.
_TOLD = frozenset({"warnings", "deadline_told"})
_WAITING = frozenset({AttemptState.INTENDED, AttemptState.SENT, AttemptState.PENDING})
_ATTEMPT_COLUMNS = (
    "token",
    "started_at",
    "number",
    "provider",
    "provider_ref",
    "price_per_hour",
    "currency",
    "reason",
)
_NODE_COLUMNS = ("name", "provider", "state", "reason", "cpus", "memory_gb")
_GPU_COLUMNS = (
    "node_id",
    "index",
    "name",
    "memory_mb",
    "compute_capability",
    "state",
    "problem",
    "draining",
)


def observe(view: View, event: Event) -> None:
    """Fold `event` into `view`.

    Rows of parents that had ended before a child was known may come in any order, but
    before the next decision. Raises KeyError when the first row of a thing lacks a
    column that has no default.
    """
    view.revision += 1
    for change in event.changes:
        fold = _FOLDS.get(change.table)
        if fold is not None and change.values is not None:
            fold(view, change.key, change.values)
        elif change.table is Table.RESERVATIONS:
            view.remove_reservation(change.key)
        # Of all else only what ended long ago is ever removed, and the view holds
        # nothing of it.


def note_completed_job(
    view: View, name: str, labels: Mapping[str, str], shape: Row, seconds: float
) -> None:
    """Learn from a job that completed before the view was made: it ran for `seconds`
    in all.
    """
    needs = Shape.from_row(shape)
    width = max(1, needs.gpus * needs.nodes)
    view.learning.add(view.learning.type_of(name, labels), width, seconds)


def note_ended_attempt(view: View, job_type: str, row: Row) -> None:
    """Learn from an attempt that ended before the view was made.

    `row` is its complete ledger row; `job_type` is the type of its job.
    """
    placements = tuple(Placement.from_row(share) for share in row["placements"])
    started_at = row["started_at"]
    offer = placements[0].offer if placements else ""
    if offer and started_at is not None:
        view.external_queues.history.note_wait(offer, started_at - row["created_at"])
    workspace = Shape.from_row(row.get("shape") or {}).workspace
    if workspace and started_at is not None:
        view.external_queues.workspace_providers[workspace] = row["provider"]
    if offer and not Reason.of(row["reason"]).ended_by_either_side:
        end = _end_at_offer(row["state"], row["reason"], requested=False)
        view.external_queues.history.note_end(offer, end)
    if started_at is not None and _ran_once(row["number"], row):
        ran_s = run_time_s(started_at, row["ended_at"], row.get("ran_s"))
        _note_run(view, job_type, placements, ran_s)


def _ran_once(number: int, row: Row) -> bool:
    """True if attempt `number`, which ended with `row`, ran a job from start to end."""
    return number == 1 and row.get("exit_code") == 0 and not row.get("reason")


def _end_at_offer(state: str, reason: str | None, *, requested: bool) -> AttemptEnd:
    """What the end of an attempt says about its offer. `requested`: we had asked for
    the end.
    """
    if state == AttemptState.LOST or Reason.of(reason).blame is Blame.PLACE:
        return AttemptEnd.FAILED
    if requested:
        return AttemptEnd.WELL
    return {
        Reason.PREEMPTED: AttemptEnd.INTERRUPTED,
        Reason.REVOKED: AttemptEnd.NO_CAPACITY,
        Reason.STORAGE_UNREACHABLE: AttemptEnd.NO_CAPACITY,
    }.get(Reason.of(reason), AttemptEnd.WELL)


def _note_run(
    view: View, job_type: str, placements: tuple[Placement, ...], seconds: float
) -> None:
    """Learn how long a complete run of a job took on its kind of GPU."""
    gpu = _kind_of_gpu(view, placements[0])
    if gpu:
        view.external_queues.history.note_run(job_type, gpu, seconds)


def _kind_of_gpu(view: View, share: Placement) -> str:
    """The kind of GPU that the share uses; empty if it uses none, or if its kind is
    unknown.
    """
    if share.offer:
        offer = view.external_queues.offer(share.offer)
        return offer.kind if offer and offer.gpus else ""
    if not share.gpu_uuids:
        return ""
    device = view.devices.get(share.gpu_uuids[0])
    if device is None:
        return ""
    return classify(device.name, device.memory_mb) or ""


def _job(view: View, job_id: str, row: Row) -> None:
    job = view.jobs.get(job_id)
    state = JobState(row["state"]) if "state" in row else job and job.state
    if state is None:
        return  # a late row of a job that has ended
    if state.terminal:
        _job_ended(view, job_id, state)
        return
    before = job.state if job else None
    if job is not None and row.keys() <= _TOLD:
        _update_job(job, state, row)
        return
    if job is None:
        # Copy the id: the given string is a slice of a request, and would keep half of
        # that in memory.
        job_id = job_id[:1] + job_id[1:]
        job = _new_job(view, job_id, row)
        view.add_job(job)
    elif state is not JobState.QUEUED or job_id not in view.tentative:
        _take_out(view, job, state)
    _update_job(job, state, row)
    if "deadline" in row:
        view.deadlines.watch(job)
    view.usage.note_state(job, before, state)
    attempt = view.attempts.get(job.attempt_id or "")
    # What is known of a live attempt is filed under the type that it began with.
    if ("name" in row or "labels" in row) and attempt is None:
        job.job_type = _job_type(view, row)
    if attempt and "timeout_s" in row:
        _release_times_changed(view, attempt)
    if attempt and "priority" in row:
        view.victims.changed.add(attempt.id)
    if state is JobState.QUEUED and job_id not in view.tentative:
        view.enqueue(job)
    if view.ended.pop(job_id, None):
        _refile_children(view, job_id)  # resumed by its owner: its children wait again


def _take_out(view: View, job: LiveJob, state: JobState) -> None:
    """Take out a job that is about to be in `state`. One that is queued again keeps its
    promise: it was taken back because there is room for it.
    """
    is_requeued = job.state is not state and state is JobState.QUEUED
    promise = view.promises.get(job.id) if is_requeued else None
    view.remove_job(job)
    if promise:
        view.promises[job.id] = promise


def _job_type(view: View, row: Row) -> str:
    labels: Any = row.get("labels") or {}
    # Rows that were just encoded for the ledger carry JSON.
    if isinstance(labels, msgspec.Raw):
        labels = msgspec.json.decode(labels)
    return view.learning.type_of(row.get("name") or "", labels)


def _release_times_changed(view: View, attempt: LiveAttempt) -> None:
    for share in attempt.placements:
        if not share.offer:
            view.release_times.changed.add(share.node_id)


def _new_job(view: View, job_id: str, row: Row) -> LiveJob:
    owner = _interned(row.get("owner"))
    return LiveJob(
        job_id,
        JobState(row["state"]),
        Shape.from_row(row["shape"]),
        row["priority"],
        row["created_at"],
        # A job that has begun waits for nobody.
        waits_for=() if row.get("attempts") else tuple(row.get("depends_on") or ()),
        parent_ends=row.get("parent_ends"),
        service=_service(row),
        array_id=_interned(row.get("array_id")),
        array_index=row.get("array_index"),
        owner=owner,
        party=view.party(row.get("project"), owner),
    )


def _service(row: Row) -> Service:
    if "served_s" not in row and "preemptions" not in row:
        return NO_SERVICE
    return Service(row.get("served_s", 0.0), row.get("preemptions", 0))


def _interned(text: str | None) -> str | None:
    return sys.intern(text) if text else None


def _update_job(job: LiveJob, state: JobState, row: Row) -> None:
    job.state = state
    if state is not JobState.QUEUED:
        # Its parents have completed. When it is queued again, it must not wait for
        # them.
        job.waits_for = ()
    if "shape" in row:
        job.shape = Shape.from_row(row["shape"])
    if "kind" in row:
        job.kind = sys.intern(row["kind"])
    if "held" in row:
        job.held = bool(row["held"])
    causes = row.get("retry_on")
    if "retry_count" in row or causes is not None:
        known = job.retries
        count = row.get("retry_count", known.count)
        job.retries = retries_of(count, known.causes if causes is None else causes)
    if "project" in row:
        job.project = _interned(row["project"])
    if "estimated_duration_s" in row:
        job.estimated_s = row["estimated_duration_s"]
    for column in _JOB_COLUMNS:
        if column in row:
            setattr(job, column, row[column])


def _job_ended(view: View, job_id: str, state: JobState) -> None:
    job = view.jobs.pop(job_id, None)
    if job is not None:
        view.deadlines.forget(job)
        view.remove_job(job)
        view.leave_array(job, has_ended=True)
        view.usage.note_state(job, job.state, state)
        if state is JobState.COMPLETED and job.service.served_s > 0:
            view.learning.add(job.job_type, job.width, job.service.served_s)
        job.state = state
        # For callers that still hold the object.
        job.attempt_id = None
    view.ended[job_id] = state
    _refile_children(view, job_id)


def _refile_children(view: View, parent: str) -> None:
    for child in sorted(view.dependents.get(parent, ())):
        if child not in view.tentative:
            view.remove_job(view.jobs[child])
            view.enqueue(view.jobs[child])


def _attempt(view: View, attempt_id: str, row: Row) -> None:
    attempt = view.attempts.get(attempt_id)
    state = AttemptState(row["state"]) if "state" in row else attempt and attempt.state
    if attempt is not None and ("placements" in row or (state and not state.live)):
        view.unbook(attempt_id, attempt.placements)
        _leave_prefetch_site(view, attempt, row)
    if state is None:
        return  # a late row of an attempt that has ended
    if attempt is None:
        if not state.live:
            return
        attempt = _new_attempt(view, attempt_id, state, row)
    end_requested = attempt.state is AttemptState.ENDING
    attempt.state = state
    _release_times_changed(view, attempt)
    if not state.live:
        _attempt_ended(view, attempt, row, end_requested=end_requested)
        return
    starts = attempt.started_at is None and row.get("started_at") is not None
    if attempt.offer and starts:
        wait_s = row["started_at"] - attempt.created_at
        view.external_queues.note_start(attempt.offer, wait_s)
    for column in _ATTEMPT_COLUMNS:
        if column in row:
            setattr(attempt, column, row[column])
    view.victims.changed.add(attempt_id)
    if "placements" in row:
        placements = tuple(Placement.from_row(share) for share in row["placements"])
        _place_attempt(view, attempt, placements)
    if attempt.started_at is not None:
        view.usage.begin(attempt_id, attempt.started_at)
    if state not in _WAITING:
        view.external_queues.remove_waiting(attempt_id)


def _new_attempt(
    view: View, attempt_id: str, state: AttemptState, row: Row
) -> LiveAttempt:
    attempt = view.attempts[attempt_id] = LiveAttempt(
        attempt_id, row["job_id"], state, row["token"], (), row["created_at"]
    )
    job = view.jobs.get(attempt.job_id)
    if job and job.preemptible:
        view.victims.add(attempt, job.job_type)
    return attempt


def _place_attempt(
    view: View, attempt: LiveAttempt, placements: tuple[Placement, ...]
) -> None:
    attempt.placements = placements
    view.book(attempt.id, placements)
    job = view.jobs.get(attempt.job_id)
    if job:
        view.usage.hold(attempt.id, job, placements, view.nodes)
    if job and len(placements) == 1 and not attempt.offer:
        view.prefetch_sites.add(
            attempt.id, job.shape, attempt.node_id, prefetched=attempt.prefetched
        )


def _leave_prefetch_site(view: View, attempt: LiveAttempt, row: Row) -> None:
    job = view.jobs.get(attempt.job_id)
    if job is None or len(attempt.placements) != 1 or attempt.offer:
        return
    view.prefetch_sites.remove(attempt.id, job.shape, attempt.node_id)
    started_at = row.get("started_at") or attempt.started_at
    if started_at and row.get("ended_at"):
        ran_s = run_time_s(started_at, row["ended_at"], row.get("ran_s"))
        view.prefetch_sites.note_duration(job.shape, ran_s)


def _attempt_ended(
    view: View, attempt: LiveAttempt, row: Row, *, end_requested: bool
) -> None:
    del view.attempts[attempt.id]
    view.leaving.discard(attempt.id)
    view.external_queues.remove_waiting(attempt.id)
    job = view.jobs.get(attempt.job_id)
    view.victims.remove(attempt.id, job.job_type if job else "")
    started_at = row.get("started_at", attempt.started_at)
    ended_at = row.get("ended_at")
    if attempt.offer and (started_at is not None or not end_requested):
        _note_end_at_offer(view, attempt, row, end_requested=end_requested)
    ran_s: float | None = None
    if started_at is not None and ended_at is not None:
        ran_s = run_time_s(started_at, ended_at, row.get("ran_s"))
        if view.cooling_s:
            view.cool(attempt.placements, ended_at + view.cooling_s)
        view.usage.begin(attempt.id, started_at)
    view.usage.end(attempt.id, ran_s or 0.0)
    if job is None:
        return
    if "cost" in row:
        began = started_at or ended_at or 0.0
        paid = EndedCost(attempt.id, row["cost"], attempt.currency, began, ran_s or 0.0)
        view.budgets.note_cost(job, paid)
    if ran_s is not None:
        _note_service(view, job, attempt, ran_s)
        if attempt.placements and _ran_once(attempt.number, row):
            _note_run(view, job.job_type, attempt.placements, ran_s)
    if row.get("reason") == Reason.PREEMPTED:
        preemptions = job.service.preemptions + 1
        job.service = replace(job.service, preemptions=preemptions)


def _note_end_at_offer(
    view: View, attempt: LiveAttempt, row: Row, *, end_requested: bool
) -> None:
    end = _end_at_offer(attempt.state, row.get("reason"), requested=end_requested)
    view.external_queues.history.note_end(attempt.offer, end)
    if end is AttemptEnd.INTERRUPTED:
        ended_at = row.get("ended_at") or 0.0
        view.external_queues.note_interruption(attempt.offer, ended_at)


def _note_service(view: View, job: LiveJob, attempt: LiveAttempt, ran_s: float) -> None:
    """Note that the job was served for so long, and where."""
    job.service = replace(
        job.service,
        served_s=job.service.served_s + ran_s,
        last_provider=attempt.provider,
    )
    workspace = job.shape.workspace
    if workspace:
        view.external_queues.workspace_providers[workspace] = attempt.provider


def _node(view: View, node_id: str, row: Row) -> None:
    node = view.node(node_id)
    for column in _NODE_COLUMNS:
        if column in row:
            setattr(node, column, row[column])
    if "cordoned" in row:
        node.cordoned = bool(row["cordoned"])
    if "certificate" in row:
        node.joined = bool(row["certificate"])
    view.rebuild(node)


def _gpu(view: View, uuid: str, row: Row) -> None:
    known = {column: row[column] for column in _GPU_COLUMNS if column in row}
    if known.get("draining", False) is None:  # a row from before GPUs could be drained
        known["draining"] = False
    old = view.devices.get(uuid)
    # `rebuild` of its node finds its quarantine again.
    device = replace(old, **known, quarantine="") if old else Device(uuid, **known)
    by_index = view.brain_ranks.get(str(device.index), 0)
    device.brain_rank = view.brain_ranks.get(uuid, by_index)
    view.devices[uuid] = device
    if old and old.node_id is not None:
        del view.node(old.node_id).devices[uuid]
        view.rebuild(view.node(old.node_id))
    if device.node_id is not None:
        view.node(device.node_id).devices[uuid] = device
        view.rebuild(view.node(device.node_id))


def _trust(view: View, place: str, row: Row) -> None:
    view.external_queues.trust.note(place, row)


def _array(view: View, array_id: str, row: Row) -> None:
    if "at_most" in row:
        # Only its first row says how many tasks it has.
        limit_array(view, array_id, row["at_most"], row.get("total") or 0)


def _reservation(view: View, reservation_id: str, row: Row) -> None:
    view.add_reservation(
        AdvanceReservation(
            reservation_id,
            row["begins_at"],
            row["ends_at"],
            row["project"],
            row["owner"],
            row["gpus"],
            row["gpu_class"] or "",
            row["node"] or "",
        )
    )


_FOLDS: Mapping[Table, Callable[[View, str, Row], None]] = {
    Table.JOBS: _job,
    Table.ATTEMPTS: _attempt,
    Table.NODES: _node,
    Table.GPUS: _gpu,
    Table.TRUST: _trust,
    Table.ARRAYS: _array,
    Table.RESERVATIONS: _reservation,
}
