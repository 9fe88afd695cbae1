"""Reads and replaces files where a job, or anybody else, may write.

A file there may be a link to a secret, a pipe that never ends, a folder, or too large.
So only what lies below the given folder is opened, through no link at any step, and no
more of it is read than its reader expects. The way to the given folder itself may lead
through links.

Every step is opened by its name in the folder before it, which is open already. So
nobody gains by swapping a folder for a link between two steps.
"""

import json
import os
import secrets
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePath
from typing import IO, Any

_TOP = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER = _TOP | os.O_NOFOLLOW
# Without O_NONBLOCK the opening of a pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Deeper than any program nests folders; each level holds a descriptor open.
MAX_DEPTH = 64


class UntrustedFileError(OSError):
    """The file is not what its reader expects; the message says why."""


# --- files ---


def open_beneath(
    folder: Path, name: str | PurePath, *, owner: int | None = None
) -> IO[bytes]:
    """Open the regular file `name` below `folder` for reading.

    UntrustedFileError when a step is a link, when `name` leads out of the folder, when
    it is no regular file, or when it belongs to somebody else than the user `owner`;
    OSError as usual.
    """
    return file_of(descriptor_beneath(folder, name, owner=owner), name)


def descriptor_beneath(
    folder: Path, name: str | PurePath, *, owner: int | None = None
) -> int:
    """A descriptor of the file or folder `name` below `folder`, for reading; errors as
    for `open_beneath`. `owner` counts for a file only.
    """
    *folders, last = _steps(name)
    with folder_beneath(folder, folders) as inner:
        return _open_checked(last, inner, name, owner)


def read_beneath(folder: Path, name: str | PurePath, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes; errors as for `open_beneath`."""
    with open_beneath(folder, name) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UntrustedFileError(f"{name} has more than {limit:,} bytes")
    return content


def read_json_beneath(folder: Path, name: str | PurePath, limit: int) -> Any:
    """The document in a file; ValueError when it is not JSON."""
    try:
        return json.loads(read_beneath(folder, name, limit))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the regular file at `path`, which may not be a link itself;
    errors as for `open_beneath`.
    """
    special = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | special)
    except OSError:
        if path.is_symlink():
            raise UntrustedFileError(f"{path} is a link") from None
        raise
    return _regular(descriptor, path)


def write_beneath(
    folder: Path, name: str | PurePath, content: bytes, mode: int = 0o600
) -> None:
    """Put a file at `name` below `folder`, whole or not at all.

    Missing folders are made. A link at `name` is replaced; UntrustedFileError when a
    folder on the way is one.
    """
    *folders, last = _steps(name)
    folder_mode = 0o700 if mode == 0o600 else 0o777
    with folder_beneath(folder, folders, make=folder_mode) as inner:
        write_in(inner, last, content, mode)


def write_in(folder: int, name: str, content: bytes, mode: int = 0o600) -> None:
    """As `write_beneath`, into an open folder."""
    fresh = f".gpuyard-{secrets.token_hex(8)}"
    try:
        with new_file_in(folder, fresh, mode) as file:
            file.write(content)
        os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=folder)
        raise


def new_file_in(folder: int, name: str, mode: int = 0o600) -> IO[bytes]:
    """A new file in an open folder; FileExistsError when there is something."""
    return os.fdopen(os.open(name, _NEW, mode, dir_fd=folder), "wb")


def write_whole(path: Path, content: bytes) -> None:
    """Put a file that others may read at `path`, whole or not at all. A link there is
    replaced.
    """
    write_beneath(path.parent, path.name, content, 0o666)


# --- folders ---


@dataclass(frozen=True, slots=True)
class Entry:
    """Something below an open folder: `path` is relative to that, `status` its own
    even if it is a link, and `folder` the descriptor of the folder that it lies in.
    """

    path: str
    status: os.stat_result
    folder: int

    @property
    def name(self) -> str:
        """The last step of its path."""
        return self.path.rpartition("/")[2]

    @property
    def is_folder(self) -> bool:
        """True for a folder, and not for a link to one."""
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        """True for a regular file."""
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        """True for a symbolic link."""
        return stat.S_ISLNK(self.status.st_mode)

    def open(self, owner: int | None = None) -> IO[bytes]:
        """The file; errors as for `open_beneath`."""
        descriptor = _open_checked(self.name, self.folder, self.path, owner)
        return file_of(descriptor, self.path)

    def target(self) -> str:
        """Where the link leads, as it is written in it."""
        return os.readlink(self.name, dir_fd=self.folder)


@contextmanager
def folder_beneath(
    folder: Path, steps: Sequence[str] = (), *, make: int | None = None
) -> Generator[int]:
    """A descriptor of the folder that lies `steps` below `folder`.

    `make`: also make what is missing, with this mode. UntrustedFileError when a step is
    a link.
    """
    if make is not None:
        folder.mkdir(parents=True, exist_ok=True, mode=make)
    top = os.open(folder, _TOP)
    try:
        with folder_in(top, steps, make=make) as inner:
            yield inner
    finally:
        os.close(top)


@contextmanager
def folder_in(
    folder: int, steps: Sequence[str], *, make: int | None = None
) -> Generator[int]:
    """As `folder_beneath`, from an open folder."""
    current = os.dup(folder)
    try:
        for step in steps:
            if make is not None:
                with suppress(FileExistsError):
                    os.mkdir(step, make, dir_fd=current)
            inner = _open(step, _FOLDER, current, "/".join(steps))
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)


def entries(folder: int, base: str = "", names: Iterable[str] = ()) -> list[Entry]:
    """What lies in an open folder under these names, or all of it. `base` is the
    folder's own path: empty, or with a slash at its end.
    """
    found: list[Entry] = []
    for name in names or sorted(os.listdir(folder)):
        with suppress(FileNotFoundError):  # it has just been removed
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            found.append(Entry(f"{base}{name}", status, folder))
    return found


@contextmanager
def inside(entry: Entry) -> Generator[int]:
    """A descriptor of the folder that `entry` is."""
    descriptor = _open(entry.name, _FOLDER, entry.folder, entry.path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def walk(folder: int, base: str = "", *, owner: int | None = None) -> Iterator[Entry]:
    """Everything below an open folder, a folder before its content. No link is
    followed, and no folder entered that belongs to somebody else than `owner`.
    UntrustedFileError when folders are nested too deeply.
    """
    for entry in entries(folder, base):
        yield entry
        is_foreign = owner is not None and entry.status.st_uid != owner
        if not entry.is_folder or is_foreign:
            continue
        if entry.path.count("/") >= MAX_DEPTH:
            raise UntrustedFileError(f"{entry.path[:80]}… is nested too deeply")
        with inside(entry) as inner:
            yield from walk(inner, f"{entry.path}/", owner=owner)


def remove(path: Path) -> None:
    """Remove a file or a link, if there is one, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, however deep; what cannot be removed
    stays. Nothing happens if there is no such folder, or only a link to one.
    """
    with suppress(OSError):
        _empty_named(folder)
        folder.rmdir()


def remove_in(folder: int, name: str) -> None:
    """As `remove`, in an open folder; what cannot be removed stays."""
    if not _unlink(name, folder):
        with suppress(OSError):
            _empty_named(name, folder)
            os.rmdir(name, dir_fd=folder)


def _empty_named(name: str | Path, folder: int | None = None) -> None:
    """Remove what is in a folder, if that is one and no link; OSError."""
    top = os.open(name, _FOLDER, dir_fd=folder)
    try:
        _make_writable(top)
        _empty(top)
    finally:
        os.close(top)


def _empty(top: int) -> None:
    """Remove what is in an open folder.

    The folders in a folder are moved to the top before it is removed: so no path gets
    longer, and no descriptor stays open for each level.
    """
    mark = secrets.token_hex(8)
    new_names = (f".{mark}-{number}" for number in count())
    stuck: set[str] = set()
    while names := set(os.listdir(top)) - stuck:
        for name in names:
            if _unlink(name, top):
                continue
            with suppress(OSError):
                _move_contents_up(name, top, new_names)
            if not _unlink(name, top):
                stuck.add(name)


def _move_contents_up(name: str, top: int, new_names: Iterator[str]) -> None:
    """Remove what is in a folder below the open one; its folders that are not empty get
    new names in that. OSError.
    """
    inner = os.open(name, _FOLDER, dir_fd=top)
    try:
        _make_writable(inner)
        for child in entries(inner):
            if not _unlink(child.name, inner):
                _move_up(child.name, inner, next(new_names), top)
    finally:
        os.close(inner)


def _move_up(name: str, folder: int, fresh: str, top: int) -> None:
    """Move a folder to the top; OSError."""
    moved = os.open(name, _FOLDER, dir_fd=folder)
    try:
        _make_writable(moved)  # its entry `..` changes
        os.rename(name, fresh, src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(moved)


def _make_writable(folder: int) -> None:
    """Let its owner change an open folder: what is read-only can be removed, too."""
    if not os.fstat(folder).st_mode & stat.S_IWUSR:
        with suppress(OSError):  # it is somebody else's
            os.fchmod(folder, 0o700)


def _unlink(name: str, folder: int) -> bool:
    """Remove a file, a link or an empty folder; False if that is not possible."""
    for remove in (os.unlink, os.rmdir):
        with suppress(OSError):
            remove(name, dir_fd=folder)
            return True
    return False


def _steps(name: str | PurePath) -> list[str]:
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UntrustedFileError(f"{name} is not below its folder")
    return list(path.parts)


def _open_checked(
    step: str, folder: int, name: str | PurePath, owner: int | None
) -> int:
    """Open a file or folder; a file only if it belongs to `owner`: a job may make a
    hard link to a file that it cannot read.
    """
    descriptor = _open(step, _FILE, folder, name)
    status = os.fstat(descriptor)
    is_foreign = owner is not None and status.st_uid != owner
    if is_foreign and not stat.S_ISDIR(status.st_mode):
        os.close(descriptor)
        raise UntrustedFileError(f"{name} belongs to another user")
    return descriptor


def file_of(descriptor: int, name: str | PurePath) -> IO[bytes]:
    """The regular file of a descriptor, which closes it in any case."""
    regular = _regular(descriptor, name)

    def opener(_name: str, _flags: int) -> int:
        return regular

    # Opened by its name, so that messages show that and not a number.
    return open(name, "rb", opener=opener)


def _regular(descriptor: int, name: str | PurePath) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise UntrustedFileError(f"{name} is no regular file")


def _open(step: str, flags: int, folder: int, name: str | PurePath) -> int:
    try:
        return os.open(step, flags, dir_fd=folder)
    except OSError:
        if _is_link(step, folder):
            fault = f"{name} is or lies below a link"
            raise UntrustedFileError(fault) from None
        raise


def _is_link(step: str, folder: int) -> bool:
    try:
        status = os.stat(step, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISLNK(status.st_mode)
