"""The FastAPI application: routers under `/api/v1`, the yard's life as its lifespan."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import structlog
from fastapi import APIRouter, Depends, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuyard import __version__
from gpuyard.domain.errors import LedgerError
from gpuyard.gateway.openai import Gateway, make_router
from gpuyard.server import problems
from gpuyard.server.auth import require_token
from gpuyard.server.leading import Leading
from gpuyard.server.openapi import PROBLEMS, Api
from gpuyard.server.routers import (
    agents,
    batches,
    checkpoints,
    estimate,
    events,
    jobs,
    ledger,
    machines,
    models,
    process,
    tiers,
    trust,
    workspaces,
)  # fmt: skip
from gpuyard.server.yard import Yard
from gpuyard.storage.place import problem_of

_HOUSEKEEPING_S = 5.0
log = structlog.get_logger(__name__)


def make_app(yard: Yard) -> FastAPI:
    """The application that serves `yard`; its lifespan starts and closes the controller."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        leading = Leading(yard)
        await leading.open()
        keeping = [asyncio.create_task(_housekeeping(yard)), asyncio.create_task(_try_storage(yard))]
        yield
        for task in keeping:
            task.cancel()
        yard.stream.close()
        await leading.close()

    app = Api(title="gpuyard", version=__version__, lifespan=lifespan, redoc_url=None, responses=PROBLEMS)
    app.state.yard = yard
    problems.install(app)
    api = APIRouter(prefix="/api/v1", dependencies=[Depends(require_token)])
    nouns = (jobs, batches, checkpoints, machines, estimate, models, tiers, events, ledger, process, workspaces,
             trust)  # fmt: skip
    for noun in nouns:
        api.include_router(noun.router)
    api.include_router(batches.estimates)
    app.include_router(api)
    app.include_router(process.open_router)
    app.include_router(agents.router)
    lines, models_ = yard.controller.residents.lines, yard.controller.models
    gateway = Gateway(lines, yard.settings.residency.timeout_s, models_.why_not)
    app.include_router(make_router(gateway), dependencies=[Depends(require_token)])
    app.add_middleware(_NoteUse, yard=yard)
    if yard.election:
        from gpuyard.server.forwarding import Forwarding  # late: a server that is alone needs no HTTP client

        app.add_middleware(Forwarding, yard=yard)
    return app


class _NoteUse:
    """Notes when the server was last used."""

    def __init__(self, app: ASGIApp, yard: Yard) -> None:
        self._app = app
        self._yard = yard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._yard.used_at = time.monotonic()
        await self._app(scope, receive, send)


async def _try_storage(yard: Yard) -> None:
    """Say at the start that checkpoints cannot be kept. Jobs run all the same, and what they save is tried again."""
    if problem := await problem_of(yard.blobs):
        log.warning("checkpoints cannot be kept: see [storage] in the settings", place=yard.blobs.name, why=problem)


async def _housekeeping(yard: Yard) -> None:
    """Leave when idle for long enough, and keep the journal short."""
    core = yard.controller.core
    keep = yard.settings.ledger.keep_events
    while True:
        await asyncio.sleep(_HOUSEKEEPING_S)
        idle_exit_s = yard.settings.server.idle_exit_s
        if not yard.controller.idle or yard.election:  # a server that others count on does not leave by itself
            yard.used_at = time.monotonic()
        elif idle_exit_s and time.monotonic() - yard.used_at > idle_exit_s:
            log.info("leaving: idle", seconds=idle_exit_s)
            yard.stopping.set()
            return
        # Not at each event over it: a snapshot reads everything.
        if yard.leads and yard.queries.journal_length() > 2 * keep:
            try:
                await core.ledger.prune(core.writer, keep)
            except LedgerError as error:
                log.warning("the journal could not be pruned", error=str(error))
