"""What takes hidden jobs and projects out of texts, whatever they are called."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuyard.controller.users import OWNER, Identity
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.errors import DiskFullError
from gpuyard.domain.users import Role
from gpuyard.ledger.queries import Queries
from gpuyard.server import problems
from gpuyard.server.concealing import conceal
from gpuyard.server.permissions import IDENTITY_KEY

HIDDEN = f"job_{1:032x}"
OPEN = f"job_{2:032x}"


class Jobs:
    """Answers as the ledger would: one job of a hidden project, and one of none."""

    def __init__(self, name: str) -> None:
        self._name = name

    def projects_of_jobs(self, job_ids: Iterable[str]) -> dict[str, str | None]:
        known = {HIDDEN: "hush", OPEN: None}
        return {job_id: known[job_id] for job_id in job_ids if job_id in known}

    def jobs_by_id(self, job_ids: Iterable[str]) -> dict[str, Any]:
        return {job_id: {"name": self._name} for job_id in job_ids if job_id == HIDDEN}


def told(text: str, name: str = "train") -> str:
    """The text as somebody reads it for whom the project hush does not exist."""
    queries = cast(Queries, Jobs(name))
    return conceal(queries, Visibility("ben", frozenset({"hush"})), text)


@pytest.mark.parametrize(
    "name", ["train", "eval (fold 2)", "a; b", "two\nlines", "job of hush"]
)
def test_a_hidden_job_has_no_name(name: str) -> None:
    text = f"1 GPU is kept for job {name} ({HIDDEN}), which needs more"
    kept = "1 GPU is kept for a job of others, which needs more"
    assert told(text, name) == kept
    # It may have got another name since.
    assert told(text, "later") == kept


def test_a_job_that_may_be_seen_keeps_its_name() -> None:
    text = f"it waits for job open ({OPEN})"
    assert told(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2 GPUs are reserved for project hush until then", "for others until then"),
        ("ana in project hush is before it", "others is before it"),
        ("for project hush-money until then", "for project hush-money until then"),
    ],
)
def test_a_hidden_project_has_no_name(text: str, shown: str) -> None:
    assert shown in told(text)


class As:
    """ASGI middleware: requests are those of somebody."""

    def __init__(self, app: ASGIApp, identity: Identity) -> None:
        self._app = app
        self._identity = identity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[IDENTITY_KEY] = self._identity
        await self._app(scope, receive, send)


def full_disk(hidden_from_ben: str, job_id: str, identity: Identity) -> str:
    """What a server answers whose disk this job fills."""

    def visibility_of(identity: Identity) -> Visibility:
        hidden = [hidden_from_ben] if identity.user == "ben" else []
        return Visibility(identity.user, frozenset(hidden))

    error = DiskFullError("It is full. Most is taken by job train.", "Cancel it.")
    error.job_id = job_id
    error.unnamed = DiskFullError("It is full.", "Free some space.")

    async def fail() -> None:
        raise error

    app = FastAPI()
    app.state.app_state = SimpleNamespace(
        queries=Jobs("train"),
        controller=SimpleNamespace(access=SimpleNamespace(visibility_of=visibility_of)),
    )
    problems.install(app)
    app.add_api_route("/", fail)
    app.add_middleware(As, identity=identity)
    return str(TestClient(app).get("/").json()["detail"])


def test_a_full_disk_names_the_job_only_to_whom_it_exists() -> None:
    ben = Identity("ben", Role.MEMBER)
    assert full_disk("hush", HIDDEN, ben) == "It is full. Free some space."
    assert "job train" in full_disk("hush", OPEN, ben)
    assert "job train" in full_disk("hush", HIDDEN, OWNER)
