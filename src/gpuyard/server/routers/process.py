"""The server itself: health, version, Prometheus metrics, stopping."""

import os
import time
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Response

from gpuyard import __version__
from gpuyard.domain.errors import RefusedError
from gpuyard.server.auth import require_token
from gpuyard.server.openapi import text
from gpuyard.server.prometheus import render_metrics
from gpuyard.server.yard import TheYard, Yard
from gpuyard.storage.place import problem_of

# The longest a cancelled job may take: its grace of ten seconds, and room for KILL.
_CANCEL_S = 30.0
open_router = APIRouter(tags=["server"])
router = APIRouter(prefix="/server", tags=["server"])


class Running(StrEnum):
    """What to do with running jobs when the server stops."""

    REFUSE = "refuse"
    LEAVE = "leave"
    CANCEL = "cancel"


@open_router.get("/healthz")
async def healthz() -> dict[str, Any]:
    """The server answers; needs no token."""
    return {"status": "ok", "version": __version__, "pid": os.getpid()}


@open_router.get(
    "/metrics", dependencies=[Depends(require_token)], response_class=Response, responses=text("text/plain")
)
async def metrics(yard: TheYard) -> Response:
    """Prometheus metrics."""
    body, media_type = render_metrics(yard)
    return Response(body, media_type=media_type)


@router.get("")
async def about(yard: TheYard) -> dict[str, Any]:
    """Where this server keeps its things and how many jobs it has."""
    core = yard.controller.core
    leader = yard.election.leader if yard.election else None
    return {"version": __version__, "pid": os.getpid(), "home": str(yard.home.root), "epoch": core.epoch,
            "leads": yard.leads, "leader": leader.url if leader else yard.url,
            "jobs": yard.queries.job_counts()}  # fmt: skip


@router.get("/storage")
async def storage(yard: TheYard) -> dict[str, Any]:
    """Where this server keeps checkpoints, and why it cannot just now (null: it can)."""
    return {"place": yard.blobs.name, "problem": await problem_of(yard.blobs)}


async def _until_ended(yard: Yard) -> None:
    """Agents leave with the server, so whoever ignores TERM is waited for until KILL has come."""
    deadline = time.monotonic() + _CANCEL_S
    while yard.controller.core.view.attempts and time.monotonic() < deadline:
        await yard.stream.changed(1.0)


@router.post("/stop", status_code=202)
async def stop(yard: TheYard, running: Annotated[Running, Body(embed=True)] = Running.REFUSE) -> dict[str, Any]:
    """Stop the server and its agents. Running jobs make it refuse, unless told to leave them running or cancel them."""
    view = yard.controller.core.view
    live = {attempt.job_id for attempt in view.attempts.values()} - yard.controller.residents.live.keys()
    if live and running is Running.REFUSE:
        raise RefusedError(
            f"{len(live)} {'job is' if len(live) == 1 else 'jobs are'} running.",
            "Choose: leave them running (the next start adopts them) or cancel them.",
        )
    if running is Running.CANCEL:
        yard.controller.batches.abandon()
        await yard.controller.requests.cancel_all()
        await _until_ended(yard)
    if running is not Running.LEAVE:
        await yard.controller.residents.leave()
    yard.stopping.set()
    return {"stopping": True, "left_running": sorted(live) if running is Running.LEAVE else []}
