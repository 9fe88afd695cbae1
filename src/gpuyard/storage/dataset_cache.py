"""Versions of datasets as folders of a node: each is made once, for all jobs that read
it, and those that were not used for the longest time make room for others.

Jobs may only read. One that runs as the agent does, or as root, can change a copy all
the same: then sizes or times of its files differ, and it is made again.
"""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any

from gpuyard.config.accounts import ENTER
from gpuyard.config.boot_clock import boot_id
from gpuyard.domain.datasets import Manifest, folders_above, read_manifest
from gpuyard.domain.errors import InvalidInputError

_FILES = "files"
_MANIFEST = "manifest"
_FACTS = "facts.json"
_NEW = ".new"
# All files have this time, so that one that was written to is found.
_TIME_S = 946684800
_PART = 1 << 20


class InUseError(OSError):
    """A copy is to be made again, and a job that runs reads it."""


class DatasetCache:
    """The folders below `root`, of at most `limit` bytes together if that is possible.
    `in_use()` are the digests of those that are needed, and for each whether a job that
    runs reads it. All methods block.
    """

    def __init__(
        self, root: Path, limit: int, in_use: Callable[[], Mapping[str, bool]]
    ) -> None:
        self._root = root
        self._limit = limit
        self._in_use = in_use

    def folder(self, digest: str) -> Path:
        """Where the files of a version are, or would be."""
        return self._root / digest / _FILES

    def use(self, digest: str) -> bool:
        """Whether the version is there, whole and unchanged; it counts as used now."""
        place = self._root / digest
        facts = _facts_of(place)
        if facts is None:
            return False
        try:
            manifest = read_manifest((place / _MANIFEST).read_bytes())
        except (OSError, InvalidInputError):
            return False
        files = place / _FILES
        if not _looks_whole(manifest, files):
            return False
        if facts["boot"] != boot_id():
            # What was written just before a power cut may never have got to the disk.
            if not _is_whole(manifest, files):
                return False
            _note(place, manifest)
        os.utime(place)
        return True

    def make_room(self, size: int) -> None:
        """Remove what was not used for the longest time, and is not in use, until
        `size` more bytes are within the limit. OSError if the disk has no room for
        them.
        """
        found = self._by_last_use()
        total = sum(facts["size"] for _, facts in found) + size
        in_use = self._in_use()
        for place, facts in found:
            is_needed = total > self._limit or not self._has_room(size)
            if is_needed and place.name not in in_use:
                remove_read_only(place)
                total -= facts["size"]
        if not self._has_room(size):
            raise OSError(
                f"the disk of {self._root} has no room for the {size} bytes of the"
                " dataset"
            )

    def _has_room(self, size: int) -> bool:
        self._make_root()
        return shutil.disk_usage(self._root).free > size

    def _make_root(self) -> None:
        self._root.mkdir(mode=ENTER, parents=True, exist_ok=True)

    def _by_last_use(self) -> list[tuple[Path, dict[str, Any]]]:
        """The versions that are there, the one whose use is the longest ago first."""
        if not self._root.is_dir():
            return []
        found: list[tuple[float, Path, dict[str, Any]]] = []
        for place in self._root.iterdir():
            facts = _facts_of(place)
            if facts is not None:
                found.append((place.stat().st_mtime, place, facts))
        found.sort(key=lambda each: each[0])
        return [(place, facts) for _, place, facts in found]

    def begin(self, digest: str) -> "DatasetBuilder":
        """Begin to make a version; what is left of it goes. InUseError if a job reads
        it.
        """
        place = self._root / digest
        if place.exists() and self._in_use().get(digest):
            raise InUseError("a job that runs has changed the copy of this node")
        self._make_root()
        remove_read_only(place)
        fresh = self._root / f"{digest}{_NEW}"
        remove_read_only(fresh)
        fresh.mkdir(mode=ENTER)
        return DatasetBuilder(fresh, place)


class DatasetBuilder:
    """Writes the files of a version into the folder `fresh`, which becomes `place`."""

    def __init__(self, fresh: Path, place: Path) -> None:
        self._fresh = fresh
        self._place = place
        self._files = fresh / _FILES
        self._files.mkdir()

    def discard(self) -> None:
        """Remove what was written, if it was not finished."""
        remove_read_only(self._fresh)

    def build(self, manifest: Manifest, chunks: "ChunkReader") -> None:
        """Write all files, from `chunks`, which gives them in order. OSError."""
        folders = {
            above for path, _, _ in manifest.files for above in folders_above(path)
        }
        for folder in sorted(folders):
            (self._files / folder).mkdir()
        for path, size, executable in manifest.files:
            target = self._files / path
            with target.open("xb") as file:
                chunks.copy(size, file)
            target.chmod(0o555 if executable else 0o444)
            os.utime(target, (_TIME_S, _TIME_S))
        for folder in folders:
            (self._files / folder).chmod(0o555)
        self._files.chmod(0o555)
        (self._fresh / _MANIFEST).write_bytes(manifest.encoded())
        _note(self._fresh, manifest)
        self._fresh.rename(self._place)


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


def remove_read_only(folder: Path) -> None:
    """Remove a folder in which nothing may be changed; OSError."""
    if not folder.is_dir():
        return
    folder.chmod(0o700)
    for inner, names, _ in os.walk(folder):
        for name in names:
            if not os.path.islink(f"{inner}/{name}"):  # noqa: PTH114
                os.chmod(f"{inner}/{name}", 0o700, follow_symlinks=False)  # noqa: PTH101
    shutil.rmtree(folder)


def _note(place: Path, manifest: Manifest) -> None:
    facts = {"size": manifest.size, "boot": boot_id()}
    (place / _FACTS).write_text(json.dumps(facts))


def _facts_of(place: Path) -> dict[str, Any] | None:
    """What is noted of a version; None if it is not there, or was not finished."""
    if place.name.endswith(_NEW):
        return None
    try:
        found = json.loads((place / _FACTS).read_text())
        return {"size": int(found["size"]), "boot": str(found["boot"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _looks_whole(manifest: Manifest, files: Path) -> bool:
    """Whether nobody has written to a file."""
    for path, size, _ in manifest.files:
        try:
            status = os.lstat(f"{files}/{path}")
        except OSError:
            return False
        is_file = stat.S_ISREG(status.st_mode)
        if not is_file or (status.st_size, status.st_mtime) != (size, _TIME_S):
            return False
    return True


def _is_whole(manifest: Manifest, files: Path) -> bool:
    """Whether the content of all files is what it was."""
    hashes = _Hashes([size for _, size in manifest.chunks])
    for path, _, _ in manifest.files:
        with (files / path).open("rb") as file:
            while part := file.read(_PART):
                hashes.add(part)
    return hashes.found == [digest for digest, _ in manifest.chunks]


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
