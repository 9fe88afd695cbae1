"""One attempt on this node, from its StartAttempt to its Ended: it is launched, watched
and stopped.
"""

import asyncio
import math
import signal
import tarfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from gpuyard.domain import wire
from gpuyard.domain.reasons import Reason
from gpuyard.node import adoption
from gpuyard.node.ending import EndReport
from gpuyard.node.journal import JournalEntry
from gpuyard.node.launcher import (
    NEVER_STARTED,
    Exit,
    LaunchError,
    PooledGroup,
    Process,
    adopt,
    end_groups,
)
from gpuyard.node.open_streams import OpenStreams
from gpuyard.node.package_environments import explained_by_packages
from gpuyard.node.run_facts import package_facts
from gpuyard.node.starter import AttemptStarter
from gpuyard.node.stopping import signal_number, stop_process, until_ended
from gpuyard.node.watch import AgentContext, AttemptWatch
from gpuyard.storage.blobs import BucketError
from gpuyard.storage.logfile import LogFile
from gpuyard.storage.place import in_background

_SMALL_LOG_BYTES = 1 << 16
# A shell gives these exit codes when its child was killed, which may have been writing
# a checkpoint at that moment.
_KILLED = frozenset(
    128 + number
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
)
log = structlog.get_logger(__name__)
Result = TypeVar("Result")


class AttemptRun:
    """An attempt and its process; `record` is what the journal knows about it."""

    def __init__(
        self,
        record: JournalEntry,
        context: AgentContext,
        first_group: PooledGroup | None = None,
    ) -> None:
        """`first_group`: the group of the pool in which it begins, if any."""
        self.record = record
        self.start = record.start
        self.process: Process | None = None
        self._context = context
        self._first_group = first_group
        self._journal = context.journal
        self._send = context.send
        self._exited = asyncio.Event()
        self._stop_task: asyncio.Task[None] | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._timing: list[asyncio.Task[None]] = []
        self._stopped = record.stopping
        self._end = EndReport(record, context.default_memory_gb)
        self.streams = OpenStreams(record, context.journal)
        self.starter = AttemptStarter(record, context)
        self._watch = AttemptWatch(record, context, self.starter.workdir)

    @property
    def live(self) -> bool:
        """True until the attempt's end is known and journaled."""
        return self.record.ended is None

    def as_held(self) -> wire.HeldAttempt:
        """What the agent says of it when it greets a server."""
        start = self.start
        if self.process is None:
            state = "running" if self.live else "ended"
            return wire.HeldAttempt(start.attempt_id, start.token, state)
        pid = self.process.pid
        if not self.live:
            return wire.HeldAttempt(start.attempt_id, start.token, "ended", pid)
        ran_s = self._end.ran_s(None)
        return wire.HeldAttempt(start.attempt_id, start.token, "running", pid, ran_s)

    @property
    def log(self) -> LogFile:
        """Its output."""
        return self._watch.log

    # --- launching and adopting ---

    async def run(self) -> None:
        """Launch the attempt and follow it to its end."""
        try:
            await self.fetch(self.starter.workdir)
            if self._stopped:
                await self._finish(self._ended(Exit()))
                return
            resume_from = await self._maybe_in_thread(self._prepare)
        except BucketError as error:
            await self._not_started(Reason.STORAGE_UNREACHABLE, error)
            return
        except LaunchError as error:
            await self._not_started(error.reason, error)
            return
        except (OSError, tarfile.TarError) as error:
            resumes = bool(self.start.resume_sha256)
            reason = Reason.BAD_RESUME if resumes else Reason.WORKDIR_MISSING
            await self._not_started(reason, error)
            return
        if self._stopped:
            await self._finish(self._ended(Exit()))
            return
        try:
            self.process = await self._launched(resume_from)
        except LaunchError as error:
            await self._not_started(error.reason, error)
            return
        except ValueError as error:
            await self._not_started(Reason.INVALID_ARGUMENT, error)
            return
        self._report_started(self.record.started_at or 0, self.process.enforcement)
        await self._follow()

    async def fetch(self, workdir: Path | None = None) -> None:
        """Have here its environment, and its code for `workdir`; LaunchError."""
        if self._context.fetching:
            await self._context.fetching.fetch(self.start, workdir)
        # A command beside it finds what the attempt has.
        if workdir and self.start.datasets and self._context.datasets:
            await self._context.datasets.have(
                self.start.datasets, lambda: bool(self._stopped)
            )

    def _report_started(self, at: float, limits: Mapping[str, str]) -> None:
        assert self.process is not None
        pid = self.process.pid
        facts = dict(self.record.facts)
        self._send(wire.Started(self.start.attempt_id, at, pid, dict(limits), facts))

    async def _maybe_in_thread(
        self, work: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Run `work` in a thread if it may block.

        For a simple attempt it takes less time than a switch of threads, so that is
        run here.
        """
        if self.start.resume_sha256:
            return await in_background(work, *arguments)
        if self._may_block:
            return await asyncio.to_thread(work, *arguments)
        return work(*arguments)

    @property
    def _may_block(self) -> bool:
        """Whether it takes more than a moment to start it, as the prologue does."""
        start = self.start
        limited = start.memory_gb or start.cpus
        reads_files = start.checkpoint_path or start.code or start.interactive
        reads_files = reads_files or start.packages
        return bool(reads_files or limited or self._context.accounts)

    async def _launched(self, resume_from: Path | None) -> Process:
        """Launch it; LaunchError or ValueError."""
        is_simple = not self._may_block and not self.start.resume_sha256
        if is_simple and self._context.runs_others():
            # Until the program begins, the kernel holds up the thread that starts it;
            # meanwhile other short jobs end.
            loop = asyncio.get_running_loop()
            launchers = self._context.launchers
            return await loop.run_in_executor(launchers, self._launch, resume_from)
        return await self._maybe_in_thread(self._launch, resume_from)

    async def _not_started(self, reason: str, error: Exception) -> None:
        await self._finish(self._ended(Exit(), reason, str(error)))

    def _prepare(self) -> Path | None:
        """Make the attempt's own working directory, and restore the checkpoint that it
        resumes from; returns the path of that.
        """
        self.starter.prepare()
        self._watch.begin(self.starter.workdir)
        return self.starter.restore()

    def _launch(self, resume_from: Path | None) -> Process:
        """Start the process and note its pid at once: if the agent is killed in
        between, the next one has to search for the process.
        """
        process = self.starter.spawn(resume_from, self._first_group)
        self._first_group = None
        record = self.record
        record.pid = process.pid
        record.start_ticks = process.start_ticks
        record.limits = process.enforcement
        self._journal.note_started(record)
        return process

    async def resume(
        self, exits: Path, keeper_alive: Callable[[], bool], boot_id: str
    ) -> None:
        """Take over from the previous agent: adopt the process, and report again what
        the server may not have received.
        """
        record = self.record
        for saved in (*record.checkpoints, *record.artifacts):
            # The server ignores those that it knows.
            self._send(saved)
        if record.ended:
            await self._resume_ended(record.ended, exits)
            return
        if record.boot_id != boot_id:
            message = "the node was rebooted while it ran"
            await self._lost(Reason.NODE_REBOOTED, message)
            return
        if record.pid is None:
            # The log is opened before the process is started.
            has_log = self._watch.log.path.exists()
            found = has_log and adoption.find_process(record, self._journal, exits)
            if not found and (not has_log or adoption.never_ran(record, exits)):
                await self.run()
                return
            if not found:
                message = "the agent was killed as it started it"
                await self._lost(Reason.EXIT_STATUS_LOST, message)
                return
        assert record.pid is not None
        self.process = self._adopt(record.pid, exits)
        await asyncio.to_thread(self._watch.resume)
        self._report_started(record.started_at or time.time(), record.limits)
        await self._follow(keeper_alive)

    async def _resume_ended(self, ended: wire.Ended, exits: Path) -> None:
        if self.record.pid is not None:
            # The previous agent may have died after it noted the end and before it
            # killed what was left.
            process = self._adopt(self.record.pid, exits)
            await asyncio.to_thread(self._clean_up, process)
        self._send(adoption.without_lost_next(ended, self._journal))

    def _adopt(self, pid: int, exits: Path) -> Process:
        record = self.record
        return adopt(
            self.start.attempt_id,
            pid,
            record.start_ticks,
            exits,
            first_group=record.first_group,
        )

    async def _lost(self, reason: str, message: str) -> None:
        # Nobody knows its processes, but its groups may.
        start = self.start
        await asyncio.to_thread(end_groups, start.attempt_id, self.record.first_group)
        await self._finish(self._ended(Exit(lost=True), reason, message))

    # --- following ---

    async def _follow(self, keeper_alive: Callable[[], bool] | None = None) -> None:
        process = self.process
        assert process is not None
        watching = self._context.once_long.call(partial(self._begin_watching, process))
        if self._stopped:
            self.stop(self._stopped)
        try:
            await until_ended(process)
        finally:
            watching.cancel()
            self._exited.set()
            await self._end_watching()
        folder = self._context.home / "node"
        found = await adoption.recorded_exit(process, folder, keeper_alive)
        if found.signal == NEVER_STARTED:
            await self._start_again(process)
        else:
            await self._finish(self._ended(found))

    async def _settle(self, process: Process) -> None:
        """Give it control groups of its own: it is no short job."""
        if process.settled:
            return
        loop = asyncio.get_running_loop()
        settlers = self._context.settlers
        await loop.run_in_executor(settlers, process.settle, self.starter.limits)
        limits = {**self.record.limits, **process.enforcement}
        if limits != self.record.limits:
            self.record.limits = limits
            self._journal.note(self.start.attempt_id, limits=limits)

    def _begin_watching(self, process: Process) -> None:
        watch = self._watch
        self._watching = [
            asyncio.create_task(self._settle(process)),
            asyncio.create_task(watch.follow_growth()),
            asyncio.create_task(watch.follow_output()),
            asyncio.create_task(watch.follow_checkpoints()),
            asyncio.create_task(watch.follow_scalars(process.pid)),
        ]
        self._timing = [
            asyncio.create_task(watch.sample_usage(process)),
            asyncio.create_task(self._run_timers()),
        ]

    async def _end_watching(self) -> None:
        if not self._watching:
            return
        self._watch.end()
        for task in self._timing:
            task.cancel()
        tasks = [*self._watching, *self._timing]
        for fault in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(fault, Exception):
                log.error(
                    "following an attempt failed",
                    attempt=self.start.attempt_id,
                    exc_info=fault,
                )

    async def _start_again(self, process: Process) -> None:
        """Launch an attempt whose program never ran, because the previous agent was
        killed while it launched it.
        """
        await asyncio.to_thread(self._clean_up, process)
        self.process = None
        # Or an agent that comes in the middle of the launch would adopt the old one,
        # and kill the new one as a remainder of that.
        self.record.pid = None
        self._journal.note(self.start.attempt_id, pid=None)
        self._exited.clear()
        await self.run()

    async def _run_timers(self) -> None:
        """Ask for checkpoints at their interval, and stop it at its timeout."""
        start = self.start
        began = self.record.monotonic
        name = start.checkpoint_signal
        every_s = start.checkpoint_every_s
        stop_at = began + start.timeout_s if start.timeout_s else math.inf
        save_at = began + every_s if every_s and name else math.inf
        while min(stop_at, save_at) < math.inf:
            await asyncio.sleep(max(min(stop_at, save_at) - time.monotonic(), 0))
            if time.monotonic() >= stop_at:
                self.stop(Reason.TIMED_OUT)
                return
            if name and every_s and self.process and time.monotonic() >= save_at:
                self.process.signal(signal_number(name))
                save_at = time.monotonic() + every_s

    # --- ending ---

    def remark(self, text: str) -> None:
        """Add a remark to the message of the attempt's end, unless it ends well."""
        self._end.remark(text)

    def stop(self, reason: str, *, checkpoint: bool = False) -> None:
        """Stop the attempt. Only the first reason counts."""
        if self.process is None:
            # It is not launched yet, or has only just been: `_follow` stops it.
            self._stopped = self._stopped or reason
        elif self._exited.is_set() and Reason.of(reason).ends_job:
            # At most its artifacts are still being saved.
            self._watch.stop_saving()
        elif self._stop_task is None and self.live:
            self._stop_task = asyncio.create_task(
                self._stop(reason, checkpoint or not Reason.of(reason).ends_job)
            )

    async def _stop(self, reason: str, checkpoint: bool) -> None:
        process = self.process
        if process is None or not process.alive():
            return
        self._stopped = reason
        self._journal.note(self.start.attempt_id, stopping=reason)
        await stop_process(
            process,
            self.start,
            self._exited,
            self._watch,
            scan_s=self._context.settings.checkpoint_scan_s,
            checkpoint=checkpoint,
            cancelled=Reason.of(reason).ends_job,
        )
        if self.live:
            await asyncio.to_thread(process.kill_all)

    def _ended(self, found: Exit, reason: str = "", message: str = "") -> wire.Ended:
        return self._end.make(
            found,
            self.process,
            stopped=self._stopped,
            was_watched=bool(self._watching),
            gpu_usage=self._watch.gpu_usage,
            reason=reason,
            message=message,
        )

    async def _finish(self, ended: wire.Ended) -> None:
        """Read the last output and checkpoints, save the artifacts, note the end in the
        journal, clean up, then report the end.

        If the agent is killed before the journal has the end, the next one does all of
        this.
        """
        seen = await self._last_output()
        packages = self.starter.packages
        ended = explained_by_packages(ended, packages, self._watch.log.tail)
        if found := package_facts(packages, self.record.uid):
            ended = replace(ended, facts={**ended.facts, **found})
        ended = self._end.explained(ended, self._watch.output.fault)
        exited = ended.exit_code is not None and ended.exit_code not in _KILLED
        if self.process and exited:
            await self._watch.report_checkpoints(last=True)
        self._watch.report_output(seen)
        if self.process:
            await self._watch.save_artifacts(ended)
        await self._conclude(ended)

    async def _last_output(self) -> wire.ProgressSeen | None:
        size = self._watch.log_size()
        if not size and not self._watching:
            return None
        read = self._watch.output.read_progress
        if self._watching or size > _SMALL_LOG_BYTES:
            return await asyncio.to_thread(read, last=True)
        return read(last=True)

    async def give_up(self, error: Exception) -> None:
        """End the attempt because of a fault of the agent, not of the job."""
        ended = wire.Ended(
            self.start.attempt_id,
            time.time(),
            self.record.started_at,
            reason=Reason.AGENT_FAILED,
            message=repr(error),
            ran_s=self._end.ran_s(None) if self.process else None,
        )
        await self._conclude(ended)

    async def _conclude(self, ended: wire.Ended) -> None:
        await self.streams.end()
        if self.process and not self.process.left_nothing():
            await asyncio.to_thread(self._kill_all, self.process)
        self.release()
        if self.start.gpu_uuids and self._context.until_clear:
            await self._context.until_clear(self.start.gpu_uuids)
        # The next attempt is journaled with the end, so that whichever agent reports
        # the end reports both. The place of a preempted attempt is not given to a
        # prefetched one: it is for the job that preempted it.
        next_start = None
        if ended.stopped != Reason.PREEMPTED:
            next_start = self._context.pop_next(self.start)
        if next_start:
            ended = replace(ended, prefetched_next=next_start.attempt_id)
        if self.start.secrets:
            await asyncio.to_thread(self._watch.hide_secrets)
        self._journal.note(self.start.attempt_id, ended=ended)
        if self.process:
            self.process.reap()
            self.process.cleanup()
        self.record.ended = ended
        self._send(ended)
        if next_start:
            self._context.begin(next_start)

    def release(self) -> None:
        """It was not launched: it needs no group of the pool."""
        if self._first_group:
            self._first_group.give_back()
            self._first_group = None

    def _kill_all(self, process: Process) -> None:
        left = process.kill_all()
        if left:
            log.warning(
                "processes could not be killed",
                attempt=self.start.attempt_id,
                pids=left,
            )

    def _clean_up(self, process: Process) -> None:
        self._kill_all(process)
        process.reap()
        process.cleanup()
