"""Packs directories as uncompressed tar archives, with the same bytes for the same
content, and unpacks them.
"""

import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path, PurePath
from typing import IO

from gpuyard.storage.streams import CHUNK
from gpuyard.storage.untrusted import (
    Entry,
    entries,
    folder_beneath,
    folder_in,
    new_file_in,
    remove,
    remove_in,
    walk,
)

# As much as the umask allows.
_MODE = 0o777

# What tarfile raises beside its own errors, for example for a link to itself.
_DAMAGES = (LookupError, ValueError, EOFError, ArithmeticError, RecursionError)


def pack(folder: int, target: IO[bytes], *, owner: int | None = None) -> list[str]:
    """Write an open folder to `target` with sorted names, and without owners or times;
    returns the paths that were left out.

    Those are links that lead out of the folder, what belongs to other users than
    `owner`, and whatever is neither a file nor a folder. No link is followed, also if
    the folder's owner changes it meanwhile.
    """
    left_out: list[str] = []
    top = os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115  (as text, as it is)
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for entry in walk(folder, owner=owner):
            is_foreign = owner is not None and entry.status.st_uid != owner
            is_odd = not (entry.is_folder or entry.is_file or entry.is_link)
            info = None if is_odd else _header(entry, top)
            if info is None or is_foreign:
                left_out.append(entry.path)
            elif entry.is_file:
                with entry.open(owner) as file:
                    info.size = os.fstat(file.fileno()).st_size
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    return left_out


def _header(entry: Entry, top: str) -> tarfile.TarInfo | None:
    """The header of what is packed; None for what is not."""
    info = tarfile.TarInfo(entry.path)
    info.mode = stat.S_IMODE(entry.status.st_mode) & 0o777
    if entry.is_folder:
        info.type = tarfile.DIRTYPE
    elif entry.is_link:
        info.type = tarfile.SYMTYPE
        info.linkname = _inner_target(entry, top)
    return info if info.linkname or not entry.is_link else None


def _inner_target(link: Entry, top: str) -> str:
    """Where a link leads, if that is in the packed folder `top`; else empty.

    Parents must come first in it (`../../a/b`): what `a/../b` means depends on where
    `a` leads.
    """
    target = link.target()
    if target.startswith(f"{top}/"):
        target = os.path.relpath(target, os.path.dirname(f"{top}/{link.path}"))  # noqa: PTH120
    steps = PurePath(target).parts
    parents = len(list(takewhile(lambda step: step == "..", steps)))
    is_plain = ".." not in steps[parents:]
    is_inside = parents <= link.path.count("/") and not target.startswith("/")
    return target if is_plain and is_inside else ""


def unpack(source: IO[bytes], directory: Path) -> None:
    """Write an archive's content into `directory`; errors as for `unpack_in`."""
    with folder_beneath(directory) as folder:
        unpack_in(source, folder)


def unpack_in(source: IO[bytes], folder: int) -> None:
    """Write an archive's content into an open folder; tarfile.TarError when it is not
    an archive, would leave the folder, or has a sparse file. OSError.

    No link is followed, also if a job changes the folder meanwhile. No more bytes are
    written than the archive has: archives are not compressed, and a file with holes,
    which may be of any size, is refused.
    """
    top = f"/proc/self/fd/{folder}"
    with tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK) as archive:
        try:
            for info in archive:
                _write(archive, _checked(info, top), folder)
        except _DAMAGES as error:
            raise tarfile.ReadError(f"the archive is damaged: {error}") from None


def _write(archive: tarfile.TarFile, info: tarfile.TarInfo, top: int) -> None:
    """Write one thing of an archive into the open folder `top`."""
    steps = _steps(info.name)
    if info.isdir():
        with folder_in(top, steps, make=_MODE):
            return
    *above, name = steps
    with folder_in(top, above, make=_MODE) as folder:
        if info.issym():
            os.symlink(info.linkname, name, dir_fd=folder)
        elif info.islnk():
            _write_hard_link(_steps(info.linkname), name, folder, top)
        else:
            _write_file(archive, info, name, folder)


def _write_file(
    archive: tarfile.TarFile, info: tarfile.TarInfo, name: str, folder: int
) -> None:
    content = archive.extractfile(info)
    if content is None:
        raise tarfile.ReadError(f"{info.name!r} has no content")
    with new_file_in(folder, name, 0o666) as file:
        shutil.copyfileobj(content, file, CHUNK)
        os.fchmod(file.fileno(), info.mode)


def _write_hard_link(source: Sequence[str], name: str, folder: int, top: int) -> None:
    """Another name of a file that the archive had before."""
    *above, old = source
    with folder_in(top, above) as origin:
        found = entries(origin, names=[old])
        # From another folder, a link would lead elsewhere.
        if not found or not found[0].is_file:
            raise tarfile.ReadError(f"{'/'.join(source)!r} is no file of the archive")
        os.link(old, name, src_dir_fd=origin, dst_dir_fd=folder, follow_symlinks=False)


def _steps(name: str) -> list[str]:
    steps = list(PurePath(name).parts)
    if ".." in steps:
        raise tarfile.ReadError(f"{name!r} may lead out of its folder")
    return steps


@contextmanager
def beside(target: Path) -> Generator[Path]:
    """A new name next to `target`, to be renamed to it once it is complete. If it is
    still there at the end, it is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.parent / f".gpuyard-{secrets.token_hex(8)}"
    try:
        yield fresh
    finally:
        remove(fresh)


def replace(fresh: Path, target: Path) -> None:
    """Rename `fresh` to `target`, even if that exists: a file is replaced in one step,
    a directory in two.
    """
    if not target.is_dir() or target.is_symlink():
        fresh.replace(target)
        return
    with beside(target) as old:
        target.rename(old)
        fresh.rename(target)


@contextmanager
def beside_in(folder: int) -> Generator[str]:
    """As `beside`, in an open folder."""
    fresh = f".gpuyard-{secrets.token_hex(8)}"
    try:
        yield fresh
    finally:
        remove_in(folder, fresh)


def replace_in(folder: int, fresh: str, name: str) -> None:
    """As `replace`, in an open folder."""
    if not any(entry.is_folder for entry in entries(folder, names=[name])):
        os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    with beside_in(folder) as old:
        os.rename(name, old, src_dir_fd=folder, dst_dir_fd=folder)
        os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)


def _checked(info: tarfile.TarInfo, directory: str) -> tarfile.TarInfo:
    if info.issparse():
        raise tarfile.ReadError(f"{info.name!r} is a sparse file")
    # Without times, so that files are as old as their unpacking: files from 1970 break
    # programs that pack wheels and zips.
    return tarfile.data_filter(info, directory).replace(mtime=None, deep=False)  # type: ignore[arg-type]
