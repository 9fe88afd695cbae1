"""The message that a job or an array has ended, for an address that it names."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from gpuyard.domain.events import EventKind
from gpuyard.domain.webhooks import WebhookFormat
from gpuyard.notify.payload import Payload, sentence
from gpuyard.notify.slack import slack_message

Row = Mapping[str, Any]
_ARRAY_ENDED = "array.ended"


def end_payload(notice: Row, form: WebhookFormat) -> Payload:
    """The payload of a row of `NoticeQueries.due_notices`."""
    digest = hashlib.sha256(f"{notice['id']} {notice['ended_at']!r}".encode())
    is_array = "counts" in notice
    kind = _ARRAY_ENDED if is_array else f"job.{notice['state']}"
    text = _array_sentence(notice) if is_array else _job_sentence(notice, kind)
    job_id = notice["job_id"]
    body: dict[str, Any] = {
        "id": f"notice_{digest.hexdigest()[:32]}",
        "at": notice["ended_at"],
        "kind": kind,
        "array_id" if is_array else "job_id": job_id,
        "data": _array_data(notice) if is_array else _job_data(notice),
        "text": text,
    }
    sent = slack_message(text, kind, job_id) if form is WebhookFormat.SLACK else body
    return Payload(
        body["id"], kind, msgspec.json.encode(sent), text, notice["ended_at"], job_id
    )


def _job_data(notice: Row) -> dict[str, Any]:
    names = ("name", "project", "state", "reason", "exit_code")
    return {name: notice[name] for name in names}


def _array_data(notice: Row) -> dict[str, Any]:
    return {name: notice[name] for name in ("name", "project", "total", "counts")}


def _job_sentence(notice: Row, kind: str) -> str:
    event = {"kind": EventKind(kind), "job_id": notice["job_id"], "info": notice}
    return sentence(event, notice)


def _array_sentence(notice: Row) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in notice["counts"].items())
    array = f"Array {notice['name']} ({notice['job_id']}, {notice['total']} jobs)"
    return f"{array} has ended: {counts.replace('_', ' ')}."
