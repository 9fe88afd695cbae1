"""Batches: one script for many items, submitted as one."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator

from gpuyard.domain.job_variables import check_environment
from gpuyard.domain.spec_values import Data, Name, SecretName, Text
from gpuyard.domain.strict_model import StrictModel

MAX_ITEMS = 100_000
ItemPath = Annotated[Text, StringConstraints(min_length=1, max_length=4096)]


class BatchMode(StrEnum):
    """`exclusive`: until the batch has ended, models leave every GPU that is not a
    brain's.

    `shared`: models stay.
    """

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class BatchState(StrEnum):
    """`reloading`: its items have ended, and models that left for it are loaded
    again. `failed`: all of its items failed.
    """

    RUNNING = "running"
    RELOADING = "reloading"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Nothing more happens."""
        return self not in (BatchState.RUNNING, BatchState.RELOADING)


class ItemState(StrEnum):
    """The state of an item."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """It will not run, unless somebody submits it again."""
        return self not in (ItemState.QUEUED, ItemState.RUNNING)


# The seed document's words.
STATUS = {
    ItemState.QUEUED: "queued",
    ItemState.RUNNING: "running",
    ItemState.COMPLETED: "complete",
    ItemState.FAILED: "failed",
    ItemState.CANCELLED: "failed",
}


class ItemSpec(StrictModel):
    """One item: a file, or the `entry` of an archive.

    `seconds` is how long its media play, where that is known.
    """

    path: ItemPath
    entry: ItemPath | None = None
    seconds: float | None = Field(default=None, ge=0, le=366 * 86400)
    args: Data = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchOwner:
    """Whose a batch is: its project, and the user who submitted it, if the server knows
    that. Together they choose the account of its workers, as for any job.
    """

    project: str | None = None
    user: str | None = None

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any]) -> "BatchOwner":
        """That in what the ledger has of the workers' spec."""
        return cls(spec.get("project"), spec.get("user"))


NO_OWNER = BatchOwner()


class BatchSpec(StrictModel):
    """A batch. `script`: its name, or a task's type. Without a `mode` the number of
    items decides.

    `project` may choose the account under which its workers run.
    `source` says where the items come from. `results` is the folder in which a folder
    for this batch's results is made. The same `idempotency_key` means the same batch.
    """

    script: Name
    items: tuple[ItemSpec, ...] = Field(min_length=1, max_length=MAX_ITEMS)
    source: ItemPath
    results: Annotated[ItemPath, StringConstraints(pattern="^/")]
    mode: BatchMode | None = None
    args: Data = Field(default_factory=dict)
    environment: dict[str, Text] = Field(default_factory=dict[str, Text])
    secrets: dict[str, SecretName] = Field(default_factory=dict)
    priority: int = Field(default=3, ge=1, le=5)
    project: Name | None = None
    idempotency_key: Name | None = None

    def digest(self, user: str | None = None) -> str:
        """What tells it from another one under the same idempotency key, if `user`
        submits it.
        """
        # Without a project it is what it was before there were any.
        left_out = {"project"} if self.project is None else None
        body = self.model_dump_json(exclude=left_out)
        text = f"{body}\n{user}" if user else body
        return hashlib.sha256(text.encode()).hexdigest()

    @model_validator(mode="after")
    def _environment_is_legal(self) -> Self:
        check_environment(self.environment)
        check_environment(self.secrets, "secrets")
        return self


def record(batch: dict[str, Any], items: list[dict[str, Any]]) -> dict[str, Any]:
    """The seed document's record of a batch, from its rows."""
    states = [ItemState(item["state"]) for item in items]
    completed = states.count(ItemState.COMPLETED)
    return {
        "batch_id": batch["id"],
        "task_class": "script",
        "script": batch["script"],
        "total_items": batch["total"],
        "completed": completed,
        "gpu_mode": batch["mode"],
        "items": [
            {
                "video_path": item["entry"] or item["path"],
                "status": STATUS[ItemState(item["state"])],
            }
            for item in items
        ],
    }
