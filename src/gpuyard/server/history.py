"""Has history removed whose time is over: every hour, and when the journal is long."""

import asyncio
import time

import structlog

from gpuyard.config.clock_jumps import ClockJumps
from gpuyard.domain.errors import LedgerError
from gpuyard.server.app_state import AppState

_LOOK_S = 5.0
_PASS_S = 3600.0
# How many times as long as it should be the journal may get before the hour is over.
_LONG_JOURNAL = 1.2
log = structlog.get_logger(__name__)


async def remove_history(app_state: AppState) -> None:
    """Remove it for ever, while this server leads. A pass that fails is repeated an
    hour later.
    """
    clock = ClockJumps()
    ran_at = time.monotonic()
    while True:
        await asyncio.sleep(_LOOK_S)
        if not app_state.leads:
            continue
        try:
            if not await _is_due(app_state, ran_at):
                continue
            if not clock.jumped():
                await app_state.controller.retention.run()
                ran_at = time.monotonic()
                continue
            log.warning("the clock was set: no history is removed for an hour")
        except LedgerError as error:
            log.warning("history could not be removed", error=str(error))
        except Exception:
            log.exception("history could not be removed")
        await asyncio.sleep(_PASS_S)


async def _is_due(app_state: AppState, ran_at: float) -> bool:
    if time.monotonic() - ran_at > _PASS_S:
        return True
    longest = _LONG_JOURNAL * app_state.settings.ledger.keep_events
    return await asyncio.to_thread(app_state.queries.journal_length) > longest
