"""Calls about arrays; see `calls`."""

from typing import Any
from uuid import uuid4

from gpuyard.client.answers import page_of
from gpuyard.client.bodies import with_local_deadline
from gpuyard.client.calls import Call, Json
from gpuyard.client.segments import segment
from gpuyard.domain.arrays import Array

_PATH = "/api/v1/arrays"


def submit(body: Json) -> Call[Array]:
    """Queue an array: `body` is that of a job, and has `array`."""
    keyed = dict(body)
    if keyed.get("idempotency_key") is None:
        keyed["idempotency_key"] = f"sent_{uuid4().hex}"
    read = Array.model_validate
    return Call("POST", _PATH, read, body=keyed, done_once=True, submits=True)


def listing(cursor: str | None) -> Call[tuple[list[Array], str | None]]:
    """One page of arrays and the next cursor."""
    params = {} if cursor is None else {"cursor": cursor}
    return Call("GET", _PATH, page_of(Array), params)


def show(reference: str) -> Call[Array]:
    """An array by id, ending of an id, or name."""
    return Call("GET", _path(reference), Array.model_validate)


def cancel(reference: str) -> Call[Array]:
    """End all its tasks."""
    path = f"{_path(reference)}/cancel"
    return Call("POST", path, Array.model_validate, done_once=True)


def resume(reference: str, changes: Json) -> Call[Array]:
    """Start a new attempt of each task that has ended without completing; `changes`:
    `priority`, `timeout_s`, `gpus`, `deadline`.
    """
    path = f"{_path(reference)}/resume"
    body = with_local_deadline(changes)
    return Call("POST", path, Array.model_validate, body=body)


def update(reference: str, changes: Json) -> Call[Array]:
    """Change an array: `at_most` (None: no limit), `priority`, `deadline` (None:
    none).
    """
    path = _path(reference)
    body = with_local_deadline(changes)
    return Call("PATCH", path, Array.model_validate, body=body, done_once=True)


def why(reference: str) -> Call[dict[str, Any]]:
    """Why its first waiting task waits."""
    return Call("GET", f"{_path(reference)}/why", dict)


def _path(reference: str) -> str:
    return f"{_PATH}/{segment(reference)}"
