"""Snapshots: a working directory as one blob, for a job that runs elsewhere.

The archive holds names, contents, links and who may be executed, and nothing of owners or times, so the same content is
the same blob and is stored once. What `.gitignore` and `.gpuyardignore` name is left out (`ignoring`), and always
`.git`, `__pycache__` and virtual environments.
"""

import errno
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage.archive import beside
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.listing import Entry, Listing, look, unreadable
from gpuyard.storage.streams import CHUNK, Blob, as_file

MAX_BYTES = 1 << 30
_TRIES = 3
_AGAIN_S = 0.5
_TRUSTED_NS = 2_000_000_000
_MOST_KNOWN = 1000
# How opening says that a file is there no more, or is a link or a socket now.
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP, errno.ENXIO}

# What has been stored, by the hash of its listing (names, sizes, times, inodes), so that a directory that has not
# changed is not read again. In memory, since a server lives long and a lost memory costs one reading. A file changed
# within the clock tick of its last change looks the same before and after, so a listing counts only if all in it was
# last changed 2 s before it was made: the coarsest clock of a file system (FAT's) ticks in 2 s.
_known: dict[bytes, Blob] = {}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A stored working directory: the SHA-256 of its archive, that one's size in bytes, how many files it holds.

    `left_out` are the paths that cannot be taken along, each with the reason; what is ignored is not among them.
    """

    sha256: str
    size: int
    files: int
    left_out: Mapping[str, str]


def take(workdir: Path, blobs: Blobs, *, max_bytes: int = MAX_BYTES) -> Snapshot:
    """Store what `workdir` holds. A directory that has not changed since is not read again.

    InvalidInputError when it holds more than `max_bytes`, cannot be read, keeps changing, or is `/` or the home
    directory; OSError when it cannot be stored.
    """
    root = _checked(workdir)
    changed = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_AGAIN_S)
        began_ns = time.time_ns()
        listing = Listing.of(root)
        listing.check_size(max_bytes)
        try:
            blob = _stored(listing, blobs, began_ns)
        except _ChangedError as error:
            changed = error.path
            continue
        return Snapshot(blob.sha256, blob.size, listing.files, listing.left_out)
    raise InvalidInputError.of(
        "workdir", f"{changed!r} keeps changing while it is read", "name it in .gpuyardignore, or wait"
    )


def unpack(blobs: Blobs, sha256: str, target: Path) -> None:
    """Lay a snapshot out as the directory `target`: whole or not at all.

    One that is there and not empty was laid out before and is left as it is: a job may work in it by now.
    FileNotFoundError when there is no such blob, OSError when it is damaged or would leave `target`.
    """
    if target.is_dir() and any(target.iterdir()):
        return
    with beside(target) as fresh:
        blobs.restore(sha256, fresh, directory=True)
        try:
            fresh.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise  # else another was first


class _ChangedError(Exception):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def _checked(workdir: Path) -> Path:
    root = workdir.resolve()
    if not root.is_dir():
        raise InvalidInputError.of("workdir", f"{str(workdir)!r} is no directory", "name one that is there")
    if Path.home().resolve().is_relative_to(root):
        raise InvalidInputError.of(
            "workdir",
            f"{str(root)!r} holds the home directory, and with it keys and much that no job needs",
            "run the job from the directory of its project",
        )
    return root


def _stored(listing: Listing, blobs: Blobs, began_ns: int) -> Blob:
    key = listing.key()
    known = _known.get(key)
    if known and blobs.has(known.sha256):
        return known
    blob = blobs.put(as_file(_archive(listing)))
    if listing.changed_ns < began_ns - _TRUSTED_NS:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = blob
    return blob


def _archive(listing: Listing) -> Iterator[bytes]:
    """The bytes of a tar file."""
    for entry in listing.entries:
        yield _header(entry).tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if entry.kind == tarfile.REGTYPE:
            yield from _content(listing.root / entry.path, entry)
            yield bytes(-entry.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(entry: Entry) -> tarfile.TarInfo:
    info = tarfile.TarInfo(entry.path)
    info.type, info.size, info.linkname = entry.kind, entry.size, entry.link
    info.mode = 0o755 if entry.executable else 0o644
    return info


def _content(path: Path, entry: Entry) -> Iterator[bytes]:
    """The file's bytes, as many as its header says. _ChangedError when it is no longer the file that was listed."""
    try:
        # What has become a link is not followed, and what has become a pipe is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            left = entry.size
            while left and look(os.fstat(descriptor)) == entry.look and (part := file.read(min(left, CHUNK))):
                left -= len(part)
                yield part
            if left or look(os.fstat(descriptor)) != entry.look:
                raise _ChangedError(entry.path)
    except OSError as error:
        if error.errno in _GONE:
            raise _ChangedError(entry.path) from error
        raise unreadable(entry.path, error) from error
