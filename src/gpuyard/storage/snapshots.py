"""Snapshots: a working directory as one blob, for a job that runs elsewhere.

The archive holds names, contents, links and executable bits, but no owners or times. So
the same content gives the same blob and is stored once. It leaves out what `.gitignore`
and `.gpuyardignore` name (`ignoring`), and always `.git`, `__pycache__` and virtual
environments.
"""

import errno
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage.archive import beside_in
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.listing import (
    SETTLED_NS,
    Listing,
    ListingEntry,
    checked_folder,
    look,
    unreadable,
)
from gpuyard.storage.streams import CHUNK, Blob, as_file
from gpuyard.storage.untrusted import (
    UntrustedFileError,
    entries,
    folder_beneath,
    folder_in,
    open_beneath,
)

MAX_BYTES = 1 << 30
_TRIES = 3
_RETRY_S = 0.5
_MAX_CACHED = 1000
# The errors of `open` for a file that is gone, or has become a link or a socket.
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP, errno.ENXIO}

# The stored snapshots by the hash of their listing (names, sizes, times, inodes), so
# that an unchanged directory is not read again. In memory: a server lives long, and a
# lost entry costs one reading. A file changed within the clock tick of its last change
# looks the same before and after. So a listing is kept only if everything in it was
# last changed at least `SETTLED_NS` before it was made.
_cache: dict[bytes, Blob] = {}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A stored working directory: the SHA-256 and the size in bytes of its archive, and
    the number of its files.

    `left_out` are the paths that cannot be stored, with the reasons; ignored paths are
    not listed.
    """

    sha256: str
    size: int
    files: int
    left_out: Mapping[str, str]


def take(
    workdir: Path,
    blobs: Blobs,
    *,
    max_bytes: int = MAX_BYTES,
    is_public: bool = False,
) -> Snapshot:
    """Store the content of `workdir`. An unchanged directory is not read again.
    `is_public`: only what all users of this host may read. Say so for a job of a user,
    who may not see all that this process may.

    InvalidInputError when it holds more than `max_bytes`, cannot be read, keeps
    changing, or is `/` or the home directory; OSError when it cannot be stored.
    """
    root = checked_folder(workdir, is_public=is_public)
    changed = ""
    for tried in range(_TRIES):
        if tried:
            time.sleep(_RETRY_S)
        began_ns = time.time_ns()
        listing = Listing.of(root, is_public=is_public)
        listing.check_size(max_bytes)
        try:
            blob = _stored(listing, blobs, began_ns)
        except _ChangedError as error:
            changed = error.path
            continue
        return Snapshot(blob.sha256, blob.size, listing.files, listing.left_out)
    raise InvalidInputError.of(
        "workdir",
        f"{changed!r} keeps changing while it is read",
        "name it in .gpuyardignore, or wait",
    )


def unpack(blobs: Blobs, sha256: str, target: Path) -> None:
    """Unpack a snapshot into the directory `target`, whole or not at all.

    A `target` that exists and is not empty was unpacked before and is left as it is: a
    job may already work in it. FileNotFoundError when there is no such blob, OSError
    when it is damaged or would leave `target`.
    """
    with folder_beneath(target.parent, make=0o777) as folder:
        unpack_in(blobs, sha256, folder, target.name)


def unpack_in(blobs: Blobs, sha256: str, folder: int, name: str) -> None:
    """As `unpack`, into the directory `name` of an open folder, where a job may write
    meanwhile: no link is followed.
    """
    with suppress(FileNotFoundError), folder_in(folder, [name]) as inner:
        if entries(inner):
            return
    with beside_in(folder) as fresh:
        blobs.restore_in(sha256, folder, fresh, directory=True)
        try:
            os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise  # else another process was faster


class _ChangedError(Exception):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def _stored(listing: Listing, blobs: Blobs, began_ns: int) -> Blob:
    key = listing.key()
    cached = _cache.get(key)
    if cached and blobs.has(cached.sha256):
        return cached
    blob = blobs.put(as_file(_archive(listing)))
    if listing.changed_ns < began_ns - SETTLED_NS:
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        _cache[key] = blob
    return blob


def _archive(listing: Listing) -> Iterator[bytes]:
    """The bytes of a tar file."""
    for entry in listing.entries:
        yield _header(entry).tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if entry.kind == tarfile.REGTYPE:
            yield from _content(listing.root, entry)
            yield bytes(-entry.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(entry: ListingEntry) -> tarfile.TarInfo:
    info = tarfile.TarInfo(entry.path)
    info.type = entry.kind
    info.size = entry.size
    info.linkname = entry.link
    info.mode = 0o755 if entry.executable else 0o644
    return info


def _content(root: Path, entry: ListingEntry) -> Iterator[bytes]:
    """The file's bytes, as many as its header says. _ChangedError when it is no longer
    the file that was listed.
    """
    try:
        with open_beneath(root, entry.path) as file:
            left = entry.size
            while left and look(os.fstat(file.fileno())) == entry.look:
                data = file.read(min(left, CHUNK))
                if not data:
                    break
                left -= len(data)
                yield data
            if left or look(os.fstat(file.fileno())) != entry.look:
                raise _ChangedError(entry.path)
    except UntrustedFileError as error:
        raise _ChangedError(entry.path) from error
    except OSError as error:
        if error.errno in _GONE:
            raise _ChangedError(entry.path) from error
        raise unreadable(entry.path, error) from error
