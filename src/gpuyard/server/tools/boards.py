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
from typing import Any, cast

import msgspec
from fastapi import Request

from gpuyard.controller.access import Action
from gpuyard.controller.controller import Controller
from gpuyard.controller.logs import LogPart
from gpuyard.controller.users import Identity
from gpuyard.domain.carried_environment import FILLED_IN
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.jobs import Job
from gpuyard.insight.boards import BOARD_LISTENS, BOARD_NAME, board_body, python_of
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
    if not board.is_new and not _runs(app_state, board.job_id, port):
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
    body = {**new_board(jobs, user), "labels": {LABEL: label}}
    if project := _project_of(jobs, identity_of(request.scope), controller):
        body["project"] = project
    raw = msgspec.Raw(msgspec.json.encode(body))
    rights = rights_of(request.scope, controller)
    (queued,) = await controller.requests.accept([raw], user=user, rights=rights)
    return queued.id


def _runs(app_state: AppState, board_id: str, port: int) -> bool:
    try:
        app_state.controller.streams.node_of(board_id, port)
    except RefusedError:
        return False
    return True


def new_board(jobs: Sequence[Job], user: str | None) -> dict[str, Any]:
    """What is submitted. TensorBoard comes from the Python of a job of the user: what
    others put on their PATH must not run under this account.
    """
    own = next((job for job in jobs if job.user == user), None)
    spec: Mapping[str, Any] = (own.spec if own else None) or {}
    given: Mapping[str, str] = spec.get("environment") or {}
    environment = {name: given[name] for name in FILLED_IN if name in given}
    home: str = spec.get("workdir") or "/"
    body = board_body(jobs, IDLE_S, environment, home, python_of(spec))
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
    jobs: Sequence[Job], identity: Identity, controller: Controller
) -> str | None:
    """Of which project a board is: who sees it sees the names and folders of the jobs.
    RefusedError for jobs of several private projects.
    """
    known = controller.projects.by_name
    registered = [known[job.project] for job in jobs if job.project in known]
    private = sorted({project.name for project in registered if project.private})
    if len(private) > 1:
        raise RefusedError(
            f"These jobs are of the private projects {', '.join(private)}, whose"
            " members do not see each other's jobs.",
            "Show those of one project at a time.",
        )
    wanted = private[0] if private else jobs[0].project
    may_submit = controller.access.may(identity, Action.SUBMIT, wanted)
    return wanted if private or may_submit else None


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
