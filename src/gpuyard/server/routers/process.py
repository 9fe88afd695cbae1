"""The server itself: health, version, Prometheus metrics, stopping."""

import asyncio
import os
import time
from typing import Annotated, Any

from fastapi import Body, Depends, Query, Request, Response

from gpuyard import __version__
from gpuyard.config.proof import NONCE, PATH
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.errors import NotFoundError, RefusedError
from gpuyard.domain.stopping import RunningJobs
from gpuyard.server.api_router import api_router, open_api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.openapi import text
from gpuyard.server.permissions import visibility_of
from gpuyard.server.security_scheme import document_token
from gpuyard.storage.place import problem_of

# The longest a cancelled job may take: its grace of ten seconds, and room for KILL.
_CANCEL_S = 30.0
open_router = open_api_router(tag="server")
router = api_router("/server", tag="server")


@open_router.get("/healthz")
async def healthz() -> dict[str, Any]:
    """The server answers; needs no token."""
    return {"status": "ok", "version": __version__, "pid": os.getpid()}


@open_router.get(PATH)
async def prove(
    app_state: TheAppState,
    nonce: Annotated[str, Query(pattern=f"^{NONCE}$")],
    key: Annotated[str, Query(max_length=64)],
) -> dict[str, str]:
    """Prove that this server knows the token that `key` names, to a caller who will
    tell it that token only then; needs no token.
    """
    found = app_state.proof(key, nonce)
    if found is None and app_state.election:
        await app_state.election.read_anew()
        found = app_state.proof(key, nonce)
    if found is None:
        raise NotFoundError(
            "This server knows no such token.", "Dial a server of this instance."
        )
    return {"proof": found}


@open_router.get(
    "/metrics",
    dependencies=[Depends(document_token)],
    response_class=Response,
    responses=text("text/plain"),
)
async def metrics(request: Request, app_state: TheAppState) -> Response:
    """Prometheus metrics."""
    # Late: its library takes memory, and most servers are never asked.
    from gpuyard.server.prometheus import render_metrics

    visibility = visibility_of(request.scope, app_state.controller)
    counts = await _job_counts(app_state, visibility)
    body, media_type = render_metrics(app_state, counts, visibility)
    return Response(body, media_type=media_type)


@router.get("")
async def about(request: Request, app_state: TheAppState) -> dict[str, Any]:
    """Where this server keeps its things and how many jobs it has. `opens_ports`: it
    has a port at which browsers open what jobs serve (`tools_listen`).
    """
    core = app_state.controller.core
    visibility = visibility_of(request.scope, app_state.controller)
    leader = app_state.election.leader if app_state.election else None
    return {
        "version": __version__,
        "pid": os.getpid(),
        "home": str(app_state.home.root),
        "epoch": core.epoch,
        "leads": app_state.leads,
        "leader": leader.url if leader else app_state.url,
        "opens_ports": app_state.settings.server.tools_listen is not None,
        "jobs": await _job_counts(app_state, visibility),
    }


async def _job_counts(app_state: AppState, visibility: Visibility) -> dict[str, int]:
    """How many jobs are in each state. Beside the event loop: it looks at all that the
    ledger has, which takes a tenth of a second for a million.
    """
    return await asyncio.to_thread(app_state.queries.job_counts, visibility.hidden)


@router.get("/storage")
async def storage(app_state: TheAppState) -> dict[str, Any]:
    """Where this server keeps checkpoints, and why it cannot just now (null: it
    can).
    """
    return {"place": app_state.blobs.name, "problem": await problem_of(app_state.blobs)}


async def _until_ended(app_state: AppState) -> None:
    """Agents leave with the server, so whoever ignores TERM is waited for until KILL
    has come.
    """
    deadline = time.monotonic() + _CANCEL_S
    while app_state.controller.core.view.attempts and time.monotonic() < deadline:
        await app_state.stream.changed(1.0)


async def _end_work(app_state: AppState, running: RunningJobs) -> None:
    """Cancel what runs, if that is wanted, and unload the models."""
    if running is RunningJobs.CANCEL:
        app_state.manager.batches.abandon()
        await app_state.controller.requests.cancel_running()
        await _until_ended(app_state)
    if running is not RunningJobs.LEAVE:
        await app_state.manager.residents.leave()


@router.post("/stop", status_code=202)
async def stop(
    app_state: TheAppState,
    running: Annotated[RunningJobs, Body(embed=True)] = RunningJobs.REFUSE,
) -> dict[str, Any]:
    """Stop the server and its agents.

    Running jobs make it refuse, unless told to leave them running or cancel them.
    """
    core = app_state.controller.core
    servers = app_state.manager.residents.servers.live.keys()
    running_jobs = app_state.controller.requests.running_jobs
    live = running_jobs() - servers
    if live and running is RunningJobs.REFUSE:
        raise RefusedError(
            f"{len(live)} {'job is' if len(live) == 1 else 'jobs are'} running.",
            "Choose: leave them running (the next start adopts them) or cancel them.",
        )
    core.is_stopping = True
    try:
        await _end_work(app_state, running)
    except BaseException:
        # This server does not stop, so it must go on starting jobs.
        core.is_stopping = False
        app_state.manager.residents.stay()
        core.schedule()
        raise
    left = running_jobs() - servers
    waiting = core.view.jobs.keys() - left - servers
    app_state.stopping.set()
    return {
        "stopping": True,
        "left_running": sorted(left),
        "cancelled": len(live - left) if running is RunningJobs.CANCEL else 0,
        "left_waiting": len(waiting),
        # Of several servers, another one keeps the agents.
        "stops_node": not running_jobs() and app_state.election is None,
    }
