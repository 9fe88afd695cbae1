"""What jobs take along from their submission: contents under their SHA-256, and the one
interface of the places where they are stored.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from typing import Protocol

# Nobody holds more of a content in memory than a few parts of so many bytes.
PART_BYTES = 1 << 18
# Jobs may be submitted for so long after what they take along was stored.
LATELY_S = 86400.0


class ContentKind(StrEnum):
    """What a content is: an environment, a tree of code or one of its files; the
    manifest of a version of a dataset, or a chunk.
    """

    ENVIRONMENT = "environment"
    TREE = "tree"
    FILE = "file"
    DATASET = "dataset"
    CHUNK = "chunk"


class ContentMissingError(FileNotFoundError):
    """There is no content with this digest."""


def sha256_of(content: bytes) -> str:
    """The digest that a content is named by."""
    return hashlib.sha256(content).hexdigest()


class ContentSource(Protocol):
    """Where contents of one kind are read. It is used from threads, and blocks.

    Failures are OSErrors or GpuyardErrors.
    """

    def parts(self, digest: str) -> Iterator[bytes]:
        """The content, in parts of at most `PART_BYTES`; ContentMissingError."""
        ...


class Contents(ContentSource, Protocol):
    """A place for contents of one kind. Times are UTC seconds."""

    def keep(self, digests: Collection[str]) -> set[str]:
        """Those of `digests` that are stored. They count as stored just now."""
        ...

    def put(self, contents: Iterable[bytes]) -> list[str]:
        """Store these, unless they are there; returns their digests. All count as
        stored just now.
        """
        ...

    def stored_before(self, limit: float) -> set[str]:
        """The digests of those that were stored before the time `limit`."""
        ...

    def remove(self, digests: Collection[str], limit: float) -> None:
        """Remove these, except those that were stored at the time `limit` or later:
        they are somebody's.
        """
        ...


Stores = Callable[[ContentKind], Contents]
"""The place for each kind of content."""
DatasetSources = Callable[[str], ContentSource]
"""Where the datasets of each project are read."""
OF_DATASETS = frozenset({ContentKind.DATASET, ContentKind.CHUNK})
