"""Stores what jobs take along from their submission in folders; `ledger/contents.py`
stores it in a database.
"""

import io
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from gpuyard.config.paths import Home
from gpuyard.domain.contents import (
    PART_BYTES,
    ContentKind,
    ContentMissingError,
    Contents,
    Stores,
    sha256_of,
)
from gpuyard.storage.blobs import BlobStore


class FolderContents:
    """Contents in `folder`, in files that only their owner reads. A file was last
    changed when its content was last stored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blobs = BlobStore(folder)
        # Held while one file is touched or removed.
        self._lock = threading.Lock()

    def has(self, digest: str) -> bool:
        """Whether it is stored."""
        return self._blobs.has(digest)

    def keep(self, digests: Collection[str]) -> set[str]:
        """See Contents."""
        return {digest for digest in digests if self._touch(digest)}

    def _touch(self, digest: str) -> bool:
        try:
            with self._lock:
                os.utime(self._blobs.path(digest))
        except FileNotFoundError:
            return False
        return True

    def put(self, contents: Iterable[bytes]) -> list[str]:
        """See Contents."""
        return [self._put(content) for content in contents]

    def _put(self, content: bytes) -> str:
        digest = sha256_of(content)
        path = self._blobs.path(digest)
        with suppress(FileNotFoundError):
            if path.stat().st_size != len(content):
                path.unlink()  # damaged
        if not self._touch(digest):
            self._blobs.put(io.BytesIO(content))
        return digest

    def put_file(self, file: IO[bytes]) -> None:
        """Store the content of a file."""
        self._blobs.put(file)

    def parts(self, digest: str) -> Iterator[bytes]:
        """See Contents."""
        try:
            file = self._blobs.open(digest)
        except FileNotFoundError as error:
            raise ContentMissingError(digest) from error
        with file:
            yield from iter(partial(file.read, PART_BYTES), b"")

    def stored_before(self, limit: float) -> set[str]:
        """See Contents."""
        found: set[str] = set()
        for path in self._blobs.root.glob("??/*"):
            with suppress(FileNotFoundError):  # another one removes them, too
                if path.stat().st_mtime < limit:
                    found.add(path.parent.name + path.name)
        return found

    def remove(self, digests: Collection[str], limit: float) -> None:
        """See Contents."""
        for digest in digests:
            with self._lock, suppress(FileNotFoundError):
                if self._blobs.path(digest).stat().st_mtime < limit:
                    self._blobs.delete(digest)


class LayeredContents:
    """Contents that are stored in the place `first`; what only `second` has is found
    there.
    """

    def __init__(self, first: Contents, second: Contents) -> None:
        self._first = first
        self._second = second

    def keep(self, digests: Collection[str]) -> set[str]:
        """See Contents. What is not in the first place has to be stored there."""
        return self._first.keep(digests)

    def put(self, contents: Iterable[bytes]) -> list[str]:
        """See Contents."""
        return self._first.put(contents)

    def parts(self, digest: str) -> Iterator[bytes]:
        """See Contents."""
        found = self._first.parts(digest)
        try:
            beginning = next(found, b"")
        except ContentMissingError:
            found = self._second.parts(digest)
            beginning = next(found, b"")
        yield beginning
        yield from found

    def stored_before(self, limit: float) -> set[str]:
        """See Contents."""
        return self._first.stored_before(limit) | self._second.stored_before(limit)

    def remove(self, digests: Collection[str], limit: float) -> None:
        """See Contents."""
        for place in (self._first, self._second):
            place.remove(digests, limit)


def folder_stores(root: Path) -> Callable[[ContentKind], FolderContents]:
    """The places in a home, or in a folder that is laid out like one."""
    home = Home(root)
    places = {
        ContentKind.ENVIRONMENT: FolderContents(home.environments),
        ContentKind.TREE: FolderContents(home.code / "trees"),
        ContentKind.FILE: FolderContents(home.code / "files"),
        ContentKind.DATASET: FolderContents(home.root / "datasets" / "manifests"),
        ContentKind.CHUNK: FolderContents(home.root / "datasets" / "chunks"),
    }
    return places.__getitem__


def stores_of_node(root: Path) -> Stores:
    """Where the agent of the home `root` finds what a job took along: the server of
    this home has stored it there, or the agent has fetched it.
    """
    own = folder_stores(root)
    fetched = folder_stores(Home(root).fetched)
    return lambda kind: LayeredContents(own(kind), fetched(kind))


def read_whole(contents: Contents, digest: str) -> bytes:
    """A content that is small enough; ContentMissingError."""
    return b"".join(contents.parts(digest))
