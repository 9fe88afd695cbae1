"""Compresses the output of attempts that have ended on this node, and deletes it when
it is old, whether a server asks for it or not: a node may be away when its jobs are
forgotten.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from gpuyard.config.clock_jumps import ClockJumps
from gpuyard.config.retention import RetentionSettings, before
from gpuyard.node.fetching import sweep_fetched
from gpuyard.node.journal import AttemptJournal
from gpuyard.storage.logfile import LogFile
from gpuyard.storage.packed_log import pack, packed_path

_EVERY_S = 3600.0
# Smaller logs stay as they are.
_PACKED_BYTES = 4 << 20
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
        await asyncio.to_thread(pack_settled, journal)
        await asyncio.sleep(_EVERY_S)


def sweep(journal: AttemptJournal, settings: RetentionSettings, now: float) -> None:
    """Delete logs after `logs_days`, and what jobs wrote to folders of their own after
    `jobs_days`.
    """
    logs_before = before(settings.logs_days, now)
    if logs_before is not None:
        old = journal.settled_before(logs_before, folders=False)
        _delete_each(old, journal.delete_log)
    folders_before = before(settings.jobs_days, now)
    if folders_before is not None:
        old = journal.settled_before(folders_before, folders=True)
        _delete_each(old, lambda it: journal.discard([it]))


def pack_settled(journal: AttemptJournal, least: int = _PACKED_BYTES) -> None:
    """Compress the logs of at least so many bytes whose attempts are settled. Each is
    whole whenever this is killed.
    """
    for attempt_id in journal.settled_before(math.inf, folders=False):
        path = journal.log_path(attempt_id)
        try:
            if packed_path(path).exists():
                # An agent was killed before it had removed the log itself.
                path.unlink(missing_ok=True)
            elif LogFile(path).size() >= least:
                pack(path)
        except OSError as error:
            log.warning(
                "a log cannot be compressed", attempt=attempt_id, error=str(error)
            )


def _delete_each(attempt_ids: Iterable[str], delete: Callable[[str], None]) -> None:
    """Call `delete` for each; one that fails is not in the way of the others."""
    for attempt_id in attempt_ids:
        try:
            delete(attempt_id)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this one
            log.warning(
                "old output cannot be deleted", attempt=attempt_id, error=str(error)
            )
