"""Artifacts: files that a job leaves and gpuyard keeps, once the job has ended."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated

import msgspec
from msgspec import Meta
from pydantic import BaseModel, Field

from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.wire_types import AttemptId, Count, Sha256, Time

MAX_PATTERNS = 50
MAX_PATH = 4096
# How many files one message names.
FILES_AT_ONCE = 500
DAY_S = 86400.0
LONGEST_LINK_S = 366 * DAY_S
LINKS_NOTE = "artifact_links"
"""The note of the ledger that has the key of links to artifacts."""


def check_artifacts(patterns: Sequence[str], *, always: bool, is_command: bool) -> None:
    """ValueError for patterns in a job that cannot have them."""
    if patterns and not is_command:
        raise ValueError(
            "@artifacts@does not belong in a job that runs no command; leave it out"
        )
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(
            f"@artifacts@has {len(patterns)} patterns; give at most {MAX_PATTERNS}, or"
            " the folder that holds the files"
        )
    if always and not patterns:
        raise ValueError(
            "@artifacts_always@is true, and artifacts names no files; give both"
        )


def is_inside(path: str) -> bool:
    """Whether a path names something below a folder that it is relative to."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts


# --- between server and agent ---


class ArtifactOrder(msgspec.Struct, frozen=True):
    """Which files an agent saves when the program has ended, and whether also when it
    has failed or was stopped.
    """

    patterns: list[str]
    always: bool = False


class SavedArtifact(msgspec.Struct, frozen=True, array_like=True):
    """A file in the blob store; its path is relative to the job's folder."""

    path: Annotated[str, Meta(min_length=1, max_length=MAX_PATH)]
    sha256: Sha256
    size: Count


class ArtifactsSaved(
    msgspec.Struct, frozen=True, omit_defaults=True, tag="ArtifactsSaved"
):
    """Artifacts of an attempt; `problems` say, for people, what is left out."""

    attempt_id: AttemptId
    at: Time
    files: Annotated[list[SavedArtifact], Meta(max_length=FILES_AT_ONCE)] = []
    problems: Annotated[list[str], Meta(max_length=20)] = []


# --- what the API shows ---


class Artifact(BaseModel):
    """A file that a job has left. `path` is relative to the job's folder, `size` is in
    bytes, `created_at` in UTC seconds.
    """

    id: str
    job_id: str
    attempt_id: str
    path: str
    size: int
    sha256: str
    created_at: float


class FoundArtifact(Artifact):
    """A file that a job has left, with the name of the job, its project and who
    submitted it. Without `user`, that was the owner of the instance.
    """

    job_name: str
    project: str | None = None
    user: str | None = None


class ArtifactLink(BaseModel):
    """A link to one artifact for people without a token, until `expires_at` (UTC
    seconds). `id` is for ending it before that; a server that is older gives none.
    """

    id: str = ""
    url: str
    expires_at: float


class LivingLink(ArtifactLink):
    """A link that still opens an artifact: who has made it, and when (UTC seconds).
    Without `made_by`, it was the owner of the instance.
    """

    made_by: str | None
    created_at: float


def links_note(artifact_id: str) -> str:
    """The note of the ledger that lists the links to an artifact."""
    return f"{LINKS_NOTE}:{artifact_id}"


class WantedLink(StrictModel):
    """For how many seconds a link is to be valid."""

    valid_s: float = Field(default=7 * DAY_S, gt=0, le=LONGEST_LINK_S)
