"""Takes the code of a working folder, and tells which of its files have changed since.

Code is what git tracks, and everything whose name is that of a program or of its
settings, unless `.gitignore` or `.gpuyardignore` names it (`ignoring`). Data and output
are no code: a job finds them in the folder itself.
"""

import os
import stat
import tarfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from gpuyard.domain.contents import sha256_of
from gpuyard.domain.errors import InvalidInputError, is_text
from gpuyard.storage.code_tree import CodeEntry, CodeTree
from gpuyard.storage.git_state import git_diff, git_state
from gpuyard.storage.listing import (
    SETTLED_NS,
    Listing,
    ListingEntry,
    checked_folder,
    look,
    unreadable,
)
from gpuyard.storage.untrusted import open_beneath

_MOST_PATHS = 20_000
_MOST_CACHED = 100_000
_MB = 1_000_000
_REMEDY = "name data and output in .gpuyardignore, or submit it with --live"
_PROGRAMS = (
    ".py .pyi .pyx .pxd .ipynb .sh .bash .zsh .pl .lua .jl .r .m .rs .go .js .ts .java"
    " .c .h .cc .cpp .cxx .hpp .cu .cuh .cl .f90 .proto .sql .cmake .mk"
)
# Not .json: outside git, that is as often a result.
_SETTINGS = ".toml .yaml .yml .cfg .ini .jinja .j2"
_SUFFIXES = frozenset([*_PROGRAMS.split(), *_SETTINGS.split()])
_NAMES = frozenset({"Makefile", "Dockerfile", "Snakefile", "requirements.txt"})


@dataclass(frozen=True, slots=True)
class CodeLimits:
    """How many files, and how many bytes, the code of a folder may have."""

    files: int
    bytes: int


class CodeKeeper(Protocol):
    """What gets the code that is read: a `CodeStore`, or what stands for it."""

    def keep_files(self, digests: Collection[str]) -> set[str]: ...
    def put_files(self, contents: Iterable[bytes]) -> list[str]: ...
    def put(self, tree: CodeTree) -> str: ...


class CodeReader:
    """Reads the code of folders; a file that looks the same is not read again.

    Used from threads; `store` has the contents.
    """

    def __init__(
        self, store: CodeKeeper, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._store = store
        self._clock_ns = clock_ns
        # By what changes when the content does (`listing.look`).
        self._hashes: dict[tuple[int, ...], str] = {}

    def take(
        self,
        workdir: Path,
        limits: CodeLimits,
        apart_from: Path | None = None,
        *,
        is_public: bool = False,
    ) -> str:
        """Store the code of `workdir`, except what is in the folder `apart_from`;
        returns the digest of its tree. `is_public`: as for `snapshots.take`.

        InvalidInputError when it is too large, cannot be read, is `/` or the home
        directory, or is in `apart_from`; OSError when it cannot be stored.
        """
        root = checked_folder(workdir, is_public=is_public)
        if _is_in(root, apart_from):
            raise InvalidInputError.of(
                "workdir",
                f"{str(root)!r} is in gpuyard's own folder, of which no code is stored",
                "put the program into a folder of its own",
            )
        listing = Listing.of(root, most=_MOST_PATHS, is_public=is_public)
        git = git_state(root)
        tracked = git.tracked if git else frozenset[str]()
        found = [
            entry
            for entry in listing.entries
            if _is_code(entry, tracked) and not _is_in(root / entry.path, apart_from)
        ]
        _check(found, root, limits)
        entries = self._stored(found, root)
        if git is None:
            return self._store.put(CodeTree(entries))
        stored = {entry.path for entry in entries}
        diff = git_diff(root, stored) if git.dirty and git.commit else ""
        return self._store.put(CodeTree(entries, git.commit, git.dirty, diff=diff))

    def changes(self, tree: CodeTree, workdir: Path) -> list[str]:
        """The paths of those files of `tree` that are gone or changed in `workdir`."""
        return [
            entry.path
            for entry in tree.entries
            if not self._is_unchanged(entry, workdir)
        ]

    def _is_unchanged(self, entry: CodeEntry, workdir: Path) -> bool:
        place = f"{workdir}/{entry.path}"
        try:
            status = os.lstat(place)
            if entry.link:
                return stat.S_ISLNK(status.st_mode) and _leads_to(place, entry.link)
            executable = bool(status.st_mode & stat.S_IXUSR)
            if not stat.S_ISREG(status.st_mode) or executable != entry.executable:
                return False
            known = self._hashes.get(look(status))
            return (known or self._hash_of(workdir, entry.path)) == entry.sha256
        except OSError:
            return False

    def _hash_of(self, root: Path, path: str) -> str:
        return sha256_of(self._content(root, path))

    def _stored(self, found: Sequence[ListingEntry], root: Path) -> list[CodeEntry]:
        """The entries of a tree; their contents are stored."""
        files = [entry for entry in found if entry.kind != tarfile.SYMTYPE]
        known = {
            entry.path: self._hashes[entry.look]
            for entry in files
            if entry.look in self._hashes
        }
        kept = self._store.keep_files(set(known.values()))
        others = [entry for entry in files if known.get(entry.path) not in kept]
        contents = (self._readable(root, entry.path) for entry in others)
        stored = self._store.put_files(contents)
        paths = [entry.path for entry in others]
        digests = known | dict(zip(paths, stored, strict=True))
        return [
            CodeEntry(entry.path, digests[entry.path], entry.executable)
            if entry.path in digests
            else CodeEntry(entry.path, link=entry.link)
            for entry in found
        ]

    def _readable(self, root: Path, path: str) -> bytes:
        """The content of a file; InvalidInputError if the file may not be read."""
        try:
            return self._content(root, path)
        except PermissionError as error:
            raise unreadable(path, error) from error

    def _content(self, root: Path, path: str) -> bytes:
        """The content of a file. Its hash is remembered, unless the file has changed
        just now: then it may change again and look the same.
        """
        began_ns = self._clock_ns()
        with open_beneath(root, path) as file:
            before = os.fstat(file.fileno())
            content = file.read()
            after = os.fstat(file.fileno())
        changed_ns = max(before.st_mtime_ns, before.st_ctime_ns)
        if look(before) == look(after) and changed_ns < began_ns - SETTLED_NS:
            if len(self._hashes) >= _MOST_CACHED:
                self._hashes.clear()
            self._hashes[look(before)] = sha256_of(content)
        return content


def _is_code(entry: ListingEntry, tracked: frozenset[str]) -> bool:
    if entry.kind == tarfile.DIRTYPE or not is_text(entry.path + entry.link):
        return False
    path = PurePosixPath(entry.path)
    is_named_so = path.suffix.lower() in _SUFFIXES or path.name in _NAMES
    return is_named_so or entry.path in tracked


def _is_in(path: Path, folder: Path | None) -> bool:
    return folder is not None and path.is_relative_to(folder)


def _leads_to(place: str, link: str) -> bool:
    """Whether the link at `place` means the same as `link` would there."""
    wanted = os.path.join(os.path.dirname(place), link)  # noqa: PTH118, PTH120
    return os.path.realpath(place) == os.path.realpath(wanted)


def _check(found: Sequence[ListingEntry], root: Path, limits: CodeLimits) -> None:
    size = sum(entry.size for entry in found)
    if len(found) > limits.files or size > limits.bytes:
        raise InvalidInputError.of(
            "workdir",
            f"{str(root)!r} holds {len(found):,} files of code with"
            f" {size / _MB:.0f} MB; the most are {limits.files:,} files and"
            f" {limits.bytes / _MB:.0f} MB",
            _REMEDY,
        )
