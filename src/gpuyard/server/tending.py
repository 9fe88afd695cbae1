"""Looks after what jobs share, while this server leads: workspaces are measured, and
removed when nobody uses them; chunks of uploads that nobody finished are removed; the
bills of clouds are compared.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from gpuyard.server.app_state import AppState

_RARELY_S = 3600.0
log = structlog.get_logger(__name__)


async def tend(app_state: AppState) -> None:
    """Do it for ever. What fails is logged, and tried again the next time."""
    rarely_at = 0.0
    while True:
        await asyncio.sleep(app_state.settings.workspaces.look_s)
        if not app_state.leads:
            continue
        await _look_after("workspaces", app_state.controller.workspaces.look)
        if time.monotonic() >= rarely_at:
            rarely_at = time.monotonic() + _RARELY_S
            await _look_after(
                "datasets", app_state.controller.datasets.remove_abandoned
            )
            await _look_after("bills", app_state.controller.cloud_bills.look)


async def _look_after(what: str, work: Callable[[], Awaitable[object]]) -> None:
    try:
        await work()
    except Exception:
        log.exception("could not be looked after", what=what)
