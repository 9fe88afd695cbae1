"""What a receiver gets about an event: a body, and headers with its signature."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gpuyard import __version__
from gpuyard.domain.events import EventKind
from gpuyard.domain.reasons import Reason
from gpuyard.domain.webhooks import WebhookFormat
from gpuyard.notify.slack import slack_message

Row = Mapping[str, Any]
_VERBS: Mapping[EventKind, str] = {
    EventKind.JOB_SUBMITTED: "was submitted",
    EventKind.JOB_REQUEUED: "is queued again",
    EventKind.JOB_RESUMED: "is resumed",
    EventKind.JOB_HELD: "is held",
    EventKind.JOB_RELEASED: "is released",
    EventKind.JOB_UPDATED: "was changed by its owner",
    EventKind.JOB_CANCEL_REQUESTED: "is to be cancelled",
    EventKind.JOB_COMPLETED: "completed",
    EventKind.JOB_FAILED: "failed",
    EventKind.JOB_CANCELLED: "was cancelled",
    EventKind.JOB_TIMED_OUT: "timed out",
    EventKind.JOB_UNKNOWN: "cannot be asked just now",
    EventKind.JOB_LOG_LIMITED: "has reached the limit of its log",
    EventKind.JOB_DEADLINE_MISSED: "has missed its deadline",
    EventKind.ATTEMPT_STARTED: "is running",
    EventKind.CHECKPOINT_SAVED: "saved a checkpoint",
    EventKind.PROVIDER_DOWN: "is down",
    EventKind.PROVIDER_UP: "is up again",
    EventKind.BILL_COMPARED: "has a bill that agrees",
    EventKind.BILL_DIFFERS: "has a bill that differs from what was counted",
    EventKind.DISK_FILLING: "takes most of a disk that is nearly full",
    EventKind.WORKSPACE_EXPIRES: "was not used for long and will be removed",
    EventKind.WORKSPACE_REMOVED: "was removed, because nobody had used it for long",
    EventKind.WORKSPACE_NEARLY_FULL: "has workspaces that near their quota",
    EventKind.WORKSPACE_OVER_QUOTA: "has workspaces that are over their quota",
    EventKind.RESERVATION_ADDED: "was added",
    EventKind.RESERVATION_REMOVED: "was removed",
    EventKind.RESERVATION_BEGAN: "has begun",
    EventKind.RESERVATION_SHORT: "has begun and lacks something",
    EventKind.RESERVATION_UNUSED: "has another number of unused GPUs",
    EventKind.BUDGET_SET: "was set",
    EventKind.BUDGET_REMOVED: "was removed",
    EventKind.BUDGET_NEARLY_SPENT: "is nearly spent",
    EventKind.BUDGET_SPENT: "is spent",
    EventKind.ARRAY_SUBMITTED: "was submitted",
    EventKind.ARRAY_UPDATED: "was changed by its owner",
    EventKind.SCHEDULE_CREATED: "was added",
    EventKind.SCHEDULE_CHANGED: "was changed",
    EventKind.SCHEDULE_STARTED: "was submitted by its schedule",
    EventKind.SCHEDULE_SKIPPED: "left out a time",
    EventKind.SCHEDULE_DELETED: "was deleted",
}
# Reasons that repeat the verb.
_REDUNDANT_REASONS = frozenset({Reason.CANCELLED, Reason.TIMED_OUT})


@dataclass(frozen=True, slots=True)
class Payload:
    """One event in one receiver's format.

    `id` is the event's own, the same each time it is sent. `text` says it in words for
    people; `at` is when it happened (UTC seconds).
    """

    id: str
    kind: str
    body: bytes
    text: str
    at: float
    job_id: str | None


def make_payload(event: Row, job: Row | None, form: WebhookFormat) -> Payload:
    """The payload of a row of the journal; `job` is the row of its job."""
    seq = event["seq"]
    at = event["at"]
    kind = event["kind"]
    job_id = event["job_id"]
    text = sentence(event, job)
    # Two instances that notify one receiver number their events alike, so the id
    # covers more than the number.
    digest = hashlib.sha256(f"{seq} {at!r} {kind} {job_id}".encode()).hexdigest()
    body: dict[str, Any] = {
        "id": f"event_{digest[:32]}",
        "seq": seq,
        "at": at,
        "kind": kind,
        "job_id": job_id,
        "data": event["info"],
        "text": text,
    }
    sent = slack_message(text, kind, job_id) if form is WebhookFormat.SLACK else body
    return Payload(body["id"], kind, msgspec.json.encode(sent), text, at, job_id)


def sentence(event: Row, job: Row | None) -> str:
    """The event in words for people."""
    kind = EventKind(event["kind"])
    data = event["info"]
    subject = _subject(event, job)
    if not subject and kind is EventKind.GPU_WARNING:
        return f"{data['problem']} ({data['gpu']} of {data['node']})."
    why = data.get("problem") or _reason(data)
    head = _head(kind, subject)
    return f"{head}: {why}." if why else f"{head}."


def _subject(event: Row, job: Row | None) -> str:
    """What the event happened to; empty if it names none of these."""
    data = event["info"]
    if job_id := event["job_id"]:
        name = (job or {}).get("name")
        return f"Job {name} ({job_id})" if name else f"Job {job_id}"
    if "provider" in data:
        return f"Provider {data['provider']}"
    if "array_id" in data:
        return f"Array {data['name']} ({data['array_id']}, {data['total']} jobs)"
    if "schedule" in data:
        return f"Schedule {data['name']} ({data['schedule']})"
    if "reservation" in data:
        return f"Reservation {data['reservation']}"
    if "workspace" in data:
        return f"Workspace {data['workspace']} of the project {data['project']}"
    if "quota" in data:
        return f"The project {data['project']}"
    if "budget" in data:
        return f"Budget {data['budget']}"
    return ""


def _head(kind: EventKind, subject: str) -> str:
    if not subject:
        return kind.value
    verb = _VERBS.get(kind)
    return f"{subject} {verb}" if verb else f"{subject}: {kind}"


def _reason(data: Row) -> str:
    reason = data.get("reason")
    code = data.get("exit_code")
    if reason == Reason.EXIT_CODE and code is not None:
        return f"exit code {code}"
    if not reason or reason in _REDUNDANT_REASONS:
        return ""
    return str(reason).replace("_", " ")


def headers(payload: Payload, secret: bytes, now: float) -> dict[str, str]:
    """The headers of a payload sent at `now` (UTC seconds)."""
    timestamp = str(int(now))
    found = {
        "Content-Type": "application/json",
        "User-Agent": f"gpuyard/{__version__}",
        "X-Gpuyard-Event": payload.kind,
        "X-Gpuyard-Delivery": payload.id,
        "X-Gpuyard-Timestamp": timestamp,
    }
    if secret:
        found["X-Gpuyard-Signature"] = signature(secret, timestamp, payload.body)
    return found


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """`sha256=` and the HMAC of the timestamp, a full stop and the body.

    It covers the timestamp, so an old payload cannot be sent again with a new one.
    """
    signed = f"{timestamp}.".encode() + body
    return f"sha256={hmac.new(secret, signed, hashlib.sha256).hexdigest()}"
