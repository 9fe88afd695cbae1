"""Where the chunks and the manifests of datasets are stored: with the checkpoints, in a
place of its own for each project, so that what one project has tells another nothing.
"""

import hashlib
import io
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from gpuyard.config.paths import Home
from gpuyard.config.settings import StorageSettings
from gpuyard.domain.contents import PART_BYTES, ContentMissingError, sha256_of
from gpuyard.domain.datasets import Manifest, read_manifest
from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage.blobs import Blobs, BlobStore, ReceivingBlobs, open_blobs
from gpuyard.storage.incoming import IncomingBlob
from gpuyard.storage.place import in_background

# A bucket answers each question after some milliseconds.
_ASKED_AT_ONCE = 16
_MOST_OPEN = 64
# So much of a chunk is gathered before a thread writes it.
_WRITTEN_AT_ONCE = 2 << 20


class DatasetMissingError(FileNotFoundError):
    """A version, or a part of it, is no longer stored."""


@runtime_checkable
class _Folders(Protocol):
    """A bucket, whose library only its users need."""

    def folders(self) -> list[str]: ...


class DatasetStores:
    """The store of each project's datasets. Opening one touches nothing."""

    def __init__(self, home: Path, settings: StorageSettings) -> None:
        self._home = home
        self._settings = settings
        self._open: dict[str, ReceivingBlobs] = {}

    def __call__(self, project: str) -> ReceivingBlobs:
        """That of `project`."""
        store = self._open.pop(project, None) or self._opened(project)
        # The last that was asked for stands last. Anybody may ask for any name.
        self._open[project] = store
        while len(self._open) > _MOST_OPEN:
            self._open.pop(next(iter(self._open)), None)
        return store

    def in_folders(self) -> dict[str, ReceivingBlobs]:
        """The stores of all projects, by `folder_of` them. It blocks. OSError."""
        place = self._at("")
        if isinstance(place, BlobStore):
            found = place.root.iterdir() if place.root.is_dir() else ()
            names = [one.name for one in found if one.is_dir()]
        else:
            assert isinstance(place, _Folders)
            names = place.folders()
        return {name: self._at(name) for name in names}

    def _opened(self, project: str) -> ReceivingBlobs:
        return self._at(folder_of(project))

    def _at(self, folder: str) -> ReceivingBlobs:
        if self._settings.url is None:
            return BlobStore(Home(self._home).blobs / "datasets" / folder)
        url = f"{self._settings.url.rstrip('/')}/datasets/{folder}".rstrip("/")
        return open_blobs(url, self._settings.options, scratch=self._home)


def folder_of(project: str) -> str:
    """The folder of a project, which may have any name: safe in every path and URL."""
    return hashlib.sha256(project.encode()).hexdigest()[:32]


def remove_abandoned(blobs: Blobs, old: Iterable[str], kept: Iterable[str]) -> int:
    """Remove those of the `old` chunks that no version has: of uploads that nobody
    finished. `kept` are the digests of the versions. Returns how many; OSError.
    """
    unused = set(old)
    for digest in kept if unused else ():
        unused.discard(digest)
        unused.difference_update(manifest_of(blobs, digest).digests)
    for digest in unused:
        blobs.delete(digest)
    return len(unused)


def missing(blobs: Blobs, digests: Iterable[str]) -> list[str]:
    """Those of `digests` that are not stored, each once. OSError."""
    wanted = list(dict.fromkeys(digests))
    if isinstance(blobs, BlobStore):
        return [digest for digest in wanted if not blobs.has(digest)]
    with ThreadPoolExecutor(_ASKED_AT_ONCE, "datasets") as threads:
        found = list(threads.map(blobs.has, wanted))
    return [digest for digest, has in zip(wanted, found, strict=True) if not has]


async def receive_chunk(
    blobs: ReceivingBlobs, digest: str, parts: AsyncIterator[bytes]
) -> None:
    """Store a chunk that comes in parts; whoever makes a version of it calls
    `sync_names` before. InvalidInputError if it is not what `digest` says; OSError.
    """
    incoming = blobs.incoming()
    held: list[bytes] = []
    size = 0
    try:
        async for part in parts:
            held.append(part)
            size += len(part)
            if size >= _WRITTEN_AT_ONCE:
                await in_background(incoming.write, held)
                held = []
                size = 0
        await in_background(_keep_chunk, blobs, incoming, digest, held)
    except BaseException:
        await in_background(incoming.close)
        raise


def _keep_chunk(
    blobs: Blobs, incoming: IncomingBlob, digest: str, rest: Sequence[bytes]
) -> None:
    incoming.write(rest)
    if incoming.blob().sha256 != digest:
        raise InvalidInputError.of(
            "(body)", f"does not hash to {digest}", "send the chunk again"
        )
    if blobs.has(digest):
        incoming.close()
    else:
        incoming.keep()


def put_manifest(blobs: Blobs, manifest: Manifest) -> str:
    """Store a manifest; its digest. OSError."""
    return blobs.put(io.BytesIO(manifest.encoded())).sha256


def manifest_of(blobs: Blobs, digest: str) -> Manifest:
    """The manifest with this digest; DatasetMissingError, OSError."""
    return read_manifest(read_part(blobs, digest))


def read_part(blobs: Blobs, digest: str) -> bytes:
    """A chunk or a manifest, verified; DatasetMissingError, OSError."""
    try:
        with blobs.open(digest) as file:
            content = file.read()
    except FileNotFoundError:
        fault = f"a part of it ({digest[:12]}) is no longer stored"
        raise DatasetMissingError(fault) from None
    if sha256_of(content) != digest:
        raise DatasetMissingError(f"a part of it ({digest[:12]}) is damaged")
    return content


def remove_unused(blobs: Blobs, removed: Sequence[str], kept: Iterable[str]) -> None:
    """Remove the versions with the digests `removed`, but for the chunks that those
    with the digests `kept` have, too. OSError.
    """
    used: set[str] = set()
    for digest in kept:
        used.add(digest)
        used.update(manifest_of(blobs, digest).digests)
    for digest in removed:
        if digest in used:
            continue
        chunks = manifest_of(blobs, digest).digests
        for chunk in chunks:
            if chunk not in used:
                blobs.delete(chunk)
        # Last: if this is interrupted, it can be done again.
        blobs.delete(digest)


class DatasetSource:
    """The store of a project as a place from which contents are sent."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def parts(self, digest: str) -> Iterator[bytes]:
        """See ContentSource."""
        try:
            file = self._blobs.open(digest)
        except FileNotFoundError as error:
            raise ContentMissingError(digest) from error
        with file:
            yield from iter(partial(file.read, PART_BYTES), b"")
