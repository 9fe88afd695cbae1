"""Every call the API has, once: what to send and how to read the answer.

`Client` and `AsyncClient` only carry them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from uuid import uuid4

from gpuyard.client.answers import items_of, page_of
from gpuyard.client.bodies import with_local_deadline
from gpuyard.client.segments import segment as _segment
from gpuyard.config.dialling import loopback_id
from gpuyard.domain.jobs import Checkpoint, Job
from gpuyard.domain.joining import Invitation, KnownInvitation
from gpuyard.domain.secret_facts import SecretFacts
from gpuyard.domain.trust import Trust
from gpuyard.domain.verifications import Verification

T = TypeVar("T")
Json = Mapping[str, Any]
PRIORITY_HEADER = "X-Gpuyard-Priority"
"""How urgent a request under /v1 is: 1 to 5, as for jobs."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and how to read its answer's JSON.

    `done_once`: however often it is sent. `waits`: the answer comes when something has
    happened.
    """

    method: str
    path: str
    read: Callable[[Any], T]
    params: Json = field(default_factory=dict[str, Any])
    body: Any = None
    done_once: bool = False
    submits: bool = False
    waits: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent again when it is unknown whether it arrived."""
        return self.method == "GET" or self.done_once


@dataclass(frozen=True, slots=True)
class StreamCall:
    """A request whose answer is read as it comes, as bytes. With `beats`, something
    comes every few seconds.
    """

    path: str
    params: Json = field(default_factory=dict[str, Any])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    method: str = "GET"
    body: Any = None
    beats: bool = False


def _items(answer: Any) -> list[Any]:
    return list(answer["items"])


def _problems(answer: Any) -> dict[str, str]:
    return dict(answer["problems"])


def _keyed(bodies: Sequence[Any]) -> list[Any]:
    """`bodies`, each with an idempotency key where the caller gave none, so that a
    resent request makes no second job.

    A task's own id is its key. What is no table is left for the server to refuse.
    """
    sent = f"sent_{uuid4().hex}"
    return [
        {**body, "idempotency_key": f"{sent}_{n}"} if _lacks_key(body) else body
        for n, body in enumerate(bodies)
    ]


def _lacks_key(body: Any) -> bool:
    if not isinstance(body, Mapping):
        return False
    given = cast("Json", body)
    return "task_id" not in given and given.get("idempotency_key") is None


def _submission(read: Callable[[Any], T], body: Any) -> Call[T]:
    return Call("POST", "/api/v1/jobs", read, body=body, done_once=True, submits=True)


def submit(body: Json) -> Call[Job]:
    """Queue one job."""
    return _submission(Job.model_validate, _keyed([body])[0])


def submit_many(bodies: Sequence[Json]) -> Call[list[Job]]:
    """Queue jobs, all or none."""
    return _submission(items_of(Job), _keyed(bodies))


def store_code(workdir: str, project: str) -> Call[dict[str, Any]]:
    """Store the code of a folder of this host for jobs of a project: its `digest`, or
    `why` it has none.
    """
    body = {"host": loopback_id(), "workdir": workdir}
    if project:
        body["project"] = project
    return Call("POST", "/api/v1/code", dict, body=body, done_once=True, submits=True)


def jobs(filters: Json) -> Call[tuple[list[Job], str | None]]:
    """One page of jobs and the next cursor."""
    return Call("GET", "/api/v1/jobs", page_of(Job), filters)


def job(reference: str) -> Call[Job]:
    """A job by id, ending of an id, or name."""
    return Call("GET", f"/api/v1/jobs/{_segment(reference)}", Job.model_validate)


def cancel(reference: str) -> Call[Job]:
    """End a job."""
    return Call(
        "POST",
        f"/api/v1/jobs/{_segment(reference)}/cancel",
        Job.model_validate,
        done_once=True,
    )


def resume(reference: str, checkpoint: str | None, changes: Json) -> Call[Job]:
    """Start a new attempt from a checkpoint; `changes`: `priority`, `timeout_s`,
    `deadline`, `gpus`.
    """
    return Call(
        "POST",
        f"/api/v1/jobs/{_segment(reference)}/resume",
        Job.model_validate,
        body={"checkpoint": checkpoint, **with_local_deadline(changes)},
    )


def why(reference: str) -> Call[dict[str, Any]]:
    """Why a job waits."""
    return Call("GET", f"/api/v1/jobs/{_segment(reference)}/why", dict)


def metrics(
    reference: str, names: Sequence[str], points: int
) -> Call[dict[str, list[dict[str, Any]]]]:
    """Series by name."""
    path = f"/api/v1/jobs/{_segment(reference)}/metrics"
    params = {"name": list(names), "points": points}
    return Call(
        "GET",
        path,
        lambda a: {item["name"]: item["points"] for item in a["items"]},
        params,
    )


def checkpoints(reference: str) -> Call[list[Checkpoint]]:
    """A job's checkpoints."""
    path = f"/api/v1/jobs/{_segment(reference)}/checkpoints"
    return Call("GET", path, items_of(Checkpoint))


def listing(noun: str) -> Call[list[dict[str, Any]]]:
    """Everything of `gpus`, `nodes`, `invitations`, `providers`, `tiers`, `offers`,
    `pools` or `workspaces`.
    """
    return Call("GET", f"/api/v1/{noun}", _items)


def pool(name: str) -> Call[dict[str, Any]]:
    """A pool with its newest nodes."""
    return Call("GET", f"/api/v1/pools/{_segment(name)}", dict)


def offer_problems() -> Call[dict[str, str]]:
    """By the name of an external queue, why it cannot be used or does not answer."""
    return Call("GET", "/api/v1/offers", _problems)


def estimate(body: Json, strategy: str | None) -> Call[dict[str, Any]]:
    """Where a job could run, best place first; it is not submitted."""
    return Call(
        "POST",
        "/api/v1/estimate",
        dict,
        {"strategy": strategy} if strategy else {},
        body,
        done_once=True,
    )


def measured_needs(body: Json) -> Call[dict[str, Any]]:
    """What was measured of a program and of programs like it."""
    path = "/api/v1/recommendations/measured"
    return Call("POST", path, dict, {}, body, done_once=True)


def tend_gpu(gpu: str, action: str) -> Call[str]:
    """`drain`, `undrain` or `release` a GPU; its UUID."""
    return Call(
        "POST",
        f"/api/v1/gpus/{_segment(gpu)}/{action}",
        lambda a: str(a["uuid"]),
        done_once=True,
    )


def invite_node(name: str | None, expires_in_s: float) -> Call[Invitation]:
    """Invite one machine to join; the code is shown only once."""
    body = {"name": name, "expires_in_s": expires_in_s}
    return Call("POST", "/api/v1/nodes:invite", Invitation.model_validate, body=body)


def revoke_invitation(invitation: str) -> Call[KnownInvitation]:
    """Let nobody join with an invitation any more; what it was."""
    path = f"/api/v1/invitations/{_segment(invitation)}"
    return Call("DELETE", path, KnownInvitation.model_validate, done_once=True)


def tend_node(node: str, action: str) -> Call[dict[str, Any]]:
    """`cordon`, `uncordon` or `drain` a node; what became of it."""
    return Call(
        "POST", f"/api/v1/nodes/{_segment(node)}/{action}", dict, done_once=True
    )


def remove_node(node: str) -> Call[dict[str, Any]]:
    """Remove a machine that has joined; what it was."""
    return Call("DELETE", f"/api/v1/nodes/{_segment(node)}", dict, done_once=True)


def trust() -> Call[list[Trust]]:
    """What is recorded about places where jobs run."""
    return Call("GET", "/api/v1/trust", items_of(Trust))


def trust_of(place: str) -> Call[Trust]:
    """What is recorded about a place: a provider, an offer, `node:NAME` or
    `gpu:UUID`.
    """
    return Call("GET", f"/api/v1/trust/{_segment(place)}", Trust.model_validate)


def record_trust(place: str, finding: Json) -> Call[Trust]:
    """Record a finding (`score`, `quarantined_until`, `reason`) about a place, instead
    of what was recorded.
    """
    return Call(
        "PUT",
        f"/api/v1/trust/{_segment(place)}",
        Trust.model_validate,
        body=dict(finding),
        done_once=True,
    )


def verifications(params: Json) -> Call[list[Verification]]:
    """The newest verdicts of checks."""
    return Call("GET", "/api/v1/verifications", items_of(Verification), params=params)


def record_verification(check: str, body: Json) -> Call[Verification]:
    """Leave the verdict of a check."""
    path = f"/api/v1/verifications/{_segment(check)}"
    return Call("PUT", path, Verification.model_validate, body=body, done_once=True)


def forget_trust(place: str) -> Call[Trust]:
    """Forget what is recorded about a place; what it was."""
    return Call("DELETE", f"/api/v1/trust/{_segment(place)}", Trust.model_validate)


def secrets() -> Call[list[SecretFacts]]:
    """Every secret whose name is known; never its value."""
    return Call("GET", "/api/v1/secrets", items_of(SecretFacts))


def set_secret(name: str, value: str, *, shared: bool = False) -> Call[SecretFacts]:
    """Set or replace a secret: one's own, or a shared one."""
    body: dict[str, Any] = {"value": value}
    if shared:
        body["shared"] = True
    return Call(
        "PUT",
        f"/api/v1/secrets/{_segment(name)}",
        SecretFacts.model_validate,
        body=body,
        done_once=True,
    )


def remove_secret(
    name: str, *, shared: bool = False, owner: str | None = None
) -> Call[SecretFacts]:
    """Remove a secret: one's own, a shared one, or that of `owner`; what it was."""
    path = f"/api/v1/secrets/{_segment(name)}"
    parameters: dict[str, Any] = {"shared": "true"} if shared else {}
    if owner is not None:
        parameters["owner"] = owner
    return Call("DELETE", path, SecretFacts.model_validate, params=parameters)


def chat(body: Json, *, streamed: bool, priority: int | None) -> StreamCall:
    """Ask a model; its answer as it comes, or whole.

    Loading the model may take minutes.
    """
    return StreamCall(
        "/v1/chat/completions",
        headers={} if priority is None else {PRIORITY_HEADER: str(priority)},
        method="POST",
        body={**body, "stream": streamed},
    )


def piece_of(event: str) -> str:
    """What a line of a streamed answer adds to it."""
    data = event.removeprefix("data:").strip()
    if not event.startswith("data:") or data == "[DONE]":
        return ""
    choices: list[dict[str, Any]] = json.loads(data).get("choices") or [{}]
    delta: dict[str, Any] = choices[0].get("delta") or {}
    return str(delta.get("content") or "")


def tend_model(model: str, action: str) -> Call[str]:
    """`load`, `unload`, `pin` or `unpin` a model; its name."""
    return Call(
        "POST",
        f"/api/v1/models/{_segment(model, safe='/')}/{action}",
        lambda a: str(a["name"]),
        done_once=True,
    )


def submit_batch(body: Json) -> Call[dict[str, Any]]:
    """Queue a batch."""
    return Call(
        "POST", "/api/v1/batches", dict, body=body, done_once=True, submits=True
    )


def estimate_batch(body: Json) -> Call[dict[str, Any]]:
    """What a batch would take."""
    return Call(
        "POST", "/api/v1/estimate/batch", dict, body=body, done_once=True, submits=True
    )


def batch(batch_id: str, *, items: bool = True) -> Call[dict[str, Any]]:
    """A batch, with its items or without."""
    return Call(
        "GET",
        f"/api/v1/batches/{_segment(batch_id)}",
        dict,
        {} if items else {"items": False},
    )


def tend_batch(
    batch_id: str, action: str, body: Json | None = None
) -> Call[dict[str, Any]]:
    """`cancel` or `retry` a batch."""
    path = f"/api/v1/batches/{_segment(batch_id)}/{action}"
    return Call("POST", path, dict, body=dict(body or {}), done_once=action == "cancel")


def events(
    after: int | None, limit: int, reference: str | None, since: float | None = None
) -> Call[list[dict[str, Any]]]:
    """A page of the journal: what follows the number `after`, or else the newest, if
    given not before `since` (UTC seconds).
    """
    newest = True if after is None else None
    params = _given(after=after, newest=newest, since=since, limit=limit, job=reference)
    return Call("GET", "/api/v1/events", _items, params)


def about() -> Call[dict[str, Any]]:
    """The server's own account of itself."""
    return Call("GET", "/api/v1/server", dict)


def storage() -> Call[dict[str, Any]]:
    """Where the server keeps checkpoints, and why it cannot."""
    return Call("GET", "/api/v1/server/storage", dict)


def stop(running: str) -> Call[dict[str, Any]]:
    """Stop the server."""
    return Call("POST", "/api/v1/server/stop", dict, body={"running": running})


def log(
    reference: str, lines: int | None, follow: bool, attempt: int | None
) -> StreamCall:
    """A job's output."""
    return StreamCall(
        f"/api/v1/jobs/{_segment(reference)}/logs",
        _given(lines=lines, follow=follow, attempt=attempt),
    )


def followed_log(
    reference: str, lines: int | None, attempt: int | None, position: str | None
) -> StreamCall:
    """A job's output until it is over, in lines of JSON; see LogReader."""
    return StreamCall(
        f"/api/v1/jobs/{_segment(reference)}/logs",
        _given(lines=lines, follow=True, attempt=attempt, position=position),
        {"Accept": "application/x-ndjson"},
        beats=True,
    )


def log_lines(
    reference: str, wanted: Json
) -> Call[tuple[list[dict[str, Any]], str | None, str | None]]:
    """A page of lines of a job's output, with the cursors behind and before it."""
    return Call(
        "GET",
        f"/api/v1/jobs/{_segment(reference)}/lines",
        lambda a: (a["items"], a["next"], a["previous"]),
        _given(**wanted),
        waits=True,
    )


def event_stream(after: int | None, reference: str | None) -> StreamCall:
    """Events as they come."""
    return StreamCall(
        "/api/v1/events",
        _given(after=after, job=reference),
        {"Accept": "text/event-stream"},
        beats=True,
    )


def content(checkpoint_id: str) -> StreamCall:
    """A checkpoint's bytes."""
    return StreamCall(f"/api/v1/checkpoints/{_segment(checkpoint_id)}/content")


def backup() -> StreamCall:
    """The whole ledger, as a SQLite file."""
    return StreamCall("/api/v1/ledger/backup", method="POST")


def saved_as(checkpoint: Checkpoint, target: Path) -> Path:
    """The file a checkpoint is downloaded to: `target`, or one of the checkpoint's name
    in it when it is a folder.
    """
    name = checkpoint.path.rsplit("/", 1)[-1] + (".tar" if checkpoint.directory else "")
    return target / name if target.is_dir() else target


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
