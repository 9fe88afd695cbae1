"""The attempts of a node: which there are, and what its server says of them."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gpuyard.domain import wire
from gpuyard.domain.reasons import Reason
from gpuyard.node.attempt import AttemptRun
from gpuyard.node.journal import AttemptJournal, JournalEntry
from gpuyard.node.launcher import GroupPool, PooledGroup
from gpuyard.node.outbox import never_started
from gpuyard.node.prefetch import PrefetchQueue
from gpuyard.node.watch import AgentContext

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AttemptParts:
    """What all attempts share. `spawn` starts a task of the agent's."""

    journal: AttemptJournal
    context: AgentContext
    groups: GroupPool
    prefetched: PrefetchQueue
    boot_id: str
    spawn: Callable[[Coroutine[Any, Any, None]], None]


class NodeAttempts:
    """The attempts of one node, by their ids: those that run, and those that have ended
    and are not forgotten.
    """

    def __init__(self, parts: AttemptParts) -> None:
        self._journal = parts.journal
        self._context = parts.context
        self._groups = parts.groups
        self._prefetched = parts.prefetched
        self._boot_id = parts.boot_id
        self._spawn = parts.spawn
        self.by_id: dict[str, AttemptRun] = {}
        self._attended = 0

    def are_several(self) -> bool:
        """Whether more than one is attended to."""
        return self._attended > 1

    def __iter__(self) -> Iterator[AttemptRun]:
        """Those of now: others may come and go meanwhile."""
        return iter(list(self.by_id.values()))

    def datasets_in_use(self) -> dict[str, bool]:
        """The digests of those that attempts need, and whether one that runs does."""
        found: dict[str, bool] = {}
        for attempt in self:
            runs = attempt.process is not None
            for mount in attempt.start.datasets if attempt.live else ():
                found[mount.digest] = runs or found.get(mount.digest, False)
        return found

    def packages_in_use(self) -> list[str]:
        """The digest of the packages of each live attempt that has some."""
        starts = [attempt.start for attempt in self if attempt.live]
        return [start.packages for start in starts if start.packages]

    def find(self, attempt_id: str) -> AttemptRun | None:
        """The attempt; None if it is not known, or forgotten."""
        return self.by_id.get(attempt_id)

    def state(self, attempt_id: str) -> str:
        """What the server is told of an attempt that it looks for."""
        if attempt_id in self._prefetched:
            return "waiting"
        known = self.by_id.get(attempt_id)
        if known:
            return "running" if known.live else "ended"
        return "ended" if self._journal.has_log(attempt_id) else "absent"

    # --- their beginning ---

    def start(self, start: wire.StartAttempt) -> None:
        """Start or prefetch an attempt, unless it is known or was withdrawn."""
        attempt_id = start.attempt_id
        if self._prefetched.refuses(attempt_id):
            return
        if attempt_id in self.by_id or self._journal.holds(attempt_id):
            return
        if start.prefetched:
            self._prefetched.add(start)
        else:
            self._prefetched.drop(attempt_id)
            self.begin(start)

    def begin(self, start: wire.StartAttempt) -> None:
        """Begin an attempt. If one of its GPUs is in use, it ends at once."""
        group = None if self._needs_own_groups(start) else self._groups.take()
        name = group.name if group else ""
        try:
            record = self._journal.intend(start, self._boot_id, name)
        except OSError as error:
            if group:
                group.give_back()
            message = f"the agent's journal cannot be written: {error}"
            reason = Reason.SPAWN_FAILED
            ended = never_started(start.attempt_id, reason=reason, message=message)
            self._context.send(ended)
            return
        attempt = self.remember(record, group)
        taken: set[str] = set()
        if start.gpu_uuids:
            taken = self._gpus_in_use(attempt).intersection(start.gpu_uuids)
        if taken:
            self._refuse_taken(attempt, taken)
        else:
            self._spawn(self.attend(attempt, attempt.run()))

    def _needs_own_groups(self, start: wire.StartAttempt) -> bool:
        """Whether the attempt needs control groups of its own from its start: so does
        whatever `spawn._is_simple` leaves to the prologue.
        """
        return bool(start.memory_gb or start.cpus or self._context.accounts)

    def _gpus_in_use(self, but: AttemptRun) -> set[str]:
        """The GPUs that other live attempts use alone."""
        used: set[str] = set()
        for other in self.by_id.values():
            if other is not but and other.live and not other.start.shares_gpus:
                used.update(other.start.gpu_uuids)
        return used

    def _refuse_taken(self, attempt: AttemptRun, taken: Collection[str]) -> None:
        """End an attempt that was not launched, because others have its GPUs."""
        attempt_id = attempt.start.attempt_id
        message = f"GPU {', '.join(sorted(taken))} is in use by another attempt"
        ended = never_started(attempt_id, reason=Reason.GPU_BUSY, message=message)
        attempt.release()
        self._journal.note(attempt_id, ended=ended)
        attempt.record.ended = ended
        self._context.send(ended)

    def remember(
        self, record: JournalEntry, group: PooledGroup | None = None
    ) -> AttemptRun:
        """The attempt of a record, which is known from now on. `group`: the one of the
        pool in which it begins.
        """
        attempt = AttemptRun(record, self._context, group)
        self.by_id[record.start.attempt_id] = attempt
        return attempt

    async def attend(
        self, attempt: AttemptRun, work: Coroutine[Any, Any, None]
    ) -> None:
        """Run `work` of an attempt, and end the attempt if that raises.

        Without an end it would hold its GPUs for ever.
        """
        self._attended += 1
        try:
            await work
        except Exception as error:
            log.exception("an attempt is given up", attempt=attempt.start.attempt_id)
            await attempt.give_up(error)
        finally:
            self._attended -= 1

    # --- their end ---

    def stop(self, stop: wire.StopAttempt) -> None:
        """Stop an attempt.

        One that never came here has ended: its StartAttempt cannot follow its
        StopAttempt.
        """
        if stop.reason == Reason.REVOKED:
            # If the attempt does not wait here, it may still be on its way: then the
            # server asks again.
            if self._prefetched.withdraw(stop.attempt_id):
                ended = never_started(stop.attempt_id, stopped=stop.reason)
                self._context.send(ended)
            return
        self._prefetched.drop(stop.attempt_id)
        attempt = self.by_id.get(stop.attempt_id)
        if attempt:
            attempt.stop(stop.reason, checkpoint=stop.checkpoint)
            return
        message = "never started"
        ended = never_started(stop.attempt_id, stopped=stop.reason, message=message)
        self._context.send(ended)

    def stop_on_failed_gpus(self, reasons: Mapping[str, str]) -> None:
        """Stop the attempts on GPUs that have failed; the job's retries decide whether
        it continues elsewhere.
        """
        for attempt in self:
            lost = [
                f"GPU {uuid} failed: {reasons[uuid]}"
                for uuid in attempt.start.gpu_uuids
                if uuid in reasons
            ]
            if lost and attempt.live:
                attempt.remark("; ".join(lost))
                attempt.stop(Reason.GPU_FAILED)

    def remark_on_gpu(self, uuid: str, message: str) -> None:
        """Add what the driver reported about a program on this GPU to the attempts
        there.
        """
        for attempt in self.by_id.values():
            if attempt.live and uuid in attempt.start.gpu_uuids:
                attempt.remark(message)

    def stop_silent(self, silent_s: float) -> None:
        """Stop those that may not be without a server for so long."""
        for attempt in self:
            limit = attempt.start.max_silence_s
            if limit and silent_s > limit:
                attempt.stop(Reason.NODE_SILENT)

    def forget(self, attempt_ids: Sequence[str]) -> None:
        """The server has settled these attempts."""
        settled: list[str] = []
        for attempt_id in attempt_ids:
            self._prefetched.forget(attempt_id)
            attempt = self.by_id.get(attempt_id)
            if attempt is None or not attempt.live:
                self.by_id.pop(attempt_id, None)
                settled.append(attempt_id)
        self._journal.forget(*settled)

    async def discard(self, attempt_ids: Sequence[str]) -> None:
        """Delete the output of those of these attempts that are forgotten."""
        ended = [i for i in attempt_ids if i not in self.by_id]
        await asyncio.to_thread(self._journal.discard, ended)
