"""What agents say: nodes that join and leave, attempts that start, progress, checkpoints and ends."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from gpuyard.controller import moves
from gpuyard.controller.core import Core
from gpuyard.controller.launching import Launching
from gpuyard.controller.requests import Requests
from gpuyard.domain import wire
from gpuyard.domain.errors import LedgerError, ProviderError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.providers.base import GpuProviderInterface, OwnsNodes
from gpuyard.scheduler.view import LiveAttempt
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background

# A link that breaks is usually back within a second; only then do people hear that a job is out of sight.
UNKNOWN_AFTER_S = 10.0
# The agent ends a silent job by its own clock: its grace, TERM, KILL. The server waits for all of that and this much
# more before it believes it dead.
SILENCE_MARGIN_S = 30.0
_DELETE_AGAIN_S, _DELETE_LONGEST_S = 2.0, 600.0
log = structlog.get_logger(__name__)
ProgressListener = Callable[[str, Mapping[str, Any], float], None]


class Reports:
    """The controller as providers see it (`providers.base.Sink`)."""

    def __init__(
        self,
        core: Core,
        launching: Launching,
        requests: Requests,
        providers: Mapping[str, GpuProviderInterface],
        blobs: Blobs,
    ) -> None:
        self._core = core
        self._launching = launching
        self._requests = requests
        self._providers = providers
        self._blobs = blobs
        self._silent: dict[str, asyncio.Task[None]] = {}
        self.on_progress: ProgressListener | None = None

    # --- nodes ---

    async def node_joined(self, provider: str, hello: wire.Hello) -> wire.Welcome:
        """A node is there: its devices can be used, and what it says of its attempts is held against the ledger."""
        core, now = self._core, self._core.clock()
        self._requests.joined.set()
        watch = self._silent.pop(hello.node_id, None)
        if watch:
            watch.cancel()
        row: dict[str, Any] = {
            "name": hello.name, "provider": provider, "state": "online", "reason": hello.problem,
            "boot_id": hello.boot_id, "cpus": hello.cpus, "memory_gb": hello.memory_gb, "limits": hello.limits,
            "seen_at": now,
        }  # fmt: skip
        changes = [Change(Table.NODES, hello.node_id, row), *self._gpu_changes(hello.node_id, hello.gpus)]
        core.emit(
            [Event(EventKind.NODE_CHANGED, now, tuple(changes), None, {"node": hello.node_id, "state": "online"})]
        )
        self._seen_again(hello)
        await core.committed()
        core.spawn(self._reconcile(provider, hello), "reconcile")
        return wire.Welcome(core.epoch)

    def _gpu_changes(self, node_id: str, gpus: Sequence[wire.Gpu]) -> list[Change]:
        changes: list[Change] = []
        for gpu in gpus:
            values: dict[str, Any] = {
                "node_id": node_id, "index": gpu.index, "name": gpu.name, "memory_mb": gpu.memory_mb,
                "compute_capability": gpu.compute_capability, "driver": gpu.driver, "state": gpu.state,
                "problem": gpu.problem,
            }  # fmt: skip
            changes.append(Change(Table.GPUS, gpu.uuid, values))
        seen = {gpu.uuid for gpu in gpus}
        gone = [uuid for uuid in self._core.view.node(node_id).devices if uuid not in seen]
        return changes + [Change(Table.GPUS, uuid, {"node_id": None}) for uuid in gone]

    def _is_news(self, change: Change) -> bool:
        device = self._core.view.devices.get(change.key)
        return device is None or any(getattr(device, name) != change.values[name] for name in change.values
                                     if name != "driver")  # fmt: skip

    def _seen_again(self, hello: wire.Hello) -> None:
        core = self._core
        for seen in hello.attempts:
            attempt = core.view.attempts.get(seen.attempt_id)
            job = core.view.jobs.get(attempt.job_id) if attempt else None
            if job and seen.pid:
                core.pids[job.id] = seen.pid
            if job and job.state is JobState.UNKNOWN:
                core.emit([moves.unreachable(job, core.clock(), lost_sight=False)])

    async def _reconcile(self, provider_name: str, hello: wire.Hello) -> None:
        """After Welcome: settle what the node no longer has, send what it never got, stop what should be over."""
        core = self._core
        there = {attempt.attempt_id: attempt for attempt in hello.attempts}
        # Sorted out at once: while the work below waits for something, attempts start and end.
        known = self._of_agent(hello.node_id)
        missing = [a for a in known if a.id not in there]
        unsent = [a.id for a in missing if a.state in (AttemptState.INTENDED, AttemptState.SENT)]
        # The Start of one that never ran may be on its way on this very link: the Stop behind it settles it either way.
        ending = [a for a in known if a.state is AttemptState.ENDING and (a.id in there or a.started_at is None)]
        settled = [i for i in there if i not in core.view.attempts]
        for attempt in missing:
            if attempt.id not in unsent and attempt not in ending:
                self._vanished(attempt, hello)
        for attempt in ending:
            await self._requests.stop(attempt, self._requests.why_ending(attempt))
        await self._launching.launch(unsent)
        try:
            await core.committed()
        except LedgerError:
            return  # What was believed to be settled may not be; the agents will say Hello anew.
        settled = [i for i in settled if i not in core.view.attempts]
        try:
            await self._drop(provider_name, hello, settled)
        except ProviderError:
            return  # the link broke; with its next Hello all of this is looked at again
        core.schedule()

    def _of_agent(self, node_id: str) -> list[LiveAttempt]:
        """The attempts that the node's agent runs; containers on it are an engine's."""
        found = self._core.view.attempts_on(node_id)
        return [a for a in found if isinstance(self._providers.get(a.provider), OwnsNodes)]

    async def _drop(self, provider_name: str, hello: wire.Hello, settled: Sequence[str]) -> None:
        """Have the node end and forget attempts that are over in the ledger."""
        provider = self._providers[provider_name]
        if not settled or not isinstance(provider, OwnsNodes):
            return
        running = {attempt.attempt_id for attempt in hello.attempts if attempt.state != "ended"}
        for attempt_id in settled:
            if attempt_id in running:
                await provider.stop_attempt(hello.node_id, attempt_id, "superseded", checkpoint=False)
        await provider.forget(hello.node_id, settled)

    def _vanished(self, attempt: LiveAttempt, hello: wire.Hello) -> None:
        """The ledger has it running, the node does not: it died with a reboot, or the agent's folder was lost."""
        outcome = moves.Outcome(
            self._core.clock(), started_at=attempt.started_at, reason="attempt_lost", lost=True,
            stopped=self._requests.why_ending(attempt) if attempt.state is AttemptState.ENDING else "",
            message=f"node {hello.name} no longer knows this attempt; it was rebooted, or its agent's folder removed",
        )  # fmt: skip
        self._launching.settle(attempt, outcome)

    async def node_left(self, node_id: str) -> None:
        """The link broke. Bookings hold; nothing new is placed there; what runs is believed to run on."""
        core = self._core
        if node_id not in core.view.nodes:
            return  # its joining could not be committed: a word about it alone would make half a node
        values = {"state": "silent", "reason": "its agent is not connected"}
        core.emit([Event(EventKind.NODE_CHANGED, core.clock(), (Change(Table.NODES, node_id, values),), None,
                         {"node": node_id, "state": "silent"})])  # fmt: skip
        self.watch_silence(node_id)

    def watch_silence(self, node_id: str) -> None:
        """Say that jobs are out of sight after a while, and give up those whose `max_silence_s` has passed."""
        self._silent[node_id] = asyncio.create_task(self._silence(node_id), name=f"silence-{node_id}")

    async def _silence(self, node_id: str) -> None:
        core = self._core
        await asyncio.sleep(UNKNOWN_AFTER_S)
        waited = UNKNOWN_AFTER_S
        for attempt in self._of_agent(node_id):
            job = core.view.jobs[attempt.job_id]
            if job.state is JobState.RUNNING:
                core.emit([moves.unreachable(job, core.clock(), lost_sight=True)])
        attempts = self._of_agent(node_id)
        specs = core.queries.specs({attempt.job_id for attempt in attempts})
        limits = {a.id: core.read_spec(specs[a.job_id]).max_silence_s for a in attempts}
        graces = {a.id: core.read_spec(specs[a.job_id]).checkpoint.grace_s for a in attempts}
        for attempt in sorted((a for a in attempts if limits[a.id]), key=lambda a: limits[a.id] or 0):
            due = (limits[attempt.id] or 0) + graces[attempt.id] + SILENCE_MARGIN_S
            await asyncio.sleep(max(due - waited, 0))
            waited = max(due, waited)
            message = f"its node said nothing for {due:.0f} s"
            outcome = moves.Outcome(core.clock(), attempt.started_at, reason="node_silent", lost=True, message=message)
            self._launching.settle(attempt, outcome)
            core.schedule()

    # --- reports ---

    async def reported(self, node_id: str, bodies: Sequence[wire.Report]) -> None:
        """Take reports in; returns after the commit, so that they can be acknowledged."""
        over = {report.body.attempt_id for report in bodies if isinstance(report.body, wire.Ended)}
        settled: dict[str, list[str]] = {}
        for report in bodies:
            if isinstance(report.body, wire.Started) and report.body.attempt_id in over:
                continue  # its end, in the same batch, tells the same and more
            for provider_name, attempt_id in self._take(node_id, report.body):
                settled.setdefault(provider_name, []).append(attempt_id)
        if over:
            self._core.schedule()
        await self._core.committed(linger=True)
        for provider_name, attempt_ids in settled.items():
            provider = self._providers[provider_name]
            if isinstance(provider, OwnsNodes):
                await provider.forget(node_id, attempt_ids)

    def _take(self, node_id: str, body: Any) -> list[tuple[str, str]]:
        """Fold one report in; returns (provider, attempt) pairs that are settled by it."""
        if isinstance(body, wire.GpusSeen):
            self._gpus_seen(node_id, body)
            return []
        attempt = self._core.view.attempts.get(body.attempt_id)
        if attempt is None or attempt.node_id != node_id:
            # A late or repeated report of an attempt that is settled: nothing to change, and nothing to keep.
            name = next(iter(self._providers))
            return [(name, body.attempt_id)] if isinstance(body, wire.Ended) else []
        if isinstance(body, wire.Started):
            job = self._core.view.jobs[attempt.job_id]
            self._core.pids[job.id] = body.pid
            if attempt.started_at is None:
                self._core.emit([moves.started(job, attempt, body.at, body.limits)], linger=True)
        elif isinstance(body, wire.ProgressSeen):
            self.progressed(body)
        elif isinstance(body, wire.UsageSeen):
            self._points(attempt, body.points)
        elif isinstance(body, wire.CheckpointSaved):
            self.checkpoint(attempt, body)
        else:
            self._ended(attempt, body)
            return [(attempt.provider, attempt.id)]
        return []

    def _ended(self, attempt: LiveAttempt, body: wire.Ended) -> None:
        lost = body.reason in ("exit_status_lost", "node_rebooted")
        outcome = moves.Outcome(body.at, body.started_at, body.exit_code, body.signal, body.reason, body.stopped,
                                body.message, body.usage, body.limits, lost)  # fmt: skip
        self._launching.settle(attempt, outcome, body.successor)

    def clock(self) -> float:
        """The server's time, UTC seconds."""
        return self._core.clock()

    def progressed(self, body: wire.ProgressSeen) -> None:
        """What the output of an attempt tells; of one that is over it says nothing new."""
        core = self._core
        attempt = core.view.attempts.get(body.attempt_id)
        if attempt is None:
            return
        core.progress[attempt.job_id] = body.progress
        core.writer.put_progress(attempt.job_id, body.progress)
        self._points(attempt, body.points)
        if self.on_progress:
            self.on_progress(attempt.job_id, body.progress, core.clock())

    def _points(self, attempt: LiveAttempt, points: Sequence[wire.Point]) -> None:
        ids = {"attempt_id": attempt.id, "job_id": attempt.job_id}
        self._core.writer.put_points([{**ids, **msgspec.structs.asdict(point)} for point in points])

    def checkpoint(self, attempt: LiveAttempt, body: wire.CheckpointSaved) -> None:
        """A checkpoint of the attempt is in the blob store."""
        core = self._core
        if core.queries.has_checkpoint(attempt.id, body.path, body.sha256, body.at):
            return  # told again, because the acknowledgement was lost
        row: dict[str, Any] = {
            "job_id": attempt.job_id, "attempt_id": attempt.id, "path": body.path, "step": body.step,
            "size": body.size, "sha256": body.sha256, "directory": body.directory, "kept": True, "created_at": body.at,
        }  # fmt: skip
        checkpoint_id = new_id("ckpt")
        info = {"checkpoint": checkpoint_id, "path": body.path, "step": body.step, "size": body.size}
        change = Change(Table.CHECKPOINTS, checkpoint_id, row)
        core.emit([Event(EventKind.CHECKPOINT_SAVED, core.clock(), (change,), attempt.job_id, info)], linger=True)
        core.spawn(self._prune_checkpoints(attempt.job_id), "prune-checkpoints")

    async def _prune_checkpoints(self, job_id: str) -> None:
        """Keep the newest few of a job; the ledger forgets a blob before the disk does, never after."""
        core = self._core
        try:
            await core.committed(linger=True)
            kept = [row for row in core.queries.checkpoints_of(job_id) if row["kept"]]
            old = kept[: -core.settings.node.keep_checkpoints]
            changes = tuple(Change(Table.CHECKPOINTS, row["id"], {"kept": False}) for row in old)
            if not changes:
                return
            core.emit([Event(EventKind.CHECKPOINT_PRUNED, core.clock(), changes, job_id, {"count": len(old)})])
            await core.committed()
        except LedgerError:
            return
        for row in old:
            await self._delete_blob(row["sha256"])

    async def _delete_blob(self, sha256: str) -> None:
        """Delete a blob that no checkpoint needs. A bucket may be away for a while: it is asked again."""
        pause_s = _DELETE_AGAIN_S
        while not self._core.queries.blob_is_used(sha256):
            try:
                await in_background(self._blobs.delete, sha256)
                return
            except OSError as error:
                log.warning("an old checkpoint cannot be deleted, will try again", sha256=sha256, error=str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _DELETE_LONGEST_S)

    def _gpus_seen(self, node_id: str, body: wire.GpusSeen) -> None:
        changes = tuple(change for change in self._gpu_changes(node_id, body.gpus) if self._is_news(change))
        if not changes:
            return  # figures only, which the provider keeps
        event = Event(
            EventKind.NODE_CHANGED, self._core.clock(), changes, None, {"node": node_id, "gpus": len(body.gpus)}
        )
        self._core.emit([event], linger=True)
        self._core.schedule()
