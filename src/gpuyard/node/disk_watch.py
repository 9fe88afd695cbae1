"""Watches the disk of a node's home: how full it is, and how much of it each running
job takes.

A job takes what its log and its checkpoints take, and what was written to its folders
since it began. A file in a folder that jobs share counts for the job that was seen with
it open for writing, or else for each of them.
"""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from gpuyard.domain import wire
from gpuyard.domain.wire_types import DiskUser
from gpuyard.node.attempt import AttemptRun
from gpuyard.node.checkpoints import Inode, inode_of, open_for_writing
from gpuyard.node.launcher import find_attempt
from gpuyard.node.watch import AgentContext

# How often the free space is read, which costs nothing. When so much more of the disk
# is used than at the last look, the files are looked at before their time.
_GLANCE_S = 1.0
_FAST_SHARE = 0.02
# The clock of a file system is a little behind.
_CLOCK_S = 1.0
# The most that is looked at of a folder: it may have millions of files.
_MOST_ENTRIES = 20_000
_MOST_USERS = 8
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Where the files of a running attempt are.

    It began at `began_at` (UTC seconds); `stored` bytes of checkpoints were copied.
    `pids` finds its processes. `note` is told how many bytes it takes, at each look.
    """

    attempt_id: str
    log: Path
    folders: tuple[Path, ...]
    began_at: float
    stored: int = 0
    pids: Callable[[], Iterable[int]] = tuple
    note: Callable[[int], object] = lambda _: None


def running_files(
    attempts: Iterable[AttemptRun], context: AgentContext
) -> list[JobFiles]:
    """Where the files of those attempts are that run."""
    running = [attempt for attempt in attempts if attempt.live and attempt.process]
    ids = {attempt.start.attempt_id for attempt in running}
    for ended in context.disk_used.keys() - ids:
        del context.disk_used[ended]
    return [_files_of(attempt, context) for attempt in running]


def _files_of(attempt: AttemptRun, context: AgentContext) -> JobFiles:
    record = attempt.record
    start = attempt.start
    journal = context.journal
    folders = {journal.private(start.attempt_id), attempt.starter.workdir}
    if start.workdir:
        folders.add(Path(start.workdir))
    if start.workspace:
        workspace = context.workspaces / start.workspace
        if not workspace.is_symlink():  # a job may put a link in its place
            folders.add(workspace)
    kept = record.checkpoints[-context.settings.keep_checkpoints :]
    is_folder = Path(context.blobs.name).is_relative_to(context.home)
    are_here = is_folder and not context.is_joined
    return JobFiles(
        start.attempt_id,
        journal.log_path(start.attempt_id),
        _outermost(folders),
        record.started_at or record.intended_at,
        sum({saved.sha256: saved.size for saved in kept}.values()) if are_here else 0,
        partial(find_attempt, start.attempt_id, record.uid),
        partial(context.disk_used.__setitem__, start.attempt_id),
    )


def _outermost(folders: set[Path]) -> tuple[Path, ...]:
    """The folders that lie in none of the others."""
    return tuple(
        folder for folder in folders if not folders.intersection(folder.parents)
    )


@dataclass(frozen=True, slots=True)
class _File:
    inode: Inode
    changed_at: float
    used: int


class DiskWatch:
    """Watches the disk that `home` lies on, every `every_s` seconds.

    `running` returns the files of the attempts that run; `report` gets what was found.
    """

    def __init__(
        self,
        home: Path,
        every_s: float,
        running: Callable[[], Sequence[JobFiles]],
        report: Callable[[wire.DiskStatus], None],
    ) -> None:
        self._home = home
        self._every_s = every_s
        self._running = running
        self._report = report
        # When each attempt was last looked at (monotonic), and what it took then.
        self._before: dict[str, tuple[float, int]] = {}
        # The attempt that was seen with a file of a shared folder open for writing.
        self._writers: dict[Inode, str] = {}

    async def run(self) -> None:
        """Look for ever: when the interval is over, and sooner when the disk fills
        fast.
        """
        looked_at = time.monotonic()
        looked_share = 1.0
        while True:
            await asyncio.sleep(min(_GLANCE_S, self._every_s))
            try:
                share = _used_share(os.statvfs(self._home))
                is_due = time.monotonic() - looked_at >= self._every_s
                if not is_due and share < looked_share + _FAST_SHARE:
                    looked_share = min(looked_share, share)
                    continue
                looked_at = time.monotonic()
                looked_share = share
                jobs = self._running()
                self._report(await asyncio.to_thread(self.look, jobs, time.time()))
            except OSError as error:
                log.warning("the disk cannot be looked at", error=str(error))

    def look(self, jobs: Sequence[JobFiles], now: float) -> wire.DiskStatus:
        """What there is at the time `now` (UTC seconds). Blocks on the disk; OSError.

        A job that was seen for the first time has grown evenly since it began.
        """
        disk = os.statvfs(self._home)
        self._note_writers(jobs)
        scan = _Scan(self._home, self._writers)
        at = time.monotonic()
        users: list[DiskUser] = []
        seen: dict[str, tuple[float, int]] = {}
        for job in jobs:
            log_bytes = scan.used_by_log(job.log)
            used = log_bytes + job.stored + scan.written_by(job)
            seen[job.attempt_id] = (at, used)
            job.note(used)
            began = (at - max(now - job.began_at, 1.0), 0)
            before_at, before = self._before.get(job.attempt_id, began)
            growth = max(used - before, 0) / max(at - before_at, 1e-3)
            users.append(DiskUser(job.attempt_id, used, log_bytes, round(growth)))
        self._before = seen
        users.sort(key=lambda user: (user.used, user.log), reverse=True)
        total = _blocks(disk) * disk.f_frsize
        free = disk.f_bavail * disk.f_frsize
        return wire.DiskStatus(str(self._home), total, free, users[:_MOST_USERS])

    def _note_writers(self, jobs: Sequence[JobFiles]) -> None:
        """Look at who has files open, of the jobs that share a folder."""
        running = {job.attempt_id for job in jobs}
        self._writers = {
            inode: attempt_id
            for inode, attempt_id in self._writers.items()
            if attempt_id in running
        }
        uses = Counter(folder for job in jobs for folder in job.folders)
        for job in jobs:
            if any(uses[folder] > 1 for folder in job.folders):
                opened = open_for_writing(job.pids())
                self._writers |= dict.fromkeys(opened, job.attempt_id)


def _blocks(disk: os.statvfs_result) -> int:
    """The blocks of a disk, without what is kept for root, as `df` has it."""
    return disk.f_blocks - disk.f_bfree + disk.f_bavail


def _used_share(disk: os.statvfs_result) -> float:
    """How full a disk is, from 0 to 1."""
    blocks = _blocks(disk)
    return 1 - disk.f_bavail / blocks if blocks else 0.0


class _Scan:
    """One look at folders, each of which is read once. `writers`: the attempts that
    are known to write a file.
    """

    def __init__(self, home: Path, writers: Mapping[Inode, str]) -> None:
        self._home = os.fspath(home)
        self._writers = writers
        self._device = home.stat().st_dev
        self._files: dict[Path, list[_File]] = {}

    def used_by_log(self, path: Path) -> int:
        """The bytes on the disk that the log takes."""
        try:
            return path.lstat().st_blocks * 512
        except OSError:
            return 0

    def written_by(self, job: JobFiles) -> int:
        """The bytes on the disk in files of its folders that changed since it began,
        without those that another job writes.
        """
        attempt_id = job.attempt_id
        since = job.began_at - _CLOCK_S
        return sum(
            file.used
            for folder in job.folders
            for file in self._files_of(folder)
            if file.changed_at >= since
            and self._writers.get(file.inode, attempt_id) == attempt_id
        )

    def _files_of(self, folder: Path) -> list[_File]:
        if folder not in self._files:
            self._files[folder] = list(self._walk(folder))
        return self._files[folder]

    def _walk(self, folder: Path) -> Iterator[_File]:
        """The files on the home's disk in `folder`, from the top down; no link is
        followed, and the home itself is left out.
        """
        if not self._is_on_our_disk(folder):
            return  # a file server may need long for all of its files
        left = _MOST_ENTRIES
        waiting = deque([os.fspath(folder)])
        while waiting:
            for entry, status in _entries(waiting.popleft()):
                if left <= 0:
                    return
                left -= 1
                if status.st_dev != self._device or entry.path == self._home:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    # A copied file may have an old time of its content.
                    used = status.st_blocks * 512
                    yield _File(inode_of(status), status.st_ctime, used)

    def _is_on_our_disk(self, folder: Path) -> bool:
        try:
            return folder.stat().st_dev == self._device
        except OSError:
            return False


def _entries(folder: str) -> Iterator[tuple["os.DirEntry[str]", os.stat_result]]:
    """The entries of a folder; what is gone meanwhile or closed to us is left out."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    yield entry, entry.stat(follow_symlinks=False)
                except OSError:
                    continue
    except OSError:
        return
