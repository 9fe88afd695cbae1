"""Deletes the old output of attempts on this node, whether a server asks for it or
not: a node may be away when its jobs are forgotten.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from gpuyard.config.clock_jumps import ClockJumps
from gpuyard.config.retention import RetentionSettings, before
from gpuyard.node.fetching import sweep_fetched
from gpuyard.node.journal import AttemptJournal

_EVERY_S = 3600.0
log = structlog.get_logger(__name__)


async def sweep_old_output(
    journal: AttemptJournal, settings: RetentionSettings, home: Path
) -> None:
    """Delete now and then, for ever, what `[retention]` says is too old, and what was
    fetched and is not used any more.
    """
    clock = ClockJumps()
    while True:
        if clock.jumped():
            log.warning("the clock was set: no old output is deleted for an hour")
        else:
            try:
                await asyncio.to_thread(sweep, journal, settings, time.time())
                await asyncio.to_thread(sweep_fetched, home, time.time())
            except Exception:
                log.exception("old output cannot be deleted")
        await asyncio.sleep(_EVERY_S)


def sweep(journal: AttemptJournal, settings: RetentionSettings, now: float) -> None:
    """Delete logs after `logs_days`, and what jobs wrote to folders of their own after
    `jobs_days`.
    """
    logs_before = before(settings.logs_days, now)
    if logs_before is not None:
        old = journal.settled_before(logs_before, folders=False)
        _delete_each(old, lambda it: journal.log_path(it).unlink(missing_ok=True))
    folders_before = before(settings.jobs_days, now)
    if folders_before is not None:
        old = journal.settled_before(folders_before, folders=True)
        _delete_each(old, lambda it: journal.discard([it]))


def _delete_each(attempt_ids: Iterable[str], delete: Callable[[str], None]) -> None:
    """Call `delete` for each; one that fails is not in the way of the others."""
    for attempt_id in attempt_ids:
        try:
            delete(attempt_id)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this one
            log.warning(
                "old output cannot be deleted", attempt=attempt_id, error=str(error)
            )
