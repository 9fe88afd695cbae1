"""One attempt on this node, from its Start to its Ended: launching, watching, stopping."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from gpuyard.config.settings import NodeSettings
from gpuyard.domain import wire
from gpuyard.domain.units import format_gb
from gpuyard.node.checkpoints import CheckpointWatcher
from gpuyard.node.environment import job_command, job_environment
from gpuyard.node.journal import Journal, Record
from gpuyard.node.launcher import Exit, Launch, LaunchError, Limits, LogFile, Process, adopt, find_attempt, spawn
from gpuyard.node.launcher.procfs import stat
from gpuyard.node.output import OutputFollower
from gpuyard.storage.blobs import BlobStore

# After TERM a cancelled job has this long (or its own grace, if shorter) before KILL.
CANCEL_GRACE_S = 10.0
TERM_GRACE_S = 10.0
# A keeper writes an orphan's record within milliseconds; after this it never will.
_RECORD_WAIT_S = 3.0
log = structlog.get_logger(__name__)
Send = Callable[[Any], None]


class AttemptRun:
    """An attempt and its process. `send` queues a report; `record` is what the journal holds of it."""

    def __init__(
        self, record: Record, journal: Journal, blobs: BlobStore, settings: NodeSettings, node: str, send: Send
    ) -> None:
        self.record = record
        self.start = record.start
        self.process: Process | None = None
        self.over = asyncio.Event()
        self._exited = asyncio.Event()
        self._journal = journal
        self._blobs = blobs
        self._settings = settings
        self._node = node
        self._send = send
        self._stop_task: asyncio.Task[None] | None = None
        self._stopped = record.stopping
        self._log = LogFile(journal.log_path(self.start.attempt_id))
        self._output = OutputFollower(self.start.attempt_id, self._log)
        self._private = journal.private(self.start.attempt_id)
        self._workdir = Path(self.start.workdir) if self.start.workdir else self._private / "work"
        self._watcher: CheckpointWatcher | None = None

    @property
    def live(self) -> bool:
        """True until the attempt's end is known and journaled."""
        return self.record.ended is None

    # --- beginning ---

    async def run(self) -> None:
        """Launch and follow to the end."""
        try:
            resume_from = await asyncio.to_thread(self._restore)
            if self._stopped:
                await self._finish(self._ended(Exit()))
                return
            self.process = await asyncio.to_thread(self._spawn, resume_from)
        except LaunchError as error:
            await self._finish(
                wire.Ended(self.start.attempt_id, time.time(), None, reason=error.reason, message=str(error))
            )
            return
        self._note_started(self.process, time.time())
        await self._follow()

    def _restore(self) -> Path | None:
        """Lay the checkpoint to resume from where the program can read it."""
        if not self.start.workdir:
            self._workdir.mkdir(parents=True, exist_ok=True)
        if not self.start.resume_sha256:
            return None
        target = self._private / "resume" / (self.start.resume_name or "checkpoint")
        try:
            self._blobs.restore(self.start.resume_sha256, target, directory=self.start.resume_directory)
        except OSError as error:
            raise LaunchError("bad_resume", f"the checkpoint cannot be restored: {error}") from None  # type: ignore[arg-type]
        return target

    def _spawn(self, resume_from: Path | None) -> Process:
        start = self.start
        memory = int(start.memory_gb * (1 << 30)) if start.memory_gb else None
        limits = Limits(memory, start.cpus, self._settings.max_processes)
        return spawn(Launch(
            start.attempt_id, job_command(start, resume_from), job_environment(start, self._node, resume_from),
            self._workdir, self._log.path, limits, start.stdin,
        ))  # fmt: skip

    def _note_started(self, process: Process, at: float) -> None:
        record = self.record
        record.pid, record.start_ticks, record.started_at = process.pid, process.start_ticks, at
        record.monotonic, record.limits = time.monotonic(), process.enforcement
        self._journal.note(
            self.start.attempt_id, pid=process.pid, start_ticks=process.start_ticks, started_at=at,
            monotonic=record.monotonic, limits=process.enforcement,
        )  # fmt: skip
        self._send(wire.Started(self.start.attempt_id, at, process.pid, process.enforcement))

    async def resume(self, exits: Path, keeper_alive: Callable[[], bool], boot_id: str) -> None:
        """Take over from the agent before: adopt the process, report anew what the server may not have heard."""
        record = self.record
        if record.ended:
            self._send(record.ended)
            self.over.set()
            return
        if record.boot_id != boot_id:
            await self._finish(self._ended(Exit(lost=True), "node_rebooted", "the node was rebooted while it ran"))
            return
        if record.pid is None and not self._find_pid():
            await self._finish(
                self._ended(Exit(lost=True), "exit_status_lost", "the agent was killed as it started it")
            )
            return
        assert record.pid is not None
        self.process = adopt(self.start.attempt_id, record.pid, record.start_ticks, exits)
        self._send(
            wire.Started(self.start.attempt_id, record.started_at or time.time(), record.pid, dict(record.limits))
        )
        await self._follow(keeper_alive)

    def _find_pid(self) -> bool:
        """The agent died between the spawn and its note: the process is found by the id in its environment."""
        pids = find_attempt(self.start.attempt_id)
        found = stat(pids[0]) if pids else None
        if found is None:
            return False
        self.record.pid, self.record.start_ticks = found.pid, found.start_ticks
        self.record.started_at, self.record.monotonic = time.time(), time.monotonic()
        self._journal.note(self.start.attempt_id, pid=found.pid, start_ticks=found.start_ticks,
                           started_at=self.record.started_at, monotonic=self.record.monotonic)  # fmt: skip
        return True

    # --- following ---

    async def _follow(self, keeper_alive: Callable[[], bool] | None = None) -> None:
        process = self.process
        assert process is not None
        began = self.record.started_at or time.time()
        self._watcher = CheckpointWatcher(self.start, self._workdir, began, self._blobs, lambda: self._output.step)
        self._watcher.remember(self.record.checkpoints)
        helpers = [asyncio.create_task(work) for work in (self._look(), self._scan(), self._timers())]
        if self._stopped:
            self.stop(self._stopped)
        try:
            await _until_ended(process)
        finally:
            self._exited.set()
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        found = await self._exit_of(process, keeper_alive)
        await self._finish(self._ended(found))

    async def _exit_of(self, process: Process, keeper_alive: Callable[[], bool] | None) -> Exit:
        deadline = time.monotonic() + _RECORD_WAIT_S
        while True:
            found = process.exit()
            assert found is not None
            late = time.monotonic() > deadline or keeper_alive is None or not keeper_alive()
            if not found.lost or late:
                return process.exit() or found
            await asyncio.sleep(0.05)

    async def _look(self) -> None:
        """Read the output as it comes, and keep the log within its size."""
        cap = int(self._settings.max_log_gb * (1 << 30))
        while True:
            await asyncio.sleep(self._settings.progress_s)
            seen = await asyncio.to_thread(self._output.look)
            if seen:
                self._send(seen)
            if self._log.size() > cap * 1.25:
                await asyncio.to_thread(self._log.cap, cap)

    async def _scan(self) -> None:
        """Notice checkpoints."""
        if not self.start.checkpoint_path:
            return
        while True:
            await asyncio.sleep(self._settings.checkpoint_scan_s)
            await self._report_checkpoints(last=False)

    async def _report_checkpoints(self, *, last: bool) -> None:
        if self._watcher is None:
            return
        pids = [] if last else await asyncio.to_thread(find_attempt, self.start.attempt_id)
        try:
            saved = await asyncio.to_thread(self._watcher.scan, pids, last=last)
        except OSError as error:
            # A full disk: the job goes on, the checkpoint is tried again with the next scan.
            log.warning("a checkpoint could not be kept", attempt=self.start.attempt_id, error=str(error))
            return
        for item in saved:
            self.record.checkpoints.append(item)
            self._journal.note_checkpoint(item)
            self._send(item)

    async def _timers(self) -> None:
        """Ask for checkpoints in time, and end the attempt when its time is up."""
        start, began = self.start, self.record.monotonic
        number = _number(start.checkpoint_signal) if start.checkpoint_signal else None
        due = began + start.timeout_s if start.timeout_s else float("inf")
        every = start.checkpoint_every_s
        next_signal = began + every if every and number else float("inf")
        while min(due, next_signal) < float("inf"):
            await asyncio.sleep(max(min(due, next_signal) - time.monotonic(), 0))
            if time.monotonic() >= due:
                self.stop("timed_out")
                return
            if number and every and self.process and time.monotonic() >= next_signal:
                self.process.signal(number)
                next_signal = time.monotonic() + every

    # --- ending ---

    def stop(self, reason: str, *, checkpoint: bool = False) -> None:
        """End the attempt, once: for the first reason given."""
        if self.process is None:
            self._stopped = self._stopped or reason  # heard before the launch, or right after it
        elif self._stop_task is None and self.live:
            self._stop_task = asyncio.create_task(self._stop(reason, checkpoint or reason != "cancelled"))

    async def _stop(self, reason: str, checkpoint: bool) -> None:
        process = self.process
        if process is None or not process.alive():
            return
        self._stopped = reason
        self._journal.note(self.start.attempt_id, stopping=reason)
        grace_s = self.start.grace_s
        if checkpoint and self.start.checkpoint_signal:
            kept = len(self.record.checkpoints)
            process.signal(_number(self.start.checkpoint_signal))
            await self._wait(grace_s, lambda: len(self.record.checkpoints) > kept)
            grace_s = TERM_GRACE_S
        process.signal(signal.SIGTERM)
        # A stopped process hears TERM only once it goes on.
        process.signal(signal.SIGCONT)
        await self._wait(grace_s if reason != "cancelled" else min(grace_s, CANCEL_GRACE_S), lambda: False)
        if self.live:
            await asyncio.to_thread(process.kill_all)

    async def _wait(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Until the attempt is over, or it is `enough`, or the time has passed."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not enough():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._exited.wait(), 0.05)
            if self._exited.is_set():
                return

    def _ended(self, found: Exit, reason: str = "", message: str = "") -> wire.Ended:
        if not reason and found.lost:
            reason = "exit_status_lost"
            message = "agent and keeper were both killed, so nobody saw how it ended"
        if found.out_of_memory:
            limit = f" of {format_gb(self.start.memory_gb)}" if self.start.memory_gb else ""
            reason, message = "out_of_memory", f"the kernel killed it at its memory limit{limit}"
        usage = asdict(self.process.usage()) if self.process else {}
        return wire.Ended(
            self.start.attempt_id, time.time(), self.record.started_at, found.code, found.signal, reason,
            self._stopped, message, {name: round(value, 3) for name, value in usage.items()},
        )  # fmt: skip

    async def _finish(self, ended: wire.Ended) -> None:
        """Journal the end, clean up, report what came last, then the end itself."""
        seen = await asyncio.to_thread(self._output.look, last=True)
        failed = bool(ended.exit_code or ended.signal) and not ended.reason and not ended.stopped
        if failed and self._output.fault:
            ended = _with_reason(ended, self._output.fault)
        self._journal.note(self.start.attempt_id, ended=ended)
        if self.process:
            await asyncio.to_thread(self._clean_up, self.process)
        await self._report_checkpoints(last=True)
        if seen:
            self._send(seen)
        self.record.ended = ended
        self._send(ended)
        self.over.set()

    def _clean_up(self, process: Process) -> None:
        left = process.kill_all()
        if left:
            log.warning("processes could not be killed", attempt=self.start.attempt_id, pids=left)
        process.reap()
        process.cleanup()


def _with_reason(ended: wire.Ended, reason: str) -> wire.Ended:
    return wire.Ended(ended.attempt_id, ended.at, ended.started_at, ended.exit_code, ended.signal, reason,
                      ended.stopped, "its output says so", ended.usage)  # fmt: skip


def _number(name: str) -> int:
    return signal.Signals[f"SIG{name.removeprefix('SIG')}"]


async def _until_ended(process: Process) -> None:
    """Wait for the leader's pidfd; an adopted process that is gone already has none."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.dup(process.fileno())
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
