"""The FastAPI application: routers under `/api/v1`, and upkeep for as long as it
serves.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import structlog
from fastapi import Depends, FastAPI
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from gpuyard import __version__
from gpuyard.domain.errors import LedgerError
from gpuyard.gateway.openai import DirectRoute, Gateway, make_router
from gpuyard.server import docs_page, problems, web_page
from gpuyard.server.app_state import AppState
from gpuyard.server.audit import AuditLog
from gpuyard.server.edge import Edge
from gpuyard.server.history import remove_history
from gpuyard.server.openapi import PROBLEMS, GpuyardApi
from gpuyard.server.routers import (
    agents,
    arrays,
    artifacts,
    batches,
    budgets,
    checkpoints,
    cloud_accounts,
    code,
    costs,
    datasets,
    environments,
    estimate,
    events,
    git_commits,
    job_groups,
    job_streams,
    jobs,
    ledger,
    log_lines,
    machines,
    model_cards,
    models,
    nodes,
    packages,
    pools,
    process,
    projects,
    recommendations,
    records,
    rented_machines,
    reservations,
    schedules,
    secrets,
    shares,
    sign_in,
    studies,
    templates,
    tensorboards,
    throughput,
    tiers,
    trust,
    users,
    verifications,
    webhooks,
    workspaces,
)
from gpuyard.server.routers import (
    audit as audit_log,
)
from gpuyard.server.security_scheme import document_token
from gpuyard.server.shared_answers import SharedAnswers
from gpuyard.server.sign_in.ended_cookies import EndedCookies
from gpuyard.server.sign_in.service import SignIn
from gpuyard.server.sign_in.session_secret import SessionSecret
from gpuyard.server.sign_in.token_sessions import TokenSessions
from gpuyard.server.tending import tend
from gpuyard.server.watched_answers import WatchedAnswers
from gpuyard.storage.place import problem_of

_HOUSEKEEPING_S = 5.0
# The first route that fits a request answers it.
_NOUNS = (
    job_groups,
    jobs,
    log_lines,
    arrays,
    schedules,
    job_streams,
    tensorboards,
    model_cards,
    records,
    batches,
    artifacts,
    checkpoints,
    datasets,
    cloud_accounts,
    machines,
    rented_machines,
    nodes,
    estimate,
    recommendations,
    models,
    templates,
    git_commits,
    throughput,
    tiers,
    events,
    ledger,
    process,
    workspaces,
    trust,
    verifications,
    studies,
    costs,
    budgets,
    shares,
    reservations,
    pools,
    webhooks,
    users,
    audit_log,
    projects,
    secrets,
    environments,
    packages,
    code,
)
log = structlog.get_logger(__name__)


def make_app(app_state: AppState) -> FastAPI:
    """The application that serves the instance. Its lifespan runs the upkeep."""
    app_state.sign_in = SignIn(
        app_state.settings,
        app_state.controller,
        app_state.url,
        app_state.token,
        _token_sessions(app_state),
    )
    app_state.watched = WatchedAnswers(app_state.stream)
    audit = AuditLog(
        app_state.home.audit_log, app_state.settings.server, lambda: app_state.token
    )
    app = GpuyardApi(
        title="gpuyard",
        version=__version__,
        lifespan=_lifespan(app_state, audit),
        # docs_page.py has both, and its page loads no program from elsewhere.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
    )
    app.state.app_state = app_state
    problems.install(app)
    _add_routes(app)
    _add_gateway(app, app_state)
    _add_middleware(app, app_state, audit)
    return app


def _lifespan(app_state: AppState, audit: AuditLog) -> Lifespan[FastAPI]:
    """Runs the upkeep for as long as the application serves."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        keeping = [
            asyncio.create_task(_housekeeping(app_state)),
            asyncio.create_task(remove_history(app_state)),
            asyncio.create_task(tend(app_state)),
            asyncio.create_task(_try_storage(app_state)),
            asyncio.create_task(_keep_reserve(app_state)),
            asyncio.create_task(_flush(audit)),
            asyncio.create_task(_keep_users(app_state)),
        ]
        yield
        for task in keeping:
            task.cancel()
        audit.flush(all_of_it=True)

    return lifespan


def _add_routes(app: FastAPI) -> None:
    """All but those of the models. The first that fits a request answers it."""
    routers = (
        *(noun.router for noun in _NOUNS),
        batches.estimates,
        cloud_accounts.bills,
        nodes.invitations,
        process.open_router,
        artifacts.open_router,
        sign_in.open_router,
        sign_in.browsers,
        sign_in.commands,
        docs_page.make_router(app.openapi),
        web_page.router,
        agents.router,
        job_streams.sockets,
    )
    for router in routers:
        app.router.routes.extend(router.routes)


def _add_gateway(app: FastAPI, app_state: AppState) -> None:
    """The API of OpenAI; what is asked most comes before all other routes."""
    manager = app_state.manager
    residency = app_state.settings.residency
    gateway = Gateway(
        manager.residents.request_queues,
        manager.replicas,
        residency.timeout_s,
        manager.models.why_not,
        residency.silent_s or None,
    )
    app.include_router(make_router(gateway), dependencies=[Depends(document_token)])
    app.router.routes.insert(0, DirectRoute(gateway))


def _add_middleware(app: FastAPI, app_state: AppState, audit: AuditLog) -> None:
    """What each request goes through; the last one is the outermost."""
    app.add_middleware(_NoteUse, app_state=app_state)
    if app_state.election:
        # Late: a server that is alone needs no HTTP client.
        from gpuyard.server.forwarding import Forwarding

        app.add_middleware(Forwarding, app_state=app_state)
    app.add_middleware(SharedAnswers, app_state=app_state)
    app.add_middleware(Edge, app_state=app_state, audit=audit)


def _token_sessions(app_state: AppState) -> TokenSessions:
    notes = (app_state.queries.note, app_state.keep_note)
    lasts_s = app_state.settings.sign_in.session_s
    return TokenSessions(SessionSecret(*notes), lasts_s, EndedCookies(*notes))


async def _flush(audit: AuditLog) -> None:
    while True:
        await asyncio.sleep(_HOUSEKEEPING_S)
        audit.flush()


async def _keep_users(app_state: AppState) -> None:
    while True:
        await asyncio.sleep(_HOUSEKEEPING_S)
        if app_state.leads:
            app_state.controller.users.upkeep()
        else:  # another server may have changed them
            with suppress(LedgerError):  # then the next time
                await app_state.controller.users.read_again()
                await app_state.controller.projects.read_again()


class _NoteUse:
    """Notes when the server was last used."""

    def __init__(self, app: ASGIApp, app_state: AppState) -> None:
        self._app = app
        self._app_state = app_state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._app_state.used_at = time.monotonic()
        await self._app(scope, receive, send)


async def _try_storage(app_state: AppState) -> None:
    """Say at the start that checkpoints cannot be kept.

    Jobs run all the same, and what they save is tried again.
    """
    if problem := await problem_of(app_state.blobs):
        log.warning(
            "checkpoints cannot be kept: see [storage] in the settings",
            place=app_state.blobs.name,
            why=problem,
        )


async def _keep_reserve(app_state: AppState) -> None:
    """Make the reserve, and make it again when there is room after a full disk."""
    reserve = app_state.controller.core.ledger.reserve
    while reserve:
        await asyncio.to_thread(reserve.fill)
        await asyncio.sleep(_HOUSEKEEPING_S)


async def _housekeeping(app_state: AppState) -> None:
    """Leave when idle for long enough."""
    while True:
        await asyncio.sleep(_HOUSEKEEPING_S)
        idle_exit_s = app_state.settings.server.idle_exit_s
        # A server that others count on does not leave by itself.
        watches = app_state.settings.verification.watches
        is_needed = app_state.election or app_state.agents_door or watches
        notices = app_state.end_notices
        has_notices = notices is not None and not notices.idle
        if not app_state.controller.idle or is_needed or has_notices:
            app_state.used_at = time.monotonic()
        elif idle_exit_s and time.monotonic() - app_state.used_at > idle_exit_s:
            log.info("leaving: idle", seconds=idle_exit_s)
            app_state.stopping.set()
            return
