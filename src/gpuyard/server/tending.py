"""Looks after what jobs share, while this server leads: workspaces are measured, and
removed when nobody uses them; chunks of uploads that nobody finished are removed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from gpuyard.server.app_state import AppState

_DATASETS_S = 3600.0
log = structlog.get_logger(__name__)


async def tend(app_state: AppState) -> None:
    """Do it for ever. What fails is logged, and tried again the next time."""
    datasets_at = 0.0
    while True:
        await asyncio.sleep(app_state.settings.workspaces.look_s)
        if not app_state.leads:
            continue
        await _try("workspaces", app_state.controller.workspaces.look)
        if time.monotonic() >= datasets_at:
            datasets_at = time.monotonic() + _DATASETS_S
            await _try("datasets", app_state.controller.datasets.remove_abandoned)


async def _try(what: str, work: Callable[[], Awaitable[object]]) -> None:
    try:
        await work()
    except Exception:
        log.exception("could not be looked after", what=what)
