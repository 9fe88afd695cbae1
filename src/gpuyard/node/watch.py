"""Watches an attempt while it runs, and reports its output, its checkpoints and the
resources that it uses.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import structlog
from msgspec.structs import replace

from gpuyard.config.settings import NodeSettings
from gpuyard.domain import wire
from gpuyard.domain.masking import Mask
from gpuyard.domain.reasons import Reason
from gpuyard.insight.scalar_files import ScalarReader
from gpuyard.insight.usage_points import UsageSampler
from gpuyard.node.checkpoints import CheckpointWatcher
from gpuyard.node.dataset_copies import NodeDatasets
from gpuyard.node.fetching import Fetching
from gpuyard.node.fixed_delay import FixedDelay
from gpuyard.node.journal import AttemptJournal, JournalEntry
from gpuyard.node.launcher import Process, descendants, find_attempt
from gpuyard.node.linked_blobs import BlobLink, blobs_of
from gpuyard.node.logged_scalars import scalar_reader
from gpuyard.node.masked_log import MaskedLog
from gpuyard.node.output import OutputFollower
from gpuyard.node.package_environments import PackageEnvironments
from gpuyard.node.separation import JobAccounts
from gpuyard.storage.artifact_saving import ArtifactSaver
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.log_times import LogClock
from gpuyard.storage.logfile import LogFile
from gpuyard.storage.place import in_background

_POINTS_PER_REPORT = 5_000
# Most jobs that end sooner print little and save nothing: watching them would cost more
# than running them.
SHORT_S = 0.05
# How often the size of a log is looked at.
_LOOK_S = 0.05
# Logged scalars are looked for so many times more seldom than output, first and later.
_FIRST_SCALARS = 2
_NEXT_SCALARS = 10
# A disk that hangs must not keep a job from ending.
_LAST_SCALARS_S = 10.0
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What an attempt needs from its agent.

    `send` queues a report. `gpus` returns what the last look at the GPUs found, and
    `until_clear` waits until processes that have ended hold no more memory on the given
    ones. `pop_next` returns the prefetched attempt for the place of one that has ended,
    and `begin` starts it. `reaper`: see `LaunchRequest`. `workspaces` is their folder.
    `accounts`: None where all jobs run as the agent does. `default_memory_gb`: the
    memory limit of a job that names none; None for no limit. `fetching`: how to get
    what the server has stored with a submission. `once_long`: the calls that are due
    once a job has run for `SHORT_S`. `runs_others`: whether the agent attends to other
    attempts, too; then `launchers` are the threads that start the process. `settlers`:
    the threads that give it control groups of its own; others may be busy for seconds,
    and its limit of memory begins there. `blob_link`: how checkpoints get to the
    server, on a machine that has joined an instance. `datasets`: those that attempts
    read; `packages`: the environments of those that their programs need. `disk_used`:
    the bytes that each attempt took of the disk at the last look.
    """

    journal: AttemptJournal
    blobs: Blobs
    settings: NodeSettings
    node: str
    send: Callable[[Any], None]
    gpus: Callable[[], list[wire.GpuStatus]]
    pop_next: Callable[[wire.StartAttempt], wire.StartAttempt | None] = lambda _: None
    begin: Callable[[wire.StartAttempt], None] = lambda _: None
    reaper: int | None = None
    home: Path = Path()
    until_clear: Callable[[Collection[str]], Awaitable[None]] | None = None
    workspaces: Path = Path()
    accounts: JobAccounts | None = None
    default_memory_gb: float | None = None
    fetching: Fetching | None = None
    once_long: FixedDelay = field(default_factory=partial(FixedDelay, SHORT_S))
    runs_others: Callable[[], bool] = lambda: False
    launchers: Executor = field(
        default_factory=partial(ThreadPoolExecutor, 2, "launchers")
    )
    settlers: Executor = field(
        default_factory=partial(ThreadPoolExecutor, 2, "settlers")
    )
    disk_used: dict[str, int] = field(default_factory=dict[str, int])
    blob_link: BlobLink | None = None
    datasets: NodeDatasets | None = None
    packages: PackageEnvironments | None = None

    @property
    def is_joined(self) -> bool:
        """Whether this machine has joined: then the folders of jobs are elsewhere."""
        return self.blob_link is not None

    def blobs_of(self, attempt_id: str) -> Blobs:
        """Where the checkpoints of an attempt are."""
        return blobs_of(self.blobs, self.blob_link, attempt_id)


class AttemptWatch:
    """Watches one attempt.

    Call `begin` or `resume` first. `follow_output`, `follow_checkpoints` and
    `sample_usage` then run until they are cancelled.
    """

    def __init__(
        self, record: JournalEntry, context: AgentContext, workdir: Path
    ) -> None:
        self._record = record
        self._context = context
        self._workdir = workdir
        self._id = record.start.attempt_id
        path = context.journal.log_path(self._id)
        self._mask = Mask(record.start.secrets.values())
        self.log = MaskedLog(path, self._mask) if self._mask else LogFile(path)
        self._checkpoints: CheckpointWatcher | None = None
        self._over = asyncio.Event()
        self._saving_stopped = threading.Event()
        # When it was about to be launched, by the clock of its files (UTC seconds).
        self._began_at: float | None = None
        self._log_limit_gb = record.start.log_limit_gb or context.settings.max_log_gb
        self._is_limit_told = False
        self._sampler: UsageSampler | None = None

    @cached_property
    def output(self) -> OutputFollower:
        """What reads the log; made only for a job that prints something."""
        return OutputFollower(self._id, self.log)

    @cached_property
    def _clock(self) -> LogClock:
        """Notes when output came; made only for a job whose log is looked at."""
        return LogClock(self.log.path)

    def end(self) -> None:
        """The attempt's process has ended: `follow_output` and `follow_checkpoints`
        finish their current step and return.
        """
        self._over.set()

    async def _pause(self, seconds: float) -> bool:
        """Wait; False once the attempt is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return not self._over.is_set()

    def stop_saving(self) -> None:
        """Save no more artifacts: nobody waits for them."""
        self._saving_stopped.set()

    async def save_artifacts(self, ended: wire.Ended) -> None:
        """Save and report its artifacts, if such an end is one that has them."""
        order = self._record.start.artifacts
        if order is None or not self._has_artifacts(ended, always=order.always):
            return
        saver = ArtifactSaver(
            self._id,
            order,
            self._context.settings,
            self._context.blobs_of(self._id),
            owner=self._record.uid,
            linked_folders=True,
            shown=self._mask.hide_text,
            stopped=self._saving_stopped,
        )
        began_at = self._began_at or self._record.started_at or time.time()
        for saved in await in_background(saver.save, self._workdir, began_at):
            self._record.artifacts.append(saved)
            self._context.journal.note_artifacts(saved)
            self._context.send(saved)

    def _has_artifacts(self, ended: wire.Ended, *, always: bool) -> bool:
        if Reason.of(ended.stopped).work_goes_on:
            return False
        is_completed = ended.exit_code == 0 and not (ended.stopped or ended.reason)
        return is_completed or always

    def begin(self, workdir: Path) -> None:
        """Call this before the launch: files that exist already are not the attempt's,
        which works in `workdir`.

        Blocks on the disk.
        """
        self._over.clear()
        self._workdir = workdir
        self._began_at = time.time()
        if self._record.start.checkpoint_path:
            self._checkpoints = self._watcher(time.time())
            self._checkpoints.ignore_existing()

    def resume(self) -> None:
        """Call this after a restart of the agent: what the previous one reported is not
        new.

        Blocks on the disk.
        """
        self._checkpoints = self._watcher(self._record.started_at or time.time())
        self._checkpoints.remember(self._record.checkpoints)

    def _watcher(self, began_at: float) -> CheckpointWatcher:
        start = self._record.start
        blobs = self._context.blobs_of(self._id)
        return CheckpointWatcher(
            start,
            self._workdir,
            began_at,
            blobs,
            self.output.step_at,
            owner=self._record.uid,
        )

    @property
    def newest_checkpoint_ns(self) -> int:
        """When the newest checkpoint was written, in ns since the epoch; 0 when there
        is none.
        """
        return self._checkpoints.newest_ns if self._checkpoints else 0

    def log_size(self) -> int:
        """Bytes of output so far; 0 where there is no log."""
        try:
            return self.log.size()
        except FileNotFoundError:
            return 0

    def hide_secrets(self) -> None:
        """Nobody writes to the log any more: hide the last secrets in it, and forget
        them.
        """
        if isinstance(self.log, MaskedLog):
            self.log.complete()
        self._context.journal.forget_secrets(self._id)

    async def follow_output(self) -> None:
        """Report the output as it comes, and keep the log below its limit."""
        while await self._pause(self._context.settings.progress_s):
            self.output.note_size(self.log_size(), time.time())
            self.report_output(await asyncio.to_thread(self._look))
            try:
                if isinstance(self.log, MaskedLog):
                    await asyncio.to_thread(self.log.overwrite)
                await self._limit_log()
            except OSError as error:
                log.warning(
                    "the log could not be capped or masked",
                    attempt=self._id,
                    error=str(error),
                )

    async def follow_scalars(self, pid: int) -> None:
        """Report what the program logs to event files; `pid`: its first process. A
        program that ends at once is not looked at.
        """
        began_at = self._record.started_at or self._began_at or time.time()
        pids = partial(descendants, pid)
        owner = self._record.uid
        reader = scalar_reader(self._workdir, began_at, pids, owner=owner)
        first_s = _FIRST_SCALARS * self._context.settings.progress_s
        next_s = _NEXT_SCALARS * self._context.settings.progress_s
        begun = time.monotonic()
        if not await self._pause(first_s):
            return
        goes_on = True
        while goes_on:
            await self._look_at_scalars(reader)
            # Files count that are open now, so it looks often while a job is young.
            young_s = (time.monotonic() - begun) / 2
            pause_s = min(max(young_s, first_s), next_s)
            goes_on = await self._pause(max(pause_s, reader.rest_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SCALARS_S):
                await self._look_at_scalars(reader, last=True)

    async def _look_at_scalars(
        self, reader: ScalarReader, *, last: bool = False
    ) -> None:
        try:
            found = await in_background(reader.look, last=last)
        except Exception:  # what a program writes is anything, and the job goes on
            log.exception("event files could not be read", attempt=self._id)
            return
        if found:
            self.output.add_logged(found)

    def _look(self) -> wire.ProgressSeen | None:
        """Note how long the log is now, and read what is new in it."""
        with suppress(OSError):  # a full disk costs the times of some lines
            self._clock.note(self.log_size(), time.time())
        return self.output.read_progress()

    async def _limit_log(self) -> None:
        """Keep the log below its limit, and tell once when it has reached it."""
        if not self.log.is_over(self._log_limit_gb):
            return
        limited = await asyncio.to_thread(self.log.limit, self._log_limit_gb)
        if self._is_limit_told:
            return
        self._is_limit_told = True
        if not limited:
            problem = "a log grows on: its file system cannot free a part of a file"
            log.warning(problem, attempt=self._id)
        else:
            told = wire.UsageSeen(self._id, log_limit_gb=self._log_limit_gb)
            self._context.send(told)

    async def follow_growth(self) -> None:
        """Note how the log grows, so that it is known which step was printed before a
        checkpoint was written.
        """
        if not self._record.start.checkpoint_path:
            return
        while await self._pause(_LOOK_S):
            self.output.note_size(self.log_size(), time.time())

    def report_output(self, seen: wire.ProgressSeen | None) -> None:
        """Send what the output showed, in parts that fit into a frame."""
        if seen is None:
            return
        for first in range(0, max(len(seen.points), 1), _POINTS_PER_REPORT):
            points = seen.points[first : first + _POINTS_PER_REPORT]
            self._context.send(replace(seen, points=points))

    async def sample_usage(self, process: Process) -> None:
        """Report what the attempt uses, at the interval `usage_s`."""
        every_s = self._context.settings.usage_s
        began = self._record.started_at or time.time()
        sampler = UsageSampler(
            process,
            self._record.start.gpu_uuids,
            self._context.gpus,
            began,
            every_s,
            partial(self._context.disk_used.get, self._id),
        )
        self._sampler = sampler
        while True:
            points = await asyncio.to_thread(sampler.sample, time.time())
            self._context.send(wire.UsageSeen(self._id, points))
            await asyncio.sleep(every_s)

    @property
    def gpu_usage(self) -> dict[str, float]:
        """What it used of its GPUs since this agent has watched it; empty if that is
        not known.
        """
        return self._sampler.gpu_usage() if self._sampler else {}

    async def follow_checkpoints(self) -> None:
        """Report checkpoints as they are completed."""
        if not self._record.start.checkpoint_path:
            return
        while await self._pause(self._context.settings.checkpoint_scan_s):
            await self.report_checkpoints()

    async def report_checkpoints(self, *, last: bool = False) -> None:
        """Report checkpoints completed since the last call; `last`: the attempt has
        ended by itself.
        """
        if self._checkpoints is None or not self._record.start.checkpoint_path:
            return
        pids = partial(find_attempt, self._id, self._record.uid)
        for item in await in_background(self._checkpoints.scan, pids, last=last):
            # A secret may stand in the name of a file.
            shown = replace(item, path=self._mask.hide_text(item.path))
            self._record.checkpoints.append(shown)
            self._context.journal.note_checkpoint(shown)
            self._context.send(shown)
