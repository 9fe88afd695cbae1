"""The blob store: bytes under their SHA-256, in a directory (`BlobStore`) or in a bucket (`bucket.BucketStore`).

A blob is copied and hashed in one pass into a temporary file and then moved to its name: it is there whole or not at
all. Stores are used from threads.
"""

import io
import os
import re
import secrets
import shutil
import tarfile
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote

from gpuyard.domain.errors import GpuyardError, InvalidInputError, quoted
from gpuyard.storage.archive import beside, pack, replace, unpack
from gpuyard.storage.streams import CHUNK, Blob, HashedFile, as_file

_SHA256 = re.compile(r"[0-9a-f]{64}")
_BUCKETS = ("s3", "gs", "az")


class BucketError(GpuyardError, OSError):
    """The bucket cannot be used: it is not there, refuses the credentials, or does not answer.

    It is an OSError too, as a full disk is, so that who stores blobs need not know where. It says nothing of a blob:
    what is asked for may be there when the bucket is.
    """

    code = "bucket_error"
    status = 502
    exit_code = 4


class Blobs(Protocol):
    """A place for blobs. What fails is an OSError; a name that is no SHA-256 in hex is a ValueError.

    `name` is the place as people know it, without secrets. `variables` are how the names of the environment's variables
    begin that open it: they are nobody else's business.
    """

    @property
    def name(self) -> str: ...

    @property
    def variables(self) -> tuple[str, ...]: ...

    def has(self, sha256: str) -> bool:
        """Is the blob there?"""
        ...

    def put(self, source: IO[bytes]) -> Blob:
        """Store everything `source` holds; OSError (disk full) leaves nothing behind."""
        ...

    def put_directory(self, directory: Path) -> Blob:
        """Store a directory as an uncompressed tar with sorted names and nothing of owners or times."""
        ...

    def put_path(self, path: Path) -> Blob:
        """Store a file, or a directory as `put_directory` does."""
        ...

    def open(self, sha256: str, part: tuple[int, int] | None = None) -> IO[bytes]:
        """The blob's bytes as they are, unverified; FileNotFoundError when it is not there.

        Of `part`, first and end (which is not in it), only those; both have to lie in the blob.
        """
        ...

    def read(self, sha256: str, most: int) -> bytes:
        """As `open`, a small blob's bytes at once; of a larger one the first `most`."""
        ...

    def restore(self, sha256: str, target: Path, *, directory: bool) -> None:
        """Write the blob out as `target`, in place of what is there: a file of its own, or a directory.

        OSError when that cannot be, and `target` is as it was: the blob is gone (FileNotFoundError) or damaged (it does
        not hash to its name), the disk is full, or a link in the directory leads out of it.
        """
        ...

    def delete(self, sha256: str) -> None:
        """Remove a blob; one that is gone already is fine."""
        ...

    def sweep(self) -> None:
        """Remove what a killed process left half-written; call it when nothing is being stored."""
        ...

    def check(self) -> None:
        """Store, read and delete a little; OSError when that cannot be."""
        ...


class Store(ABC):
    """What every store does alike; where a blob's bytes go is the subclass's."""

    @abstractmethod
    def open(self, sha256: str, part: tuple[int, int] | None = None) -> IO[bytes]: ...

    @abstractmethod
    def delete(self, sha256: str) -> None: ...

    @abstractmethod
    def _incoming(self) -> AbstractContextManager[IO[bytes]]:
        """An empty temporary file, gone at the end unless it was kept."""

    @abstractmethod
    def _keep(self, file: IO[bytes], blob: Blob) -> None:
        """Make the content of `file`, which is `blob`, the blob of its name, in one step."""

    def read(self, sha256: str, most: int) -> bytes:
        with self.open(sha256) as file:
            return file.read(most)

    def put(self, source: IO[bytes]) -> Blob:
        return self._save(lambda file: shutil.copyfileobj(source, file, CHUNK))

    def put_directory(self, directory: Path) -> Blob:
        return self._save(lambda file: pack(directory, file))

    def put_path(self, path: Path) -> Blob:
        if path.is_dir():
            return self.put_directory(path)
        with path.open("rb") as file:
            return self.put(file)

    def restore(self, sha256: str, target: Path, *, directory: bool) -> None:
        with self.open(sha256) as source, beside(target) as fresh:
            _write_out(source, fresh, sha256, directory)
            replace(fresh, target)

    def check(self) -> None:
        # Never the same bytes: two that check at once must not delete each other's.
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


class BlobStore(Store):
    """Blobs in the directory `root`, as `ab/cdef…`."""

    variables: tuple[str, ...] = ()

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        self._prefix = f"{root}{os.sep}"

    def path(self, sha256: str) -> Path:
        """Where the blob is, or would be; ValueError when `sha256` is none."""
        return self.root / key(sha256)

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def open(self, sha256: str, part: tuple[int, int] | None = None) -> IO[bytes]:
        file = self.path(sha256).open("rb")
        return as_file(_part(file, *part)) if part else file

    def read(self, sha256: str, most: int) -> bytes:
        # Thousands are read one after the other: to make a Path and a file of each takes as long as to read it.
        file = os.open(f"{self._prefix}{key(sha256)}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, most)
        finally:
            os.close(file)

    def delete(self, sha256: str) -> None:
        self.path(sha256).unlink(missing_ok=True)

    def sweep(self) -> None:
        for path in self.root.glob("incoming-*"):
            path.unlink(missing_ok=True)

    def keep_newest(self, count: int) -> None:
        """Remove all blobs but so many of the newest: for a store whose blobs can be made anew."""
        found = [(path.stat().st_mtime, path) for path in self.root.glob("??/*")]
        for _, path in sorted(found, reverse=True)[count:]:
            path.unlink(missing_ok=True)

    @contextmanager
    def _incoming(self) -> Generator[IO[bytes]]:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=self.root, prefix="incoming-")
        os.close(descriptor)
        try:
            with open(name, "wb") as file:  # noqa: PTH123  (`file.name` is the path)
                yield file
        finally:
            Path(name).unlink(missing_ok=True)

    def _keep(self, file: IO[bytes], blob: Blob) -> None:
        os.fsync(file.fileno())
        target = self.path(blob.sha256)
        target.parent.mkdir(exist_ok=True, mode=0o700)
        Path(file.name).rename(target)


def open_blobs(url: str, options: Mapping[str, str], *, scratch: Path | None = None) -> Blobs:
    """The store at `url`: `/path` or `file:///path`, or a bucket as `s3://bucket/prefix` (also `gs://`, `az://`).

    `options` are those of a bucket's library (`region`, `endpoint`, …). Credentials are not among them: they come from
    the environment. What goes to a bucket passes through a temporary file in `scratch`, when None in the system's place
    for them. InvalidInputError when that is no such place.
    """
    scheme, _, place = url.partition("://")
    if place and scheme in _BUCKETS:
        return _open_bucket(url, options, scratch)
    path = Path(unquote(place) if scheme == "file" else url).expanduser()
    if not path.is_absolute():
        shown = f"{scheme}://{place.rpartition('@')[2]}" if place else url  # without what may be a password
        raise InvalidInputError.of(
            "storage",
            f"{quoted(shown)} is no place for blobs",
            "an absolute path, or a bucket such as s3://bucket/prefix",
        )
    return BlobStore(path)


def key(sha256: str) -> str:
    """The name a blob is kept under, `ab/cdef…`; ValueError when `sha256` is none."""
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256 in hex")
    return f"{sha256[:2]}/{sha256[2:]}"


def _part(file: IO[bytes], first: int, end: int) -> Iterator[bytes]:
    with file:
        file.seek(first)
        while first < end and (data := file.read(min(CHUNK, end - first))):
            first += len(data)
            yield data


def _open_bucket(url: str, options: Mapping[str, str], scratch: Path | None) -> Blobs:
    try:
        from gpuyard.storage.bucket import BucketStore  # only who has a bucket needs its library
    except ModuleNotFoundError as error:
        raise InvalidInputError.of(
            "storage", f"{quoted(url)} needs the package {error.name}", "pip install 'gpuyard[s3]'"
        ) from error
    return BucketStore(url, options, scratch=scratch)


def _write_out(source: IO[bytes], fresh: Path, sha256: str, directory: bool) -> None:
    hashed, fault = HashedFile(source), None
    try:
        if directory:
            fresh.mkdir()
            unpack(hashed, fresh)  # type: ignore[arg-type]
        else:
            with fresh.open("wb") as file:
                shutil.copyfileobj(hashed, file, CHUNK)
    except tarfile.TarError as error:
        fault = error
    hashed.drain()  # an archive may end before its blob does
    if hashed.blob.sha256 != sha256:
        raise OSError(f"blob {sha256} is damaged: its {hashed.blob.size} bytes hash to {hashed.blob.sha256}")
    if fault:
        raise OSError(f"blob {sha256} cannot be unpacked: {fault}") from fault
