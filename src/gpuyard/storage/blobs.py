"""Blob stores: bytes under their SHA-256, in a directory or in a bucket.

`BlobStore` keeps them in a directory, `bucket.BucketStore` in a bucket.
"""

import fcntl
import os
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from urllib.parse import unquote

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.storage.folder_syncs import FolderSyncs, make_folder
from gpuyard.storage.store import (
    BaseBlobStore,
    Blobs,
    BucketError,
    ReceivingBlobs,
    blob_key,
)
from gpuyard.storage.streams import CHUNK, Blob, as_file

__all__ = [
    "Blob",
    "BlobStore",
    "Blobs",
    "BucketError",
    "ReceivingBlobs",
    "open_blobs",
]

_BUCKETS = ("s3", "gs", "az")


class BlobStore(BaseBlobStore):
    """Blobs in the directory `root`, as `ab/cdef…`."""

    variables: tuple[str, ...] = ()

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        self._prefix = f"{root}{os.sep}"
        self._syncs = FolderSyncs()

    def path(self, sha256: str) -> Path:
        """Where the blob is or would be; ValueError when `sha256` is not a SHA-256."""
        return self.root / blob_key(sha256)

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def stored_at(self, sha256: str) -> float | None:
        try:
            return self.path(sha256).stat().st_mtime
        except FileNotFoundError:
            return None

    def open(self, sha256: str, part: tuple[int, int] | None = None) -> IO[bytes]:
        file = self.path(sha256).open("rb")
        return as_file(_part(file, *part)) if part else file

    def read(self, sha256: str, most: int) -> bytes:
        # Thousands are read one after the other: to make a Path and a file object for
        # each takes as long as the reading.
        file = os.open(f"{self._prefix}{blob_key(sha256)}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, most)
        finally:
            os.close(file)

    def delete(self, sha256: str) -> None:
        self.path(sha256).unlink(missing_ok=True)

    def sweep(self) -> None:
        for path in self.root.glob("incoming-*"):
            with suppress(
                OSError
            ):  # somebody holds its lock, or it has just been named
                _unlink_unlocked(path)

    def older_than(self, at: float) -> list[str]:
        """The SHA-256 of the blobs that were stored before `at` (UTC seconds)."""
        found = self.root.glob("??/*")
        return [
            f"{path.parent.name}{path.name}"
            for path in found
            if path.stat().st_mtime < at
        ]

    def keep_newest(self, count: int) -> None:
        """Remove all but the newest `count` blobs: for a store whose blobs can be made
        again.
        """
        found = [(path.stat().st_mtime, path) for path in self.root.glob("??/*")]
        for _, path in sorted(found, reverse=True)[count:]:
            path.unlink(missing_ok=True)

    @contextmanager
    def _incoming(self) -> Generator[IO[bytes]]:
        make_folder(self.root)
        lock, name = self._locked_file()
        try:
            with open(name, "wb") as file:  # noqa: PTH123  (`file.name` is the path)
                yield file
        finally:
            Path(name).unlink(missing_ok=True)
            os.close(lock)

    def _locked_file(self) -> tuple[int, str]:
        """A new file, which `sweep` of another process leaves alone while this one
        lives; the descriptor that holds its lock, and its path.
        """
        while True:
            lock, name = tempfile.mkstemp(dir=self.root, prefix="incoming-")
            with suppress(
                OSError
            ):  # a file system without locks; nothing is swept there
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink > 0:
                return lock, name
            # It was swept before it was locked.
            os.close(lock)

    def _keep(self, file: IO[bytes], blob: Blob) -> None:
        self._name(file, blob)
        self._syncs.sync(self.path(blob.sha256).parent)

    def _name(self, file: IO[bytes], blob: Blob) -> None:
        # A name without its content would count as the blob.
        os.fsync(file.fileno())
        target = self.path(blob.sha256)
        make_folder(target.parent)
        Path(file.name).rename(target)

    def sync_names(self, digests: Iterable[str]) -> None:
        for folder in {self.path(digest).parent for digest in digests}:
            self._syncs.sync(folder)


def _unlink_unlocked(path: Path) -> None:
    """Remove a file that no living process writes. OSError when one does."""
    # On NFS, what is open for reading alone gets no exclusive lock.
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


def open_blobs(
    url: str, options: Mapping[str, str], *, scratch: Path | None = None
) -> ReceivingBlobs:
    """The store at `url`: `/path` or `file:///path`, or a bucket as
    `s3://bucket/prefix` (also `gs://`, `az://`).

    `options` are those of a bucket's library (`region`, `endpoint`, …). They hold no
    credentials: these come from the environment. What goes to a bucket passes through a
    temporary file in `scratch` (None: the system's folder for them). InvalidInputError
    when `url` names no such place.
    """
    scheme, _, place = url.partition("://")
    if place and scheme in _BUCKETS:
        return _open_bucket(url, options, scratch)
    path = Path(unquote(place) if scheme == "file" else url).expanduser()
    if not path.is_absolute():
        # Without the part that may be a password.
        shown = f"{scheme}://{place.rpartition('@')[2]}" if place else url
        raise InvalidInputError.of(
            "storage",
            f"{quoted(shown)} is no place for blobs",
            "an absolute path, or a bucket such as s3://bucket/prefix",
        )
    return BlobStore(path)


def _part(file: IO[bytes], first: int, end: int) -> Iterator[bytes]:
    with file:
        file.seek(first)
        while first < end:
            data = file.read(min(CHUNK, end - first))
            if not data:
                return
            first += len(data)
            yield data


def _open_bucket(
    url: str, options: Mapping[str, str], scratch: Path | None
) -> ReceivingBlobs:
    try:
        # Only users of a bucket need its library.
        from gpuyard.storage.bucket import BucketStore
    except ModuleNotFoundError as error:
        raise needs_package("storage", url, error) from error
    return BucketStore(url, options, scratch=scratch)


def needs_package(
    setting: str, url: str, error: ModuleNotFoundError
) -> InvalidInputError:
    """The library of buckets is not installed."""
    return InvalidInputError.of(
        setting,
        f"{quoted(url)} needs the package {error.name}",
        "pip install 'gpuyard[s3]'",
    )
