"""Versions of datasets as folders of a node: each is made once, for all jobs that read
it, and those that were not used for the longest time make room for others.

Jobs may only read. One that runs as the agent does, or as root, can change a copy all
the same: then sizes or times of its files differ, and it is made again. It can also put
links, pipes and endless files there: nothing is read or written through a link, and
nothing read that is no file of the size that is expected.
"""

import hashlib
import json
import os
import shutil
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from gpuyard.config.accounts import ENTER
from gpuyard.config.boot_clock import boot_id
from gpuyard.domain.datasets import Manifest, folders_above, read_manifest
from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage.untrusted import (
    entries,
    folder_beneath,
    folder_in,
    new_file_in,
    open_beneath,
    read_beneath,
    read_json_beneath,
    remove_in,
    write_beneath,
    write_in,
)

_FILES = "files"
_MANIFEST = "manifest"
_FACTS = "facts.json"
_NEW = ".new"
# All files have this time, so that one that was written to is found.
_TIME_S = 946684800
_PART = 1 << 20
# The most bytes of what is noted of a version, and of a manifest of as many files as a
# dataset may have.
_MOST_FACTS = 4096
_MOST_MANIFEST = 1 << 29


class InUseError(OSError):
    """A copy is to be made again, and a job that runs reads it."""


class DatasetCache:
    """The folders below `root`, of at most `limit` bytes together if that is possible.
    `in_use()` are the digests of those that are needed, and for each whether a job that
    runs reads it. All methods block.

    No link is followed below `root`; nor on the way to it from the folder `within`, if
    that is given.
    """

    def __init__(
        self,
        root: Path,
        limit: int,
        in_use: Callable[[], Mapping[str, bool]],
        within: Path | None = None,
    ) -> None:
        self._root = root
        self._top = within or root
        self._steps = root.relative_to(self._top).parts
        self._limit = limit
        self._in_use = in_use

    def folder(self, digest: str) -> Path:
        """Where the files of a version are, or would be."""
        return self._root / digest / _FILES

    def use(self, digest: str) -> bool:
        """Whether the version is there, whole and unchanged; it counts as used now."""
        facts = self._facts_of(digest)
        manifest = self._manifest_of(digest)
        if facts is None or manifest is None:
            return False
        place = Path(*self._steps, digest)
        with suppress(OSError):
            if not _looks_whole(manifest, self._top, place / _FILES):
                return False
            if facts["boot"] != boot_id():
                # What was written just before a power cut may never have got to the
                # disk.
                if not _is_whole(manifest, self._top, place / _FILES):
                    return False
                write_beneath(self._top, place / _FACTS, _facts(manifest))
            with folder_beneath(self._top, place.parts) as inner:
                os.utime(inner)
            return True
        return False

    def _facts_of(self, name: str) -> dict[str, Any] | None:
        """What is noted of a version; None if it is not there, or was not finished."""
        if name.endswith(_NEW):
            return None
        noted = Path(*self._steps, name, _FACTS)
        try:
            found = read_json_beneath(self._top, noted, _MOST_FACTS)
            return {"size": int(found["size"]), "boot": str(found["boot"])}
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None

    def _manifest_of(self, digest: str) -> Manifest | None:
        """The manifest of a version; None if it is not there, or is another one."""
        kept = Path(*self._steps, digest, _MANIFEST)
        try:
            content = read_beneath(self._top, kept, _MOST_MANIFEST)
            if hashlib.sha256(content).hexdigest() != digest:
                return None
            return read_manifest(content)
        except (OSError, InvalidInputError):
            return None

    def make_room(self, size: int) -> None:
        """Remove what was not used for the longest time, and is not in use, until
        `size` more bytes are within the limit. OSError if the disk has no room for
        them.
        """
        found = self._by_last_use()
        total = sum(facts["size"] for _, facts in found) + size
        in_use = self._in_use()
        for name, facts in found:
            is_needed = total > self._limit or not self._has_room(size)
            if is_needed and name not in in_use:
                with folder_beneath(self._top, self._steps) as root:
                    remove_in(root, name)
                total -= facts["size"]
        if not self._has_room(size):
            raise OSError(
                f"the disk of {self._root} has no room for the {size} bytes of the"
                " dataset"
            )

    def _has_room(self, size: int) -> bool:
        with folder_beneath(self._top, self._steps, make=ENTER) as root:
            return shutil.disk_usage(root).free > size

    def _by_last_use(self) -> list[tuple[str, dict[str, Any]]]:
        """The versions that are there, the one whose use is the longest ago first."""
        found: list[tuple[float, str, dict[str, Any]]] = []
        try:
            with folder_beneath(self._top, self._steps) as root:
                for entry in entries(root):
                    facts = self._facts_of(entry.name)
                    if facts is not None:
                        found.append((entry.status.st_mtime, entry.name, facts))
        except FileNotFoundError:
            return []
        found.sort(key=lambda each: each[0])
        return [(name, facts) for _, name, facts in found]

    def begin(self, digest: str) -> "DatasetBuilder":
        """Begin to make a version; what is left of it goes. InUseError if a job reads
        it.
        """
        with folder_beneath(self._top, self._steps, make=ENTER) as root:
            if _is_there(digest, root) and self._in_use().get(digest):
                raise InUseError("a job that runs has changed the copy of this node")
            remove_in(root, digest)
            fresh = f"{digest}{_NEW}"
            remove_in(root, fresh)
            os.mkdir(fresh, ENTER, dir_fd=root)
        return DatasetBuilder(self._top, self._steps, digest)


class DatasetBuilder:
    """Writes the files of a version into a fresh folder, which gets its name in the
    end. That lies `steps` below `top`.
    """

    def __init__(self, top: Path, steps: Sequence[str], digest: str) -> None:
        self._top = top
        self._steps = steps
        self._digest = digest
        self._fresh = f"{digest}{_NEW}"

    def discard(self) -> None:
        """Remove what was written, if it was not finished."""
        with suppress(OSError), folder_beneath(self._top, self._steps) as root:
            remove_in(root, self._fresh)

    def build(self, manifest: Manifest, chunks: "ChunkReader") -> None:
        """Write all files, from `chunks`, which gives them in order. OSError."""
        with (
            folder_beneath(self._top, self._steps) as root,
            folder_in(root, (self._fresh,)) as place,
        ):
            with folder_in(place, (_FILES,), make=0o700) as files:
                _write_files(files, manifest, chunks)
            write_in(place, _MANIFEST, manifest.encoded())
            write_in(place, _FACTS, _facts(manifest))
            os.rename(self._fresh, self._digest, src_dir_fd=root, dst_dir_fd=root)


def _write_files(files: int, manifest: Manifest, chunks: "ChunkReader") -> None:
    """Write the files of a version into an open folder, and make it read-only."""
    folders = {above for path, _, _ in manifest.files for above in folders_above(path)}
    for path in folders:
        with folder_in(files, path.split("/"), make=0o700):
            pass
    for path, size, executable in manifest.files:
        *steps, name = path.split("/")
        with (
            folder_in(files, steps) as folder,
            new_file_in(folder, name) as file,
        ):
            chunks.copy(size, file)
            file.flush()
            os.fchmod(file.fileno(), 0o555 if executable else 0o444)
            os.utime(file.fileno(), (_TIME_S, _TIME_S))
    for path in folders:
        with folder_in(files, path.split("/")) as folder:
            os.fchmod(folder, 0o555)
    os.fchmod(files, 0o555)


class ChunkReader:
    """The chunks of a version as one stream; `read(digest)` gives one of them."""

    def __init__(self, manifest: Manifest, read: Callable[[str], bytes]) -> None:
        self._left = iter(manifest.chunks)
        self._read = read
        self._chunk = memoryview(b"")

    def copy(self, size: int, file: IO[bytes]) -> None:
        """Write the next `size` bytes to a file; OSError."""
        while size:
            if not self._chunk:
                self._chunk = memoryview(self._next())
            part = self._chunk[:size]
            file.write(part)
            self._chunk = self._chunk[len(part) :]
            size -= len(part)

    def _next(self) -> bytes:
        digest, size = next(self._left)
        content = self._read(digest)
        if len(content) != size:
            raise OSError(f"chunk {digest[:12]} has {len(content)} bytes, not {size}")
        return content


def _is_there(name: str, folder: int) -> bool:
    """Whether an open folder has something of this name."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _facts(manifest: Manifest) -> bytes:
    return json.dumps({"size": manifest.size, "boot": boot_id()}).encode()


def _looks_whole(manifest: Manifest, top: Path, files: Path) -> bool:
    """Whether nobody has written to a file in the folder `files` below `top`."""
    by_folder = defaultdict[str, list[tuple[str, int]]](list)
    for path, size, _ in manifest.files:
        folder, _, name = path.rpartition("/")
        by_folder[folder].append((name, size))
    for folder, sizes in by_folder.items():
        with folder_beneath(top, (files / folder).parts) as inner:
            for name, size in sizes:
                status = os.stat(name, dir_fd=inner, follow_symlinks=False)
                is_file = stat.S_ISREG(status.st_mode)
                if not is_file or (status.st_size, status.st_mtime) != (size, _TIME_S):
                    return False
    return True


def _is_whole(manifest: Manifest, top: Path, files: Path) -> bool:
    """Whether the content of all files is what it was; OSError."""
    hashes = _Hashes([size for _, size in manifest.chunks])
    for path, size, _ in manifest.files:
        with open_beneath(top, files / path) as file:
            for part in _parts(file, size):
                hashes.add(part)
    return hashes.found == [digest for digest, _ in manifest.chunks]


def _parts(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file, in parts."""
    while size and (part := file.read(min(size, _PART))):
        size -= len(part)
        yield part


class _Hashes:
    """The SHA-256 of the parts of a stream that have these `sizes`."""

    def __init__(self, sizes: Collection[int]) -> None:
        self._sizes = iter(sizes)
        self._left = 0
        self._digest = hashlib.sha256()
        self.found: list[str] = []

    def add(self, data: bytes) -> None:
        """The next bytes."""
        while data:
            if not self._left:
                self._left = next(self._sizes, len(data))
                self._digest = hashlib.sha256()
            part = data[: self._left]
            self._digest.update(part)
            self._left -= len(part)
            data = data[len(part) :]
            if not self._left:
                self.found.append(self._digest.hexdigest())
