"""Calls about schedules; see `calls`."""

from typing import Any
from uuid import uuid4

from gpuyard.client.answers import items_of
from gpuyard.client.calls import Call, Json
from gpuyard.client.local_timezone import local_timezone
from gpuyard.client.segments import segment
from gpuyard.domain.jobs import Job
from gpuyard.domain.schedules import Schedule

_PATH = "/api/v1/schedules"


def create(job: Json, cron: str, options: Json) -> Call[Schedule]:
    """Add a schedule of the job, in the time zone of this machine unless `options` name
    one.
    """
    body: dict[str, Any] = {
        "cron": cron,
        "idempotency_key": f"sent_{uuid4().hex}",
        **options,
        "job": dict(job),
    }
    if body.get("timezone") is None:
        body["timezone"] = local_timezone()
    read = Schedule.model_validate
    return Call("POST", _PATH, read, body=body, done_once=True, submits=True)


def listing() -> Call[list[Schedule]]:
    """Every schedule, the oldest first."""
    return Call("GET", _PATH, items_of(Schedule))


def show(reference: str) -> Call[Schedule]:
    """A schedule by id, ending of an id, or name."""
    return Call("GET", _path(reference), Schedule.model_validate)


def change(reference: str, changes: Json) -> Call[Schedule]:
    """Change `cron`, `timezone`, `overlap`, `starting_deadline_s`, `deadline_s` or
    `state`.
    """
    read = Schedule.model_validate
    return Call("PATCH", _path(reference), read, body=dict(changes), done_once=True)


def delete(reference: str) -> Call[Schedule]:
    """Delete a schedule; what it was."""
    return Call("DELETE", _path(reference), Schedule.model_validate)


def run_now(reference: str) -> Call[Job]:
    """Submit its job now."""
    body = {"idempotency_key": f"sent_{uuid4().hex}"}
    path = f"{_path(reference)}/run"
    return Call("POST", path, Job.model_validate, body=body, done_once=True)


def _path(reference: str) -> str:
    return f"{_PATH}/{segment(reference)}"
