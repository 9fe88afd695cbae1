"""Deletes the old output of attempts on this node, whether a server asks for it or
not: a node may be away when its jobs are forgotten.
"""

import asyncio
import time

import structlog

from gpuyard.config.retention import RetentionSettings, before
from gpuyard.node.journal import AttemptJournal

_EVERY_S = 3600.0
log = structlog.get_logger(__name__)


async def sweep_old_output(
    journal: AttemptJournal, settings: RetentionSettings
) -> None:
    """Delete now and then, for ever, what `[retention]` says is too old."""
    while True:
        try:
            await asyncio.to_thread(sweep, journal, settings, time.time())
        except OSError as error:
            log.warning("old output cannot be deleted", error=str(error))
        await asyncio.sleep(_EVERY_S)


def sweep(journal: AttemptJournal, settings: RetentionSettings, now: float) -> None:
    """Delete logs after `logs_days`, and what jobs wrote to folders of their own after
    `jobs_days`.
    """
    logs_before = before(settings.logs_days, now)
    if logs_before is not None:
        for attempt_id in journal.settled_before(logs_before, folders=False):
            journal.log_path(attempt_id).unlink(missing_ok=True)
    folders_before = before(settings.jobs_days, now)
    if folders_before is not None:
        journal.discard(journal.settled_before(folders_before, folders=True))
