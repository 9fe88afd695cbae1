"""The interface of blob stores, and the code that they share.

A blob is copied and hashed in one pass into a temporary file, which is then moved to
its final name: it is there whole or not at all. Stores are used from threads.
"""

import io
import os
import re
import secrets
import shutil
import stat
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path, PurePath
from typing import IO, Protocol

import structlog

from gpuyard.domain.errors import GpuyardError
from gpuyard.storage.archive import beside_in, pack, replace_in, unpack_in
from gpuyard.storage.incoming import IncomingBlob
from gpuyard.storage.streams import CHUNK, Blob, FirstBytes, HashedFile
from gpuyard.storage.untrusted import (
    descriptor_beneath,
    file_of,
    folder_beneath,
    folder_in,
    new_file_in,
)

VARIABLES = {"s3": ("AWS_",), "gs": ("GOOGLE_",), "az": ("AZURE_",)}
"""By kind of bucket, the prefixes of the variables that its library reads. Jobs must
see neither a bucket's key nor its address."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHOWN = 10
log = structlog.get_logger(__name__)


class BucketError(GpuyardError, OSError):
    """The bucket cannot be used: it does not exist, refuses the credentials, or does
    not answer.

    It is an OSError too, like a full disk, so that callers need not know which kind of
    store they use. It says nothing about a blob: that may exist when the bucket works
    again.
    """

    code = "bucket_error"
    status = 502
    exit_code = 4


class Blobs(Protocol):
    """A place for blobs. Failures are OSErrors; a name that is not a SHA-256 in hex is
    a ValueError.

    `name` is the place for people, without secrets. `variables` are the prefixes of the
    environment variables that give access to it: jobs must not see them.
    """

    @property
    def name(self) -> str: ...

    variables: tuple[str, ...]

    def has(self, sha256: str) -> bool:
        """True when the blob exists."""
        ...

    def stored_at(self, sha256: str) -> float | None:
        """When the blob was stored last (UTC seconds, by the clock of the store): to
        store it again counts. None if it does not exist.
        """
        ...

    def put(self, source: IO[bytes]) -> Blob:
        """Store the content of `source`; an OSError leaves nothing behind."""
        ...

    def put_beneath(
        self, folder: Path, name: str | PurePath, *, owner: int | None = None
    ) -> Blob:
        """Store the file or directory `name` below `folder`, where a job may write. A
        directory becomes an uncompressed tar with sorted names, and without owners or
        times.

        No link is followed; a link in the directory that leads out of it is left out.
        With `owner`, only files of that user are read. UntrustedFileError when the file
        itself may not be read.
        """
        ...

    def open(self, sha256: str, part: tuple[int, int] | None = None) -> IO[bytes]:
        """The blob's bytes, not verified; FileNotFoundError when it does not exist.

        With `part`, only the bytes from its first position up to, and without, its
        second; both must lie in the blob.
        """
        ...

    def read(self, sha256: str, most: int) -> bytes:
        """The first `most` bytes of the blob at once; errors as in `open`."""
        ...

    def restore(self, sha256: str, target: Path, *, directory: bool) -> None:
        """Write the blob to `target`, as a file or a directory, and replace what is
        there.

        After an OSError `target` is as it was. Causes: the blob does not exist
        (FileNotFoundError) or is damaged (its hash is not its name), the disk is full,
        or a link in the directory leads out of it.
        """
        ...

    def restore_in(
        self, sha256: str, folder: int, name: str, *, directory: bool
    ) -> None:
        """As `restore`, to `name` in an open folder, where a job may write meanwhile:
        no link is followed.
        """
        ...

    def delete(self, sha256: str) -> None:
        """Remove a blob, if it exists."""
        ...

    def sweep(self) -> None:
        """Remove incomplete files of killed processes."""
        ...

    def abort_unfinished(self, limit: float) -> int:
        """Remove what is left of uploads that were begun before `limit` (UTC seconds)
        and never ended; how many there were. OSError.
        """
        ...

    def check(self) -> None:
        """Store, read and delete a small blob; OSError when that fails."""
        ...


class ReceivingBlobs(Blobs, Protocol):
    """A place that takes blobs in parts, too."""

    def incoming(self) -> IncomingBlob:
        """A blob that is to come in parts."""
        ...

    def sync_names(self, digests: Iterable[str]) -> None:
        """Make the names of blobs that came in parts last through a power cut."""
        ...

    def older_than(self, at: float) -> list[str]:
        """The SHA-256 of the blobs that were stored before `at` (UTC seconds)."""
        ...


class BaseBlobStore(ABC):
    """The code that all stores share; subclasses store the bytes."""

    @abstractmethod
    def open(self, sha256: str, part: tuple[int, int] | None = None) -> IO[bytes]: ...

    @abstractmethod
    def delete(self, sha256: str) -> None: ...

    @abstractmethod
    def _incoming(self) -> AbstractContextManager[IO[bytes]]:
        """An empty temporary file, removed at the end unless it was kept."""

    @abstractmethod
    def _keep(self, file: IO[bytes], blob: Blob) -> None:
        """Store the content of `file` as `blob`, in one step."""

    def _name(self, file: IO[bytes], blob: Blob) -> None:
        """`_keep`, but that the name need not last before `sync_names`."""
        self._keep(file, blob)

    def abort_unfinished(self, limit: float) -> int:
        return 0  # in a folder, `sweep` removes what is left

    def read(self, sha256: str, most: int) -> bytes:
        with self.open(sha256) as file:
            return file.read(most)

    def put(self, source: IO[bytes]) -> Blob:
        return self._save(lambda file: shutil.copyfileobj(source, file, CHUNK))

    def put_beneath(
        self, folder: Path, name: str | PurePath, *, owner: int | None = None
    ) -> Blob:
        descriptor = descriptor_beneath(folder, name, owner=owner)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            try:
                return self._save(lambda file: _pack(descriptor, file, name, owner))
            finally:
                os.close(descriptor)
        with file_of(descriptor, name) as file:
            size = os.fstat(descriptor).st_size
            return self.put(FirstBytes(file, size))  # type: ignore[arg-type]

    def incoming(self) -> IncomingBlob:
        return IncomingBlob(self._incoming, self._name)

    def restore(self, sha256: str, target: Path, *, directory: bool) -> None:
        with folder_beneath(target.parent, make=0o777) as folder:
            self.restore_in(sha256, folder, target.name, directory=directory)

    def restore_in(
        self, sha256: str, folder: int, name: str, *, directory: bool
    ) -> None:
        with self.open(sha256) as source, beside_in(folder) as fresh:
            _write_out(source, folder, fresh, sha256, directory)
            replace_in(folder, fresh, name)

    def check(self) -> None:
        # Random bytes, so that two checks at once do not delete each other's blob.
        blob = self.put(io.BytesIO(b"gpuyard was here: " + secrets.token_bytes(16)))
        with self.open(blob.sha256) as file:
            file.read()
        self.delete(blob.sha256)

    def _save(self, fill: Callable[[IO[bytes]], None]) -> Blob:
        with self._incoming() as file:
            hashed = HashedFile(file)
            fill(hashed)  # type: ignore[arg-type]
            file.flush()
            self._keep(file, hashed.blob)
        return hashed.blob


def blob_key(sha256: str) -> str:
    """The key of a blob, `ab/cdef…`; ValueError when `sha256` is not a SHA-256."""
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256 in hex")
    return f"{sha256[:2]}/{sha256[2:]}"


def _pack(
    folder: int, target: IO[bytes], name: str | PurePath, owner: int | None
) -> None:
    left_out = pack(folder, target, owner=owner)
    if left_out:
        log.warning(
            "a part of a folder is not kept: it leads out of it, or is no file",
            folder=os.fspath(name),
            left_out=left_out[:_SHOWN],
            count=len(left_out),
        )


def _write_out(
    source: IO[bytes], folder: int, fresh: str, sha256: str, directory: bool
) -> None:
    hashed = HashedFile(source)
    fault = None
    try:
        if directory:
            with folder_in(folder, [fresh], make=0o777) as inner:
                unpack_in(hashed, inner)  # type: ignore[arg-type]
        else:
            with new_file_in(folder, fresh, 0o666) as file:
                shutil.copyfileobj(hashed, file, CHUNK)
    except tarfile.TarError as error:
        fault = error
    hashed.drain()  # an archive may end before its blob does
    if hashed.blob.sha256 != sha256:
        raise OSError(
            f"blob {sha256} is damaged: its {hashed.blob.size} bytes hash to"
            f" {hashed.blob.sha256}"
        )
    if fault:
        raise OSError(f"blob {sha256} cannot be unpacked: {fault}") from fault
