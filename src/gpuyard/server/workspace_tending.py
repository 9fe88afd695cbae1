"""Has workspaces measured, and removed that nobody uses."""

import asyncio

import structlog

from gpuyard.server.app_state import AppState

log = structlog.get_logger(__name__)


async def tend_workspaces(app_state: AppState) -> None:
    """Do it for ever, while this server leads. A pass that fails is logged."""
    while True:
        await asyncio.sleep(app_state.settings.workspaces.look_s)
        if not app_state.leads:
            continue
        try:
            await app_state.controller.workspaces.look()
        except Exception:
            log.exception("the workspaces could not be looked at")
