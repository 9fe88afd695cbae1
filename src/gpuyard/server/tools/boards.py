"""TensorBoard on demand, for a link at the port for tools: a job of whoever asks, which
ends when nobody looks. So it runs where the event files are, under the account of that
person, and reads what the account may read.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec
from fastapi import Request

from gpuyard.controller.access import Action
from gpuyard.controller.logs import LogPart
from gpuyard.domain.carried_environment import FILLED_IN
from gpuyard.domain.errors import RefusedError, TooManyRequestsError
from gpuyard.domain.jobs import Job
from gpuyard.insight.boards import (
    BOARD_LISTENS,
    BOARD_NAME,
    board_body,
    board_project,
    python_of,
    workspace_of,
)
from gpuyard.ledger.queries import JobFilter
from gpuyard.server.app_state import AppState
from gpuyard.server.callers import submitter_of
from gpuyard.server.permissions import identity_of, rights_of
from gpuyard.server.present import present_jobs

IDLE_S = 600.0
"""So long it runs while nobody looks."""
LABEL = "tensorboard"
"""What the label of such a job says: a digest of the jobs that it shows."""
MOST_BOARDS = 4
"""So many may be of one person at a time."""
_LIVE = ("queued", "assigned", "running")
# Those of all users are looked through.
_MOST_LISTED = 1000
# Clients wait a minute for an answer.
_STARTS_S = 45.0
_LISTENS = re.compile(rb"(?m)^" + BOARD_LISTENS.encode() + rb"([0-9]{1,5})\n")
_LAST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Board:
    """A TensorBoard, as a job; `is_new`: it was submitted just now."""

    job_id: str
    is_new: bool


async def listening_board(
    app_state: AppState, jobs: Sequence[Job], request: Request
) -> tuple[str, int]:
    """The job that shows these jobs to who asks, and the port at which it listens;
    RefusedError as of `board_over` and `port_of`.
    """
    board = await board_over(app_state, jobs, request)
    port = await port_of(app_state, board.job_id)
    if not board.is_new and not await _lives(app_state, board.job_id, port):
        board = await board_over(app_state, jobs, request, but=board.job_id)
        port = await port_of(app_state, board.job_id)
    return board.job_id, port


async def board_over(
    app_state: AppState, jobs: Sequence[Job], request: Request, but: str = ""
) -> Board:
    """What shows these jobs, which are given with their specs, to who asks: a board
    that is there, `but` not this one, which ends; or a new one. RefusedError if they
    have MOST_BOARDS others.
    """
    user = submitter_of(request.scope)
    label = _label(jobs)
    # Two tabs that ask at the same time get the same one.
    async with app_state.board_turns[user]:
        own = await asyncio.to_thread(_own_boards, app_state, user, but)
        if label in own:
            return Board(own[label], is_new=False)
        _refuse_more(own)
        return Board(await _submit(app_state, jobs, request, label), is_new=True)


def _refuse_more(own: Mapping[str, str]) -> None:
    if len(own) >= MOST_BOARDS:
        raise RefusedError(
            f"{len(own)} TensorBoards of yours run, and that is all that may.",
            "End one with `gpuyard cancel`; `gpuyard jobs --name tensorboard` lists"
            f" them. Each ends after {IDLE_S / 60:.0f} minutes without a look.",
        )


async def _submit(
    app_state: AppState, jobs: Sequence[Job], request: Request, label: str
) -> str:
    controller = app_state.controller
    user = submitter_of(request.scope)
    body = new_board(jobs, user, _workspaces(app_state, jobs))
    body["labels"] = {LABEL: label}
    if project := _project_of(app_state, jobs, request):
        body["project"] = project
    raw = msgspec.Raw(msgspec.json.encode(body))
    rights = rights_of(request.scope, controller)
    (queued,) = await controller.requests.accept([raw], user=user, rights=rights)
    return queued.id


async def _lives(app_state: AppState, board_id: str, port: int) -> bool:
    """Whether a board answers at its port: of one that has ended just now, the ledger
    may not know yet. ProviderError if its node does not say.
    """
    try:
        async with app_state.controller.streams.open(board_id, port):
            return True
    except TooManyRequestsError:
        return True  # so many look at it
    except RefusedError:
        return False


def _workspaces(app_state: AppState, jobs: Sequence[Job]) -> dict[str, str]:
    """The folders of the workspaces of these jobs, by their keys."""
    root = app_state.settings.workspaces.root(app_state.home)
    keys = filter(None, map(workspace_of, jobs))
    return {key: str(root / key) for key in keys}


def new_board(
    jobs: Sequence[Job], user: str | None, workspaces: Mapping[str, str]
) -> dict[str, Any]:
    """What is submitted. TensorBoard comes from the Python of a job of the user: what
    others put on their PATH must not run under this account. `workspaces`: as of
    `board_body`.
    """
    own = next((job for job in jobs if job.user == user), None)
    spec: Mapping[str, Any] = (own.spec if own else None) or {}
    given: Mapping[str, str] = spec.get("environment") or {}
    environment = {name: given[name] for name in FILLED_IN if name in given}
    home: str = spec.get("workdir") or "/"
    body = board_body(
        jobs, IDLE_S, environment, home, python_of(spec), workspaces=workspaces
    )
    if packages := spec.get("packages"):
        body["packages"] = packages
    return body


async def port_of(app_state: AppState, board_id: str) -> int:
    """The port at which a board listens; RefusedError if it does not soon, or has
    ended.
    """
    parts = cast(
        "AsyncGenerator[LogPart]", app_state.controller.logs.read(board_id, follow=True)
    )
    said = b""
    try:
        async with asyncio.timeout(_STARTS_S), aclosing(parts):
            async for part in parts:
                said += part.data
                if found := _LISTENS.search(said):
                    return int(found[1])
                said = said[-_LAST_BYTES:]
    except TimeoutError:
        raise RefusedError(
            "TensorBoard does not listen yet.",
            f"`gpuyard why {board_id[-8:]}` says what its job waits for; ask again"
            " then.",
        ) from None
    lines = said.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    raise RefusedError(
        f"TensorBoard did not start: {last or _end_of(app_state, board_id)}",
        f"`gpuyard show {board_id[-8:]}` says why its job ended.",
    )


def _end_of(app_state: AppState, job_id: str) -> str:
    """Why a job ended that has printed nothing."""
    row = app_state.queries.job(job_id)
    assert row is not None
    (job,) = present_jobs(app_state, [row])
    message = job.attempts[-1].message if job.attempts else None
    return message or f"{job.state}, {job.reason or 'for no known reason'}"


def _project_of(
    app_state: AppState, jobs: Sequence[Job], request: Request
) -> str | None:
    """Of which project a board is, for who asks; RefusedError as of `board_project`."""
    controller = app_state.controller
    known = controller.projects.by_name.values()
    private = {project.name for project in known if project.private}
    may = partial(controller.access.may, identity_of(request.scope), Action.SUBMIT)
    return board_project(jobs, private, may)


def _own_boards(app_state: AppState, user: str | None, but: str) -> dict[str, str]:
    """The boards of a user that are not over, by their labels; the newest of each, and
    not this one.
    """
    wanted = JobFilter(states=_LIVE, names=[BOARD_NAME], user=user)
    page = app_state.queries.jobs_page(limit=_MOST_LISTED, wanted=wanted)
    rows = [row for row in page if row["id"] != but]
    submitters = app_state.queries.submitters_of([row["id"] for row in rows])
    boards: dict[str, str] = {}
    for row in rows:
        labels: Mapping[str, str] = row["labels"] or {}
        label = labels.get(LABEL)
        if label and submitters.get(row["id"]) == user:
            boards.setdefault(label, row["id"])
    return boards


def _label(jobs: Sequence[Job]) -> str:
    """A job that has ended shows other files than before: none that come later."""
    words = sorted(f"{job.id} {job.ended_at}" for job in jobs)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:32]
