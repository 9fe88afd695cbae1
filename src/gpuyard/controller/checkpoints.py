"""The checkpoints of attempts: recorded, kept as long as they are of use, and compared
with what a resumed program does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.controller.core import Core
from gpuyard.controller.unused_blobs import delete_unused
from gpuyard.domain import wire
from gpuyard.domain.errors import LedgerError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import made_at, new_id
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.storage.blobs import Blobs

# A program that resumed may print a step a little before its checkpoint's.
_BEGAN_ANEW = 0.5
Row = Mapping[str, Any]


class Checkpoints:
    """Records checkpoints, and removes those of no more use."""

    def __init__(self, core: Core, blobs: Blobs) -> None:
        self._core = core
        self._blobs = blobs
        # The ids of those whose removal is on its way to the ledger.
        self._leaving: set[str] = set()

    def saved(self, attempt: LiveAttempt, body: wire.CheckpointSaved) -> None:
        """Record a checkpoint of the attempt that is in the blob store."""
        core = self._core
        if core.queries.has_checkpoint(attempt.id, body.path, body.sha256, body.at):
            return  # reported again, because the acknowledgement was lost
        if self._is_unchanged(attempt, body):
            return
        row: dict[str, Any] = {
            "job_id": attempt.job_id,
            "attempt_id": attempt.id,
            "path": body.path,
            "step": body.step,
            "size": body.size,
            "sha256": body.sha256,
            "directory": body.directory,
            "kept": True,
            "created_at": body.at,
        }
        checkpoint_id = new_id("ckpt")
        info = {
            "checkpoint": checkpoint_id,
            "path": body.path,
            "step": body.step,
            "size": body.size,
        }
        change = Change(Table.CHECKPOINTS, checkpoint_id, row)
        kind = EventKind.CHECKPOINT_SAVED
        event = Event(kind, core.clock(), (change,), attempt.job_id, info)
        core.emit([event], can_wait=True)
        core.spawn(self._prune(attempt), "prune-checkpoints")

    def _is_unchanged(self, attempt: LiveAttempt, body: wire.CheckpointSaved) -> bool:
        """Whether the file was written again with the same content."""
        rows = self._core.queries.checkpoints_of(attempt.job_id)
        of_path = [row for row in rows if row["path"] == body.path and row["kept"]]
        return bool(of_path) and of_path[-1]["sha256"] == body.sha256

    async def _prune(self, attempt: LiveAttempt) -> None:
        """Keep only the newest checkpoints of a job.

        The ledger forgets a blob before the blob is deleted, so it never names one that
        is gone.
        """
        core = self._core
        try:
            await core.committed(can_wait=True)
            rows = core.queries.checkpoints_of(attempt.job_id)
        except LedgerError:
            return
        kept = [row for row in rows if row["kept"] and row["id"] not in self._leaving]
        old = removable(kept, core.settings.node.keep_checkpoints, attempt.id)
        if not old:
            return
        ids = {row["id"] for row in old}
        self._leaving |= ids
        try:
            await self._write_removal(attempt.job_id, old)
        except LedgerError:
            return
        finally:
            self._leaving -= ids
        for row in old:
            # Not `created_at`: a queue's job saved the file long before we stored it.
            named_at = made_at(row["id"])
            await delete_unused(core, self._blobs, row["sha256"], named_at)

    async def _write_removal(self, job_id: str, old: Sequence[Row]) -> None:
        core = self._core
        changes = tuple(
            Change(Table.CHECKPOINTS, row["id"], {"kept": False}) for row in old
        )
        kind = EventKind.CHECKPOINT_PRUNED
        info = {"count": len(old)}
        core.emit([Event(kind, core.clock(), changes, job_id, info)])
        await core.committed()


def removable(kept: Sequence[Row], keep: int, attempt_id: str) -> list[Row]:
    """Which of a job's checkpoints, the oldest first, need not be kept: all but the
    newest `keep`.

    Those of earlier attempts stay until the newest attempt has saved as far: it may
    have begun anew instead of resuming, and then they are the better ones.
    """
    own = [row["step"] for row in kept if row["attempt_id"] == attempt_id]
    reached = max((step for step in own if step is not None), default=0)
    return [
        row
        for row in kept[:-keep]
        if row["attempt_id"] == attempt_id or (row["step"] or 0) <= reached
    ]


class ResumeWatch:
    """Tells the owner of a job that its program began anew instead of resuming from its
    checkpoint.

    It is judged by its second step: a progress bar may begin at 0 before it jumps.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        # By attempt: the step of its checkpoint, and the first one that it reported.
        self._resumes: dict[str, tuple[int, int]] = {}

    def progressed(self, attempt: LiveAttempt, progress: Mapping[str, Any]) -> None:
        """An attempt reports its progress."""
        step = progress.get("step")
        # An agent may send anything.
        if not isinstance(step, int) or attempt.number == 1:
            return
        if attempt.id not in self._resumes:
            self._forget_the_ended()
            self._resumes[attempt.id] = (self._checkpoint_step(attempt), step)
            return
        checkpoint_step, first = self._resumes[attempt.id]
        if step <= first:
            return
        self._resumes[attempt.id] = (0, step)
        if step < checkpoint_step * _BEGAN_ANEW:
            self._tell(attempt, step, checkpoint_step)

    def _checkpoint_step(self, attempt: LiveAttempt) -> int:
        """The step of the checkpoint that the attempt resumes from; 0 if there is
        none.
        """
        queries = self._core.queries
        rows = queries.attempts_of([attempt.job_id])[attempt.job_id]
        own = next((row for row in rows if row["id"] == attempt.id), None)
        checkpoint = queries.checkpoint(own["resumed_from"] or "") if own else None
        return (checkpoint["step"] or 0) if checkpoint else 0

    def _tell(self, attempt: LiveAttempt, step: int, checkpoint_step: int) -> None:
        core = self._core
        job = core.queries.job(attempt.job_id)
        if job is None:
            return
        warning = (
            f"attempt {attempt.number} was to resume from step {checkpoint_step}, but"
            f" its steps begin anew (it is at step {step}); if it does not load the"
            " checkpoint, see --resume-args"
        )
        warnings: list[str] = job["warnings"] or []
        values = {"warnings": [*warnings, warning]}
        info = {
            "attempt_id": attempt.id,
            "step": step,
            "checkpoint_step": checkpoint_step,
        }
        change = Change(Table.JOBS, attempt.job_id, values)
        kind = EventKind.JOB_BEGAN_ANEW
        core.emit([Event(kind, core.clock(), (change,), attempt.job_id, info)])

    def _forget_the_ended(self) -> None:
        live = self._core.view.attempts
        for attempt_id in [known for known in self._resumes if known not in live]:
            del self._resumes[attempt_id]
