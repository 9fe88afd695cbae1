"""Calls about many jobs, and calls about one that runs or changes; see `calls`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

from gpuyard.client.bodies import with_local_deadline
from gpuyard.client.calls import Call, Json, job
from gpuyard.domain.jobs import Job, JobOutcome
from gpuyard.domain.records import RunRecord
from gpuyard.domain.states import JobState

LONGEST_WAIT_S = 10.0
"""The server answers within it, so that a lost connection is noticed."""
Outcomes = tuple[list[JobOutcome], Counter[JobState]]


def listed(filters: Json) -> dict[str, Any]:
    """The filters of a listing as the API takes them: `label` may be a mapping."""
    label = filters.get("label")
    if not isinstance(label, Mapping):
        return dict(filters)
    pairs = cast("Mapping[str, str]", label)
    return {**filters, "label": [f"{name}={value}" for name, value in pairs.items()]}


def cancel_many(body: Json) -> Call[list[dict[str, Any]]]:
    """End the jobs that `body` (a CancelRequest) describes; of each its `id`, its
    state before (`was`) and its `state`.
    """
    return Call(
        "POST",
        "/api/v1/jobs:cancel",
        lambda answer: list(answer["items"]),
        body=dict(body),
        done_once=True,
    )


def ended_by(cancelled: Sequence[Json]) -> list[str]:
    """The ids of those that `cancel_many` has ended: the others were over before."""
    return [job["id"] for job in cancelled if not JobState(job["was"]).terminal]


def wait(references: Sequence[str], timeout_s: float) -> Call[Outcomes]:
    """Wait until these are over, `timeout_s` at most (60 is the most there is): how
    those ended that are over, and how many others are in each state.
    """
    return Call(
        "POST",
        "/api/v1/jobs:wait",
        _outcomes,
        body={"jobs": list(references), "timeout_s": timeout_s},
        done_once=True,
        waits=True,
    )


def set_held(references: Sequence[str], action: str) -> Call[list[dict[str, Any]]]:
    """`hold` or `release` jobs, all or none; of each its `id` and `held`."""
    return Call(
        "POST",
        f"/api/v1/jobs:{action}",
        lambda answer: list(answer["items"]),
        body={"jobs": list(references)},
        done_once=True,
    )


def update(reference: str, changes: Json) -> Call[Job]:
    """Change a job: `name`, `priority`, `timeout_s`, `deadline` (None: none)."""
    call = job(reference)
    body = with_local_deadline(changes)
    return Call("PATCH", call.path, call.read, body=body, done_once=True)


def record(reference: str) -> Call[RunRecord]:
    """What a job ran."""
    path = f"{job(reference).path}/record"
    return Call("GET", path, RunRecord.model_validate)


def rerun(reference: str) -> Call[tuple[Job, list[str]]]:
    """Submit a job once more as it was: the new one, and what may differ."""
    path = f"{job(reference).path}/rerun"
    body = {"idempotency_key": f"sent_{uuid4().hex}"}
    return Call("POST", path, _rerun, body=body, done_once=True)


def _rerun(answer: Any) -> tuple[Job, list[str]]:
    return Job.model_validate(answer["job"]), list(answer["notes"])


def forward_place(reference: str, port: int) -> Call[str]:
    """The name of the node whose ports a running job listens at."""
    path = f"{job(reference).path}/forward"
    return Call("GET", path, lambda answer: str(answer["node"]), {"port": port})


def tool_link(reference: str, port: int) -> Call[tuple[str, float]]:
    """A link that opens in a browser what a running job serves at a port, and for how
    many seconds it is good.
    """
    path = f"{job(reference).path}/forward/{port}/links"
    return Call("POST", path, lambda answer: (str(answer["url"]), answer["lasts_s"]))


def tensorboard(references: Sequence[str]) -> Call[str]:
    """A link that opens a TensorBoard over these jobs, which is started if none runs
    for who asks.
    """
    body = {"jobs": list(references)}
    path = "/api/v1/tensorboards"
    return Call("POST", path, lambda answer: str(answer["url"]), body=body, waits=True)


def _outcomes(answer: Any) -> Outcomes:
    over = [JobOutcome.model_validate(item) for item in answer["items"]]
    counts = {JobState(name): count for name, count in answer["waiting"].items()}
    return over, Counter(counts)
