"""One attempt on this node, from its Start to its Ended: launching, watching, stopping."""

import asyncio
import json
import os
import signal
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from gpuyard.domain import wire
from gpuyard.domain.units import format_gb
from gpuyard.node.environment import job_command, job_environment
from gpuyard.node.journal import Record, own_keeper
from gpuyard.node.launcher import (
    NEVER_STARTED,
    Exit,
    Launch,
    LaunchError,
    Limits,
    Process,
    adopt,
    find_attempt,
    spawn,
)
from gpuyard.node.launcher.procfs import stat
from gpuyard.node.watch import Surroundings, Watch
from gpuyard.storage.blobs import BucketError
from gpuyard.storage.place import in_background

# The file system's clock may be this far behind ours.
_CLOCK_STEP_NS = 10_000_000
# Most jobs that end sooner print little and save nothing: watching them would cost more than running them.
_SHORT_S = 0.05
_SMALL_LOG = 1 << 16
# After TERM a cancelled job has this long (or its own grace, if shorter) before KILL.
CANCEL_GRACE_S = 10.0
TERM_GRACE_S = 10.0
# A keeper writes an orphan's record within milliseconds; after this it never will.
_RECORD_WAIT_S = 3.0
# Exit codes by which a shell says that its child was killed, so that it may have been writing just then.
_KILLED = frozenset(128 + number for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS))
log = structlog.get_logger(__name__)
Result = TypeVar("Result")


class AttemptRun:
    """An attempt and its process; `record` is what the journal holds of it."""

    def __init__(self, record: Record, around: Surroundings) -> None:
        self.record = record
        self.start = record.start
        self.process: Process | None = None
        self._around = around
        self._journal = around.journal
        self._send = around.send
        self._exited = asyncio.Event()
        self._stop_task: asyncio.Task[None] | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._timing: list[asyncio.Task[None]] = []
        self._stopped = record.stopping
        self._remarks: dict[str, None] = {}
        self._private = around.journal.private(self.start.attempt_id)
        self._workdir = Path(self.start.workdir) if self.start.workdir else self._private / "work"
        self._workspace = around.workspaces / self.start.workspace if self.start.workspace else None
        self._watch = Watch(record, around, self._workdir)

    @property
    def live(self) -> bool:
        """True until the attempt's end is known and journaled."""
        return self.record.ended is None

    # --- beginning ---

    async def run(self) -> None:
        """Launch and follow to the end."""
        try:
            resume_from = await self._beside(self._prepare)
        except BucketError as error:
            await self._not_started("storage_unreachable", error)
            return
        except (OSError, tarfile.TarError) as error:
            await self._not_started("bad_resume" if self.start.resume_sha256 else "workdir_missing", error)
            return
        if self._stopped:
            await self._finish(self._ended(Exit()))
            return
        try:
            self.process = await self._beside(self._launch, resume_from)
        except LaunchError as error:
            await self._not_started(error.reason, error)
            return
        except ValueError as error:
            await self._not_started("invalid_argument", error)
            return
        self._send(
            wire.Started(self.start.attempt_id, self.record.started_at or 0, self.process.pid, self.process.enforcement)
        )
        await self._follow()

    async def _beside(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do what may block in a thread; of a simple attempt it takes less time than going there and back."""
        start = self.start
        if start.resume_sha256:
            return await in_background(work, *arguments)
        if start.checkpoint_path or start.memory_gb or start.cpus:
            return await asyncio.to_thread(work, *arguments)
        return work(*arguments)

    async def _not_started(self, reason: str, error: Exception) -> None:
        await self._finish(self._ended(Exit(), reason, str(error)))

    def _prepare(self) -> Path | None:
        """Make the working directory if it is ours, and lay the checkpoint to resume from where it can be read."""
        start = self.start
        if not start.workdir:
            os.makedirs(self._workdir, exist_ok=True)  # noqa: PTH103  (a Path takes three times as long)
        if self._workspace:
            self._workspace.mkdir(parents=True, exist_ok=True)
        self._watch.begin()
        if not start.resume_sha256:
            return None
        target = self._private / "resume" / (start.resume_name or "checkpoint")
        self._around.blobs.restore(start.resume_sha256, target, directory=start.resume_directory)
        return target

    def _launch(self, resume_from: Path | None) -> Process:
        """Spawn, and note the pid in the same breath: an agent killed in between has to search for it."""
        process = self._spawn(resume_from)
        self._note_started(process, time.time())
        return process

    def _spawn(self, resume_from: Path | None) -> Process:
        start = self.start
        memory = int(start.memory_gb * (1 << 30)) if start.memory_gb else None
        limits = Limits(memory, start.cpus, self._around.settings.max_processes)
        command = job_command(start, resume_from, self._around.home)
        # The agent's key to a bucket is not its jobs': one that wants such variables is given its own by its spec.
        withheld = self._around.blobs.variables
        environment = job_environment(start, self._around.node, resume_from, self._workspace, withheld)
        return spawn(Launch(
            start.attempt_id, command, environment, self._workdir, self._watch.log.path, limits, start.stdin,
            reaper=self._around.reaper,
        ))  # fmt: skip

    def _note_started(self, process: Process, at: float) -> None:
        record = self.record
        record.pid, record.start_ticks, record.started_at = process.pid, process.start_ticks, at
        record.monotonic, record.limits = time.monotonic(), process.enforcement
        self._journal.note(
            self.start.attempt_id, pid=process.pid, start_ticks=process.start_ticks, started_at=at,
            monotonic=record.monotonic, limits=process.enforcement,
        )  # fmt: skip

    async def resume(self, exits: Path, keeper_alive: Callable[[], bool], boot_id: str) -> None:
        """Take over from the agent before: adopt the process, report anew what the server may not have heard."""
        record = self.record
        for saved in record.checkpoints:
            self._send(saved)  # the agent before may have died before they were heard; the ledger knows those it has
        if record.ended:
            if record.pid is not None:
                # The agent before may have died on its way from noting the end to leaving nothing behind.
                process = adopt(self.start.attempt_id, record.pid, record.start_ticks, exits)
                await asyncio.to_thread(self._clean_up, process)
            self._send(self._without_lost_successor(record.ended))
            return
        if record.boot_id != boot_id:
            await self._finish(self._ended(Exit(lost=True), "node_rebooted", "the node was rebooted while it ran"))
            return
        if record.pid is None and not self._watch.log.path.exists():
            await self.run()  # nothing was started: the log is opened before the process
            return
        if record.pid is None and not self._find_pid(exits) and self._surely_not_started(exits):
            await self.run()
            return
        if record.pid is None:
            await self._finish(
                self._ended(Exit(lost=True), "exit_status_lost", "the agent was killed as it started it")
            )
            return
        assert record.pid is not None
        self.process = adopt(self.start.attempt_id, record.pid, record.start_ticks, exits)
        await asyncio.to_thread(self._watch.resume)
        self._send(
            wire.Started(self.start.attempt_id, record.started_at or time.time(), record.pid, dict(record.limits))
        )
        await self._follow(keeper_alive)

    def _without_lost_successor(self, ended: wire.Ended) -> wire.Ended:
        """The agent before may have died after noting who comes next and before it began: then nobody heard of it."""
        lost = ended.successor and not self._journal.holds(ended.successor)
        return replace(ended, successor="") if lost else ended

    def _surely_not_started(self, exits: Path) -> bool:
        """Nothing of it lives. Had it run and ended, the keeper that was there all the time would have a record.

        It would be this attempt's, and then it was found, or one of which the keeper could not tell whose it is.
        """
        record = self.record
        unclaimed = any(not content["attempt"] and content["at"] >= record.intended_at for content in _records(exits))
        return record.keeper == own_keeper() != 0 and not unclaimed

    def _find_pid(self, exits: Path) -> bool:
        """The agent died between the spawn and its note: the process is found by the id in its environment.

        If it has ended since, the keeper looked at that before and wrote it into its record.
        """
        pids = find_attempt(self.start.attempt_id)
        found = stat(pids[0]) if pids else None
        named = (found.pid, found.start_ticks) if found else _recorded(exits, self.start.attempt_id)
        if named is None:
            return False
        self.record.pid, self.record.start_ticks = named
        self.record.started_at, self.record.monotonic = time.time(), time.monotonic()
        self._journal.note(self.start.attempt_id, pid=self.record.pid, start_ticks=self.record.start_ticks,
                           started_at=self.record.started_at, monotonic=self.record.monotonic)  # fmt: skip
        return True

    # --- following ---

    async def _follow(self, keeper_alive: Callable[[], bool] | None = None) -> None:
        process = self.process
        assert process is not None
        watching = asyncio.get_running_loop().call_later(_SHORT_S, self._begin_watching, process)
        if self._stopped:
            self.stop(self._stopped)
        try:
            await _until_ended(process)
        finally:
            watching.cancel()
            self._exited.set()
            await self._end_watching()
        found = await self._exit_of(process, keeper_alive)
        if found.signal == NEVER_STARTED:
            await self._begin_anew(process)
        else:
            await self._finish(self._ended(found))

    def _begin_watching(self, process: Process) -> None:
        watch = self._watch
        self._watching = [asyncio.create_task(work) for work in (watch.look(), watch.scan())]
        self._timing = [asyncio.create_task(work) for work in (watch.sample(process), self._timers())]

    async def _end_watching(self) -> None:
        if not self._watching:
            return
        self._watch.end()
        for task in self._timing:
            task.cancel()
        for fault in await asyncio.gather(*self._watching, *self._timing, return_exceptions=True):
            if isinstance(fault, Exception):
                log.error("following an attempt failed", attempt=self.start.attempt_id, exc_info=fault)

    async def _begin_anew(self, process: Process) -> None:
        """The agent before was killed while it launched: the program never ran, so this is still its first start."""
        await asyncio.to_thread(self._clean_up, process)
        self.process, self.record.pid = None, None
        self._exited.clear()
        await self.run()

    async def _exit_of(self, process: Process, keeper_alive: Callable[[], bool] | None) -> Exit:
        deadline = time.monotonic() + _RECORD_WAIT_S
        while True:
            found = process.exit()
            assert found is not None
            late = time.monotonic() > deadline or keeper_alive is None or not keeper_alive()
            if not found.lost or late:
                return process.exit() or found
            await asyncio.sleep(0.05)

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

    def remark(self, text: str) -> None:
        """Something that its owner should hear of if the attempt does not end well."""
        self._remarks[text] = None

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
            asked_ns = time.time_ns() - _CLOCK_STEP_NS
            process.signal(_number(self.start.checkpoint_signal))
            await self._wait(grace_s, lambda: self._watch.newest_checkpoint_ns > asked_ns)
            # Some programs save more than one file: what follows the first is taken by the next scans.
            await self._wait(min(grace_s, 3 * self._around.settings.checkpoint_scan_s), lambda: False)
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
        if self._stopped or found.code or found.signal:
            message = "; ".join([*([message] if message else []), *self._remarks])
        usage = self._usage()
        return wire.Ended(
            self.start.attempt_id, time.time(), self.record.started_at, found.code, found.signal, reason,
            self._stopped, message, {name: round(value, 3) for name, value in usage.items()}, dict(self.record.limits),
        )  # fmt: skip

    def _usage(self) -> dict[str, float]:
        """What it used in all; of one too short to be watched, only what its first process left behind."""
        if self.process is None:
            return {}
        return asdict(self.process.usage()) if self._watching else {"cpu_s": self.process.leader_cpu_s()}

    async def _finish(self, ended: wire.Ended) -> None:
        """Take what came last, journal the end, clean up, then report the end.

        An agent killed before the journal has it leaves all of this to the next one.
        """
        size = self._watch.log_size()
        if self._watching or size > _SMALL_LOG:
            seen = await asyncio.to_thread(self._watch.output.look, last=True)
        else:
            seen = self._watch.output.look(last=True) if size else None
        failed = bool(ended.exit_code or ended.signal) and not ended.reason and not ended.stopped
        if failed and self._watch.output.fault:
            ended = replace(ended, reason=self._watch.output.fault, message="its output says so")
        if self.process and ended.exit_code is not None and ended.exit_code not in _KILLED:
            await self._watch.report_checkpoints(last=True)
        self._watch.report(seen)
        await self._conclude(ended)

    async def give_up(self, error: Exception) -> None:
        """End the attempt after a fault of the agent's own, which is no fault of the job's."""
        at, began = time.time(), self.record.started_at
        await self._conclude(wire.Ended(self.start.attempt_id, at, began, reason="agent_failed", message=repr(error)))

    async def _conclude(self, ended: wire.Ended) -> None:
        if self.process and not self.process.left_nothing():
            await asyncio.to_thread(self._end_the_rest, self.process)
        if self.start.gpu_uuids and self._around.until_clear:
            await self._around.until_clear(self.start.gpu_uuids)
        # Who comes next is journaled with the end: whichever agent reports that reports both. The place of one that
        # had to make way is for the one it made way for.
        successor = self._around.successor(self.start) if ended.stopped != "preempted" else None
        if successor:
            ended = replace(ended, successor=successor.attempt_id)
        self._journal.note(self.start.attempt_id, ended=ended)
        if self.process:
            self.process.reap()
            self.process.cleanup()
        self.record.ended = ended
        self._send(ended)
        if successor:
            self._around.begin(successor)

    def _end_the_rest(self, process: Process) -> None:
        left = process.kill_all()
        if left:
            log.warning("processes could not be killed", attempt=self.start.attempt_id, pids=left)

    def _clean_up(self, process: Process) -> None:
        self._end_the_rest(process)
        process.reap()
        process.cleanup()


def _number(name: str) -> int:
    return signal.Signals[f"SIG{name.removeprefix('SIG')}"]


def _recorded(exits: Path, attempt_id: str) -> tuple[int, int] | None:
    """The pid and start time under which a keeper recorded how this attempt ended."""
    for content in _records(exits):
        if content["attempt"] == attempt_id:
            return content["pid"], content["start_ticks"]
    return None


def _records(exits: Path) -> Iterator[dict[str, Any]]:
    """What keepers wrote of the orphans they reaped."""
    for path in exits.glob("*.json"):
        with suppress(OSError, ValueError):
            yield json.loads(path.read_text())


async def _until_ended(process: Process) -> None:
    """Wait for the leader's pidfd; an adopted process that is gone already has none."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = process.fileno()
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
