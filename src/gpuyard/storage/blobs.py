"""The blob store: bytes under their SHA-256. Today a local directory; an S3 bucket is a second class of this shape.

A blob is copied and hashed in one pass into a temporary file, synced, then renamed: it is there whole or not at all.
"""

import hashlib
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CHUNK = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored blob: its SHA-256 in hex and its size in bytes."""

    sha256: str
    size: int


class BlobStore:
    """Blobs in the directory `root`, as `ab/cdef…`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha256: str) -> Path:
        """Where the blob is, or would be; ValueError when `sha256` is none."""
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"{sha256!r} is not a SHA-256 in hex")
        return self.root / sha256[:2] / sha256[2:]

    def has(self, sha256: str) -> bool:
        """Is the blob there?"""
        return self.path(sha256).is_file()

    def put(self, source: IO[bytes]) -> Blob:
        """Store everything `source` holds; OSError (disk full) leaves nothing behind."""
        with self._temporary() as (file, temporary):
            blob = _copy(source, file)
            self._keep(temporary, blob)
        return blob

    def put_directory(self, directory: Path) -> Blob:
        """Store a directory as an uncompressed tar with sorted names and nothing of owners or times."""
        with self._temporary() as (file, temporary):
            writer = _HashingFile(file)
            with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for path in sorted(directory.rglob("*")):
                    archive.add(path, str(path.relative_to(directory)), recursive=False, filter=_anonymous)
            file.flush()
            blob = Blob(writer.digest.hexdigest(), writer.size)
            self._keep(temporary, blob)
        return blob

    def put_path(self, path: Path) -> Blob:
        """Store a file, or a directory as `put_directory` does."""
        if path.is_dir():
            return self.put_directory(path)
        with path.open("rb") as file:
            return self.put(file)

    def open(self, sha256: str) -> IO[bytes]:
        """The blob's bytes; FileNotFoundError when it is not there."""
        return self.path(sha256).open("rb")

    def restore(self, sha256: str, target: Path, *, directory: bool) -> None:
        """Write the blob out as `target`: a file of its own (a program may change it), or a directory.

        OSError when that cannot be: the blob is gone, the disk is full, or a link in the directory leads out of it.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with self.open(sha256) as source:
            if directory:
                target.mkdir(exist_ok=True)
                try:
                    with tarfile.open(fileobj=source, mode="r|") as archive:
                        archive.extractall(target, filter="data")
                except tarfile.TarError as error:
                    raise OSError(f"blob {sha256} cannot be unpacked: {error}") from error
                return
            with target.open("wb") as file:
                _copy(source, file)

    def sweep(self) -> None:
        """Remove what a killed process left half-written; call it when nothing is being stored."""
        for path in self.root.glob("incoming-*"):
            path.unlink(missing_ok=True)

    def delete(self, sha256: str) -> None:
        """Remove a blob; one that is gone already is fine."""
        self.path(sha256).unlink(missing_ok=True)

    @contextmanager
    def _temporary(self) -> Generator[tuple[IO[bytes], Path]]:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=self.root, prefix="incoming-")
        path = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file, path
        finally:
            with suppress(FileNotFoundError):
                path.unlink()

    def _keep(self, temporary: Path, blob: Blob) -> None:
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        target = self.path(blob.sha256)
        target.parent.mkdir(exist_ok=True, mode=0o700)
        temporary.rename(target)


class _HashingFile(io.RawIOBase):
    """A write-only file that hashes and counts what passes."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: "ReadableBuffer", /) -> int:
        self.digest.update(data)
        self.size += memoryview(data).nbytes
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _copy(source: IO[bytes], target: IO[bytes]) -> Blob:
    writer = _HashingFile(target)
    while chunk := source.read(_CHUNK):
        writer.write(chunk)
    writer.flush()
    return Blob(writer.digest.hexdigest(), writer.size)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info
