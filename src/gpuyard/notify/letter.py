"""What a webhook is sent about an event: a body that is always the same, and headers with its signature."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gpuyard import __version__
from gpuyard.domain.events import EventKind
from gpuyard.domain.webhooks import WebhookFormat

Row = Mapping[str, Any]
_SAID: Mapping[EventKind, str] = {
    EventKind.JOB_SUBMITTED: "was submitted",
    EventKind.JOB_REQUEUED: "is queued again",
    EventKind.JOB_RESUMED: "is resumed",
    EventKind.JOB_CANCEL_REQUESTED: "is to be cancelled",
    EventKind.JOB_COMPLETED: "completed",
    EventKind.JOB_FAILED: "failed",
    EventKind.JOB_CANCELLED: "was cancelled",
    EventKind.JOB_TIMED_OUT: "timed out",
    EventKind.JOB_UNKNOWN: "cannot be asked just now",
    EventKind.ATTEMPT_STARTED: "is running",
    EventKind.CHECKPOINT_SAVED: "saved a checkpoint",
    EventKind.PROVIDER_DOWN: "is down",
    EventKind.PROVIDER_UP: "is up again",
}
# What the verb says already.
_NO_NEWS = frozenset({"cancelled", "timed_out"})


@dataclass(frozen=True, slots=True)
class Letter:
    """One event for one webhook. Its `id` is the event's, the same each time it is sent."""

    id: str
    kind: str
    body: bytes


def letter_of(event: Row, job: Row | None, form: WebhookFormat) -> Letter:
    """The letter about a row of the journal, whose job's row is `job`."""
    seq, at, kind, job_id = event["seq"], event["at"], event["kind"], event["job_id"]
    text = sentence(event, job)
    # Of all that makes it this event: two yards that tell one receiver number their events alike.
    digest = hashlib.sha256(f"{seq} {at!r} {kind} {job_id}".encode()).hexdigest()
    body: dict[str, Any] = {"id": f"event_{digest[:32]}", "seq": seq, "at": at, "kind": kind, "job_id": job_id,
                            "data": event["info"], "text": text}  # fmt: skip
    sent = body if form is WebhookFormat.JSON else {"text": _for_slack(text)}
    return Letter(body["id"], kind, msgspec.json.encode(sent))


def sentence(event: Row, job: Row | None) -> str:
    """The event in words for people."""
    kind, data = EventKind(event["kind"]), event["info"]
    name = (job or {}).get("name")
    if event["job_id"]:
        subject = f"Job {name} ({event['job_id']})" if name else f"Job {event['job_id']}"
    elif "provider" in data:
        subject = f"Provider {data['provider']}"
    else:
        subject = ""
    said = _SAID.get(kind)
    head = f"{subject} {said}" if subject and said else f"{subject}: {kind}" if subject else kind.value
    why = data.get("problem") or _reason(data)
    return f"{head}: {why}." if why else f"{head}."


def _reason(data: Row) -> str:
    reason, code = data.get("reason"), data.get("exit_code")
    if reason == "exit_code" and code is not None:
        return f"exit code {code}"
    return "" if not reason or reason in _NO_NEWS else str(reason).replace("_", " ")


def _for_slack(text: str) -> str:
    """Names are a user's own words and must not call on everyone in the channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def headers(letter: Letter, secret: bytes, now: float) -> dict[str, str]:
    """The headers of a letter that is sent `now` (UTC seconds)."""
    timestamp = str(int(now))
    found = {
        "Content-Type": "application/json",
        "User-Agent": f"gpuyard/{__version__}",
        "X-Gpuyard-Event": letter.kind,
        "X-Gpuyard-Delivery": letter.id,
        "X-Gpuyard-Timestamp": timestamp,
    }
    if secret:
        found["X-Gpuyard-Signature"] = signature(secret, timestamp, letter.body)
    return found


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """`sha256=` and the HMAC of timestamp, a full stop and body: nobody can send an old letter with a new time."""
    return "sha256=" + hmac.new(secret, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
