"""What a restarted agent finds out about an attempt that the previous agent began."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpuyard.domain import wire
from gpuyard.node.clocks import start_of
from gpuyard.node.journal import AttemptJournal, JournalEntry, own_keeper
from gpuyard.node.launcher import NEVER_STARTED, Exit, Process, find_attempt
from gpuyard.node.launcher.procfs import stat

# A keeper writes an orphan's record the next time it looks around. One that is stopped
# does so before it is replaced.
_RECORD_WAIT_S = 20.0


def find_process(record: JournalEntry, journal: AttemptJournal, exits: Path) -> bool:
    """Find the process of an attempt whose agent died before it noted the pid, and note
    it in the record; False when there is none.

    A live process has the attempt's id in its environment. Of one that has ended, the
    keeper read that id before, and wrote it into the exit record in `exits`. The first
    process may have ended before others that it has left behind.
    """
    attempt_id = record.start.attempt_id
    candidates = [*_alive(record), *_recorded(record, exits)]
    if not candidates:
        return False
    leader = min(candidates)
    record.pid = leader.pid
    record.start_ticks = leader.start_ticks
    record.started_at = time.time()
    record.monotonic = time.monotonic()
    record.boot_s = start_of(record.start_ticks)
    journal.note(
        attempt_id,
        pid=record.pid,
        start_ticks=record.start_ticks,
        started_at=record.started_at,
        monotonic=record.monotonic,
        boot_s=record.boot_s,
    )
    return True


def never_ran(record: JournalEntry, exits: Path) -> bool:
    """True when an attempt whose process was not found cannot have run.

    If it had run and ended, the keeper would have recorded that, provided that the same
    keeper was there all the time. The exit record would name this attempt (then
    `find_process` found it) or no attempt, if the keeper could not tell whose process
    it was.
    """
    for exit_record in _exit_records(exits):
        if not exit_record["attempt"] and exit_record["at"] >= record.intended_at:
            return False
    return record.keeper == own_keeper() != 0


def without_lost_next(ended: wire.Ended, journal: AttemptJournal) -> wire.Ended:
    """The end without its `prefetched_next` if that was never begun: the previous agent
    may have died after it noted the end and before it started the next attempt.
    """
    if ended.prefetched_next and not journal.holds(ended.prefetched_next):
        return replace(ended, prefetched_next="")
    return ended


async def recorded_exit(
    process: Process, folder: Path, keeper_alive: Callable[[], bool] | None
) -> Exit:
    """How the process ended; waits while a living keeper may still record it in the
    node's folder.
    """
    deadline = time.monotonic() + _RECORD_WAIT_S
    since = time.time()
    while True:
        found = process.exit()
        assert found is not None
        if not found.lost:
            return found
        keeper_works = keeper_alive is not None and keeper_alive()
        is_due = not _keeper_has_looked(folder, since)
        may_be_recorded = keeper_works and is_due and time.monotonic() <= deadline
        if not may_be_recorded:
            return process.exit() or found
        await asyncio.sleep(0.05)


def _keeper_has_looked(folder: Path, since: float) -> bool:
    """Whether the keeper of the node's folder has looked around since a time (UTC
    seconds).

    An end that it has not recorded by then is none of its.
    """
    try:
        return (folder / "keeper.pulse").stat().st_mtime > since
    except OSError:
        return False


def _user_of(record: JournalEntry) -> int:
    """The user whom the attempt's program was started as."""
    return os.getuid() if record.uid is None else record.uid


@dataclass(frozen=True, order=True, slots=True)
class _Candidate:
    """A process of an attempt that may be its first one. All others descend from that,
    so it is the oldest of those that lead a session and ran its program.
    """

    never_ran: bool
    leads_no_session: bool
    start_ticks: int
    pid: int


def _alive(record: JournalEntry) -> Iterator[_Candidate]:
    for pid in find_attempt(record.start.attempt_id, _user_of(record)):
        process = stat(pid)
        if process:
            leads_no_session = process.session != pid
            yield _Candidate(False, leads_no_session, process.start_ticks, pid)


def _recorded(record: JournalEntry, exits: Path) -> Iterator[_Candidate]:
    """Those that have ended; a keeper records only what leads a session."""
    user = _user_of(record)
    for ended in _exit_records(exits):
        # Others could claim the id of the attempt, but not the account.
        is_claimed = ended.get("uid", user) != user
        if ended["attempt"] == record.start.attempt_id and not is_claimed:
            never_ran = ended["signal"] == NEVER_STARTED
            yield _Candidate(never_ran, False, ended["start_ticks"], ended["pid"])


def _exit_records(exits: Path) -> Iterator[dict[str, Any]]:
    """What keepers recorded of the orphans that they reaped."""
    for path in exits.glob("*.json"):
        with suppress(OSError, ValueError):
            yield json.loads(path.read_text())
