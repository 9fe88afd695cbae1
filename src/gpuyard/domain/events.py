"""Events: what happened, with after-images of the changed rows.

The ledger's state tables and the scheduler's view are both computed from these changes,
so an event has one meaning.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

Row = Mapping[str, Any]


class Table(StrEnum):
    """The state tables an event may change."""

    JOBS = "jobs"
    SPECS = "specs"
    ATTEMPTS = "attempts"
    CHECKPOINTS = "checkpoints"
    ARTIFACTS = "artifacts"
    NODES = "nodes"
    GPUS = "gpus"
    MODELS = "models"
    BATCHES = "batches"
    ITEMS = "items"
    TIMINGS = "timings"
    DEMAND_SHARES = "habits"
    TRUST = "trust"
    SCHEDULES = "schedules"
    ARRAYS = "arrays"
    USERS = "users"
    TOKENS = "tokens"
    BUDGETS = "budgets"
    PROJECTS = "projects"
    PROJECT_MEMBERS = "project_members"
    RESERVATIONS = "reservations"
    UNUSED_GPUS = "unused_gpus"
    NOTICES = "notices"
    INVITATIONS = "invitations"
    DATASETS = "datasets"
    DATASET_VERSIONS = "dataset_versions"
    POOL_NODES = "pool_nodes"


class EventKind(StrEnum):
    """What can happen.

    Part of the public stream, so a name is never changed or reused.
    """

    JOB_SUBMITTED = "job.submitted"
    JOB_REQUEUED = "job.requeued"
    JOB_RESUMED = "job.resumed"
    JOB_BEGAN_ANEW = "job.began_anew"
    """A resumed program did not go on at its checkpoint."""
    JOB_ON_CPU = "job.on_cpu"
    """Its program says that it found no GPU, and the job asked for none."""
    JOB_WARNING = "job.warning"
    """Its run looks wrong: a loss that rises, a GPU that waits, memory that grows. Or
    it will probably miss its deadline.
    """
    JOB_DEADLINE_MISSED = "job.deadline_missed"
    """Its deadline has passed, and it had not ended."""
    JOB_LOG_LIMITED = "job.log_limited"
    """Its log has reached its limit: only the end of its output is kept."""
    JOB_HELD = "job.held"
    JOB_RELEASED = "job.released"
    JOB_UPDATED = "job.updated"
    """Its owner gave it another name, priority, time limit or deadline."""
    JOB_CANCEL_REQUESTED = "job.cancel_requested"
    JOB_COMPLETED = "job.completed"
    JOB_FAILED = "job.failed"
    JOB_CANCELLED = "job.cancelled"
    JOB_TIMED_OUT = "job.timed_out"
    JOB_UNKNOWN = "job.unknown"
    JOB_NOTIFIED = "job.notified"
    """Who had asked for it was told that it has ended, or could not be told."""
    JOB_PROGRESS = "job.progress"
    """Sent on the stream only, never in the journal: progress is kept as series."""
    ATTEMPT_INTENDED = "attempt.intended"
    ATTEMPT_SENT = "attempt.sent"
    ATTEMPT_PENDING = "attempt.pending"
    ATTEMPT_STARTED = "attempt.started"
    ATTEMPT_ENDING = "attempt.ending"
    ATTEMPT_MOVED = "attempt.moved"
    ATTEMPT_SHARE_ENDED = "attempt.share_ended"
    CHECKPOINT_SAVED = "checkpoint.saved"
    CHECKPOINT_PRUNED = "checkpoint.pruned"
    ARTIFACTS_SAVED = "artifacts.saved"
    ARTIFACTS_REMOVED = "artifacts.removed"
    """By their owner, or with the history of their job."""
    NODE_CHANGED = "node.changed"
    NODE_INVITED = "node.invited"
    INVITATION_REVOKED = "node.invitation_revoked"
    NODE_JOINED = "node.joined"
    NODE_REMOVED = "node.removed"
    POOL_NODE_CHANGED = "pool.node_changed"
    """A node of a pool was asked for, has joined, is drained, or has gone: `state`."""
    BILL_COMPARED = "bill.compared"
    """What a cloud bills for a day is what gpuyard has counted."""
    BILL_DIFFERS = "bill.differs"
    """It is not, by more than the tolerance; or the cloud bills an unknown machine."""
    DISK_FILLING = "disk.filling"
    """The disk of a node's home is nearly full; its job takes most of it."""
    GPU_WARNING = "gpu.warning"
    """A GPU is hot, its memory is nearly full, or its hardware slows it down."""
    MODEL_CHANGED = "model.changed"
    MODEL_TIMED = "model.timed"
    MODEL_ASKED = "model.asked"
    BATCH_SUBMITTED = "batch.submitted"
    BATCH_CHANGED = "batch.changed"
    BATCH_ENDED = "batch.ended"
    ITEM_STARTED = "item.started"
    ITEM_COMPLETED = "item.completed"
    ITEM_FAILED = "item.failed"
    ITEM_REQUEUED = "item.requeued"
    ITEM_CANCELLED = "item.cancelled"
    PROVIDER_DOWN = "provider.down"
    PROVIDER_UP = "provider.up"
    TRUST_CHANGED = "trust.changed"
    HISTORY_REMOVED = "history.removed"
    SCHEDULE_CREATED = "schedule.created"
    SCHEDULE_CHANGED = "schedule.changed"
    SCHEDULE_STARTED = "schedule.started"
    """It has submitted a job, in the same commit."""
    SCHEDULE_SKIPPED = "schedule.skipped"
    """One of its times had no job."""
    SCHEDULE_DELETED = "schedule.deleted"
    BUDGET_SET = "budget.set"
    BUDGET_REMOVED = "budget.removed"
    BUDGET_NEARLY_SPENT = "budget.nearly_spent"
    """Four fifths of it are used; the owner can still act."""
    BUDGET_SPENT = "budget.spent"
    """Nothing new of it starts; what runs is ended if it is hard."""
    RESERVATION_ADDED = "reservation.added"
    RESERVATION_REMOVED = "reservation.removed"
    RESERVATION_BEGAN = "reservation.began"
    """From now on, only jobs of its holder start on its GPUs."""
    RESERVATION_SHORT = "reservation.short"
    """It has begun, and does not have all of its GPUs."""
    RESERVATION_UNUSED = "reservation.unused"
    """Another number of its GPUs than before is used by nobody."""
    ARRAY_SUBMITTED = "array.submitted"
    """Its tasks follow, each with its own `job.submitted`, in the same commit."""
    USER_ADDED = "user.added"
    USER_CHANGED = "user.changed"
    TOKEN_ISSUED = "token.issued"
    TOKEN_REVOKED = "token.revoked"
    PROJECT_ADDED = "project.added"
    PROJECT_CHANGED = "project.changed"
    PROJECT_MEMBER_SET = "project.member_set"
    """A user is a member now, or has another role in the project."""
    PROJECT_MEMBER_REMOVED = "project.member_removed"
    DATASET_ADDED = "dataset.added"
    """A dataset has a new version."""
    DATASET_SHARED = "dataset.shared"
    """Other projects may use it now, or may no longer."""
    DATASET_REMOVED = "dataset.removed"
    """All of it, or one version."""
    WORKSPACE_NEARLY_FULL = "workspace.nearly_full"
    """The workspaces of a project near their quota."""
    WORKSPACE_OVER_QUOTA = "workspace.over_quota"
    """No new jobs of the project with a workspace are taken."""
    WORKSPACE_EXPIRES = "workspace.expires"
    """Nobody has used it for long: at `goes_at` it is removed."""
    WORKSPACE_REMOVED = "workspace.removed"
    ARRAY_UPDATED = "array.updated"
    """Its owner gave it another limit or priority."""


class Change(msgspec.Struct, frozen=True):
    """The row `key` of `table` now has these `values`; other columns keep theirs.

    None: the row was removed, because its time was over.
    """

    table: Table
    key: str
    values: Row | None


class Event(msgspec.Struct, frozen=True):
    """Something that happened at `at` (UTC seconds).

    `info` is for readers of the stream; state is in `changes`.
    """

    kind: EventKind
    at: float
    changes: tuple[Change, ...] = ()
    job_id: str | None = None
    info: Row = msgspec.field(default_factory=dict[str, Any])
