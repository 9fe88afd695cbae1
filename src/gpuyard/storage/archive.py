"""Packs directories as uncompressed tar archives, with the same bytes for the same
content, and unpacks them.
"""

import os
import secrets
import stat
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path, PurePath
from typing import IO

from gpuyard.storage.streams import CHUNK
from gpuyard.storage.untrusted import Entry, remove, walk

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
    """Write an archive's content into `directory`; tarfile.TarError when it is not an
    archive, would leave the directory, or has a sparse file.

    It writes no more bytes than the archive has: archives are not compressed, and a
    file with holes, which may be of any size, is refused.
    """
    with tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK) as archive:
        try:
            archive.extractall(directory, filter=_checked)
        except _DAMAGES as error:
            raise tarfile.ReadError(f"the archive is damaged: {error}") from None


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


def _checked(info: tarfile.TarInfo, directory: str) -> tarfile.TarInfo:
    if info.issparse():
        raise tarfile.ReadError(f"{info.name!r} is a sparse file")
    # Without times, so that files are as old as their unpacking: files from 1970 break
    # programs that pack wheels and zips.
    return tarfile.data_filter(info, directory).replace(mtime=None, deep=False)  # type: ignore[arg-type]
