"""Observing: one event's after-images folded into the view.

Rows carry the columns that changed; the others keep their value, and a row's first appearance names all. Folding an
event twice changes nothing more. Bookings come from live attempts alone, so what an attempt held is freed once.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from gpuyard.domain.events import Event, Row, Table
from gpuyard.domain.gpus import classify
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.scheduler.history import End
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Device
from gpuyard.scheduler.view import LiveAttempt, View

_JOB_COLUMNS = ("priority", "created_at", "not_before", "timeout_s", "preemptible", "tier", "started_at", "attempts",
                "attempt_id", "retry_count", "failures", "cancel_requested", "resume_from")  # fmt: skip
PREEMPTED = "preempted"
"""The reason of an attempt that was stopped for another job."""
REVOKED = "revoked"
"""The reason of an attempt that was taken back before it began, or found nothing left."""
UNREACHABLE = "storage_unreachable"
"""The reason of an attempt whose checkpoint could not be fetched for the moment."""
PLACE_FAULTS = frozenset({"submit_failed", "node_lost", "exit_status_lost", "attempt_lost"})
"""Reasons that are the fault of the place and not of the job."""
_WAITING = frozenset({AttemptState.INTENDED, AttemptState.SENT, AttemptState.PENDING})
_ATTEMPT_COLUMNS = ("token", "started_at", "number", "provider", "provider_ref", "price_per_hour", "reason")
_NODE_COLUMNS = ("name", "provider", "state", "reason", "cpus", "memory_gb")
_GPU_COLUMNS = ("node_id", "index", "name", "memory_mb", "compute_capability", "state", "problem", "draining")


def observe(view: View, event: Event) -> None:
    """Fold `event` into `view`.

    The rows of parents that ended before a child was known may come in the child's event or its neighbours, in any
    order, before the next decision. KeyError when a first appearance lacks a column that cannot be guessed.
    """
    view.revision += 1
    for change in event.changes:
        fold = _FOLDS.get(change.table)
        if fold is not None:
            fold(view, change.key, change.values)


def learn(view: View, name: str, labels: Mapping[str, str], shape: Row, seconds: float) -> None:
    """A job that had completed before the view began took so many seconds of service."""
    known = Shape.from_row(shape)
    view.learning.add(view.learning.type_of(name, labels), max(1, known.gpus * known.nodes), seconds)


def remember(view: View, kind: str, row: Row) -> None:
    """An attempt (its whole ledger row) of a job of this type that was over before the view began."""
    placements = tuple(Placement.from_row(share) for share in row["placements"])
    began, offer = row["started_at"], placements[0].offer if placements else ""
    if offer and began is not None:
        view.engines.history.began(offer, began - row["created_at"])
    workspace = Shape.from_row(row.get("shape") or {}).workspace
    if workspace and began is not None:
        view.engines.keeps[workspace] = row["provider"]
    if offer and row["reason"] not in (PREEMPTED, REVOKED):  # whose wish these were is not known any more
        view.engines.history.ended(offer, _seen_from_there(row["state"], row["reason"], ours=False))
    if began is not None and row["number"] == 1 and row["exit_code"] == 0 and not row["reason"]:
        _ran(view, kind, placements, row["ended_at"] - began)


def _seen_from_there(state: str, reason: str | None, *, ours: bool) -> End:
    """What an attempt's end says of the offer; `ours`: we had asked for it."""
    if state == AttemptState.LOST or reason in PLACE_FAULTS:
        return End.FAILED
    if ours:
        return End.WELL
    return {PREEMPTED: End.INTERRUPTED, REVOKED: End.NOTHING, UNREACHABLE: End.NOTHING}.get(reason or "", End.WELL)


def _ran(view: View, kind: str, placements: tuple[Placement, ...], seconds: float) -> None:
    """A job ran from its start to its end on this kind of GPU."""
    share = placements[0]
    if share.offer:
        offer = view.engines.offer(share.offer)
        gpu = offer.kind if offer and offer.gpus else ""
    else:
        device = view.devices.get(share.gpu_uuids[0]) if share.gpu_uuids else None
        gpu = (classify(device.name, device.memory_mb) or "") if device else ""
    if gpu:
        view.engines.history.completed(kind, gpu, seconds)


def _job(view: View, job_id: str, row: Row) -> None:
    job = view.jobs.get(job_id)
    state = JobState(row["state"]) if "state" in row else job and job.state
    if state is None:
        return  # a late word about a job that is over
    if state.terminal:
        _job_ended(view, job_id, state)
        return
    if job is None:
        # A string of our own: the given one lies among a request's other data and would keep half of it in memory.
        job_id = job_id[:1] + job_id[1:]
        job = view.jobs[job_id] = _first_seen(job_id, row)
    elif state is not JobState.QUEUED or job_id not in view.tentative:
        # What is kept for one that was taken back is kept over its way into the line.
        kept = view.promises.get(job_id) if job.state is not state and state is JobState.QUEUED else None
        view.withdraw(job)
        if kept:
            view.promises[job_id] = kept
    _update_job(job, state, row)
    if "name" in row or "labels" in row:
        labels: Any = row.get("labels") or {}
        # What has just been written for the ledger stands here as it goes there.
        labels = msgspec.json.decode(labels) if isinstance(labels, msgspec.Raw) else labels
        job.kind = view.learning.type_of(row.get("name") or "", labels)
    if "timeout_s" in row and (attempt := view.attempts.get(job.attempt_id or "")):
        view.ends.changed.update(share.node_id for share in attempt.placements if not share.offer)
    if state is JobState.QUEUED and job_id not in view.tentative:
        view.file(job)
    if view.ended.pop(job_id, None):
        _refile_children(view, job_id)  # resumed by its owner: its children wait again


def _first_seen(job_id: str, row: Row) -> LiveJob:
    shape, parents = Shape.from_row(row["shape"]), tuple(row.get("depends_on") or ())
    return LiveJob(job_id, JobState(row["state"]), shape, row["priority"], row["created_at"], waits_for=parents,
                   served_s=row.get("served_s", 0.0), preemptions=row.get("preemptions", 0))  # fmt: skip


def _update_job(job: LiveJob, state: JobState, row: Row) -> None:
    job.state = state
    if state is not JobState.QUEUED:
        job.waits_for = ()  # its parents have completed, and a requeue must not ask for them again
    if "shape" in row:
        job.shape = Shape.from_row(row["shape"])
    if "project" in row:
        job.project = sys.intern(row["project"]) if row["project"] else None
    if "estimated_duration_s" in row:
        job.estimated_s = row["estimated_duration_s"]
    for column in _JOB_COLUMNS:
        if column in row:
            setattr(job, column, row[column])


def _job_ended(view: View, job_id: str, state: JobState) -> None:
    job = view.jobs.pop(job_id, None)
    if job is not None:
        view.withdraw(job)
        if state is JobState.COMPLETED and job.served_s > 0:
            view.learning.add(job.kind, job.width, job.served_s)
        job.state, job.attempt_id = state, None  # whoever still holds it shall see that it is over
    view.ended[job_id] = state
    _refile_children(view, job_id)


def _refile_children(view: View, parent: str) -> None:
    for child in sorted(view.dependents.get(parent, ())):
        if child not in view.tentative:
            view.withdraw(view.jobs[child])
            view.file(view.jobs[child])


def _attempt(view: View, attempt_id: str, row: Row) -> None:
    attempt = view.attempts.get(attempt_id)
    state = AttemptState(row["state"]) if "state" in row else attempt and attempt.state
    if attempt is not None and ("placements" in row or (state and not state.live)):
        view.unbook(attempt_id, attempt.placements)
        _leave_site(view, attempt, row)
    if state is None:
        return  # a late word about an attempt that is over
    if attempt is None:
        if not state.live:
            return
        attempt = view.attempts[attempt_id] = LiveAttempt(
            attempt_id, row["job_id"], state, row["token"], (), row["created_at"]
        )
        if (job := view.jobs.get(attempt.job_id)) and job.preemptible:
            view.victims.add(attempt, job.kind)
    ours = attempt.state is AttemptState.ENDING
    attempt.state = state
    view.ends.changed.update(share.node_id for share in attempt.placements if not share.offer)
    if not state.live:
        _attempt_over(view, attempt, row, ours=ours)
        return
    if attempt.offer and attempt.started_at is None and row.get("started_at") is not None:
        view.engines.began(attempt.offer, row["started_at"] - attempt.created_at)
    for column in _ATTEMPT_COLUMNS:
        if column in row:
            setattr(attempt, column, row[column])
    view.victims.changed.add(attempt_id)
    if "placements" in row:
        attempt.placements = tuple(Placement.from_row(share) for share in row["placements"])
        view.book(attempt_id, attempt.placements)
        job = view.jobs.get(attempt.job_id)
        if job and len(attempt.placements) == 1 and not attempt.offer:
            view.sites.enter(attempt_id, job.shape, attempt.node_id, ahead=attempt.ahead)
    if state not in _WAITING:
        view.engines.leave(attempt_id)


def _leave_site(view: View, attempt: LiveAttempt, row: Row) -> None:
    job = view.jobs.get(attempt.job_id)
    if job is None or len(attempt.placements) != 1 or attempt.offer:
        return
    view.sites.leave(attempt.id, job.shape, attempt.node_id)
    began = row.get("started_at") or attempt.started_at
    if began and row.get("ended_at"):
        view.sites.learn(job.shape, row["ended_at"] - began)


def _attempt_over(view: View, attempt: LiveAttempt, row: Row, *, ours: bool) -> None:
    del view.attempts[attempt.id]
    view.leaving.discard(attempt.id)
    view.engines.leave(attempt.id)
    job = view.jobs.get(attempt.job_id)
    view.victims.remove(attempt.id, job.kind if job else "")
    began, ended = row.get("started_at", attempt.started_at), row.get("ended_at")
    reason = row.get("reason")
    if attempt.offer and (began is not None or not ours):
        view.engines.history.ended(attempt.offer, _seen_from_there(attempt.state, reason, ours=ours))
    if job is None:
        return
    if began is not None and ended is not None:
        job.served_s += max(0.0, ended - began)
        job.home = attempt.provider
        if job.shape.workspace:
            view.engines.keeps[job.shape.workspace] = attempt.provider
        if attempt.number == 1 and row.get("exit_code") == 0 and not reason and attempt.placements:
            _ran(view, job.kind, attempt.placements, ended - began)
    if reason == PREEMPTED:
        job.preemptions += 1


def _node(view: View, node_id: str, row: Row) -> None:
    node = view.node(node_id)
    for column in _NODE_COLUMNS:
        if column in row:
            setattr(node, column, row[column])
    view.rebuild(node)


def _gpu(view: View, uuid: str, row: Row) -> None:
    known = {column: row[column] for column in _GPU_COLUMNS if column in row}
    if known.get("draining", False) is None:  # a row from before GPUs could be drained
        known["draining"] = False
    old = view.devices.get(uuid)
    # Whether it is in quarantine is found anew with its node.
    device = view.devices[uuid] = replace(old, **known, quarantine="") if old else Device(uuid, **known)
    if old and old.node_id is not None:
        del view.node(old.node_id).devices[uuid]
        view.rebuild(view.node(old.node_id))
    if device.node_id is not None:
        view.node(device.node_id).devices[uuid] = device
        view.rebuild(view.node(device.node_id))


def _trust(view: View, place: str, row: Row) -> None:
    view.engines.trust.note(place, row)


_FOLDS: Mapping[Table, Callable[[View, str, Row], None]] = {
    Table.JOBS: _job,
    Table.ATTEMPTS: _attempt,
    Table.NODES: _node,
    Table.GPUS: _gpu,
    Table.TRUST: _trust,
}
