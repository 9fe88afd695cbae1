"""Watching an attempt while it runs: its output, its checkpoints, what it uses. What is seen goes out as reports."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from gpuyard.config.settings import NodeSettings
from gpuyard.domain import wire
from gpuyard.node.checkpoints import CheckpointWatcher
from gpuyard.node.journal import Journal, Record
from gpuyard.node.launcher import LogFile, Process, find_attempt
from gpuyard.node.output import OutputFollower
from gpuyard.node.sampling import UsageSampler
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background

_POINTS_A_REPORT = 5_000
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an attempt needs of its agent. `send` queues a report; `gpus` is what the last look at them found, and
    `until_clear` returns when the memory of some is free of processes that are gone.

    `successor` gives the attempt that takes the place of one that has ended, and `begin` starts it. `reaper`: see
    `Launch`. `workspaces` is the folder that holds them.
    """

    journal: Journal
    blobs: Blobs
    settings: NodeSettings
    node: str
    send: Callable[[Any], None]
    gpus: Callable[[], list[wire.Gpu]]
    successor: Callable[[wire.Start], wire.Start | None] = lambda _: None
    begin: Callable[[wire.Start], None] = lambda _: None
    reaper: int | None = None
    home: Path = Path()
    until_clear: Callable[[Collection[str]], Awaitable[None]] | None = None
    workspaces: Path = Path()


class Watch:
    """One attempt's watch. `begin` or `resume` comes first; `look`, `scan` and `sample` then run until cancelled."""

    def __init__(self, record: Record, around: Surroundings, workdir: Path) -> None:
        self._record = record
        self._around = around
        self._workdir = workdir
        self._id = record.start.attempt_id
        self.log = LogFile(around.journal.log_path(self._id))
        self.output = OutputFollower(self._id, self.log)
        self._checkpoints: CheckpointWatcher | None = None
        self._over = asyncio.Event()

    def end(self) -> None:
        """The attempt's process is gone: `look` and `scan` finish what they are at and return."""
        self._over.set()

    async def _pause(self, seconds: float) -> bool:
        """Wait; False once the attempt is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return not self._over.is_set()

    def begin(self) -> None:
        """Before the launch: what is there already is not the attempt's work. Blocks on the disk."""
        self._over.clear()
        if self._record.start.checkpoint_path:
            self._checkpoints = self._watcher(time.time())
            self._checkpoints.ignore_existing()

    def resume(self) -> None:
        """After an agent's restart: what it had reported is not new. Blocks on the disk."""
        self._checkpoints = self._watcher(self._record.started_at or time.time())
        self._checkpoints.remember(self._record.checkpoints)

    def _watcher(self, began_at: float) -> CheckpointWatcher:
        start, blobs = self._record.start, self._around.blobs
        return CheckpointWatcher(start, self._workdir, began_at, blobs, lambda: self.output.step)

    @property
    def newest_checkpoint_ns(self) -> int:
        """When the newest checkpoint was written, in ns since the epoch; 0 when there is none."""
        return self._checkpoints.newest_ns if self._checkpoints else 0

    def log_size(self) -> int:
        """Bytes of output so far; 0 where there is no log."""
        try:
            return self.log.size()
        except FileNotFoundError:
            return 0

    async def look(self) -> None:
        """Read the output as it comes, and keep the log within its size."""
        cap = int(self._around.settings.max_log_gb * (1 << 30))
        while await self._pause(self._around.settings.progress_s):
            self.report(await asyncio.to_thread(self.output.look))
            try:
                if self.log.size() - self.log.start() > cap * 1.25:
                    await asyncio.to_thread(self.log.cap, cap)
            except OSError as error:
                log.warning("the log could not be capped", attempt=self._id, error=str(error))

    def report(self, seen: wire.ProgressSeen | None) -> None:
        """Send what the output told, in parts that a frame can hold."""
        points = seen.points if seen else []
        for first in range(0, max(len(points), 1), _POINTS_A_REPORT) if seen else ():
            part = points[first : first + _POINTS_A_REPORT]
            self._around.send(wire.ProgressSeen(self._id, seen.progress if seen else {}, part))

    async def sample(self, process: Process) -> None:
        """Report what the attempt uses, every so often."""
        every_s, began = self._around.settings.usage_s, self._record.started_at or time.time()
        sampler = UsageSampler(process, self._record.start.gpu_uuids, self._around.gpus, began, every_s)
        while True:
            points = await asyncio.to_thread(sampler.sample, time.time())
            self._around.send(wire.UsageSeen(self._id, points))
            await asyncio.sleep(every_s)

    async def scan(self) -> None:
        """Notice checkpoints."""
        while self._record.start.checkpoint_path and await self._pause(self._around.settings.checkpoint_scan_s):
            await self.report_checkpoints()

    async def report_checkpoints(self, *, last: bool = False) -> None:
        """Report those completed since the last time; `last`: the attempt has ended by itself."""
        if self._checkpoints is None or not self._record.start.checkpoint_path:
            return
        pids = partial(find_attempt, self._id)
        for item in await in_background(self._checkpoints.scan, pids, last=last):
            self._record.checkpoints.append(item)
            self._around.journal.note_checkpoint(item)
            self._around.send(item)
