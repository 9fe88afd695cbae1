"""Packs directories as uncompressed tar archives, with the same bytes for the same
content, and unpacks them.
"""

import secrets
import shutil
import tarfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from gpuyard.storage.streams import CHUNK

# What tarfile raises beside its own errors, for example for a link to itself.
_DAMAGES = (LookupError, ValueError, EOFError, ArithmeticError, RecursionError)


def pack(directory: Path, target: IO[bytes]) -> None:
    """Write `directory` to `target` with sorted names, and without owners or times."""
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directory.rglob("*")):
            name = str(path.relative_to(directory))
            archive.add(path, name, recursive=False, filter=_anonymous)


def unpack(source: IO[bytes], directory: Path) -> None:
    """Write an archive's content into `directory`; tarfile.TarError when it is not an
    archive or would leave the directory.
    """
    with tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK) as archive:
        try:
            archive.extractall(directory, filter=_without_times)
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
        _remove(fresh)


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


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            path.unlink()


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info


def _without_times(info: tarfile.TarInfo, directory: str) -> tarfile.TarInfo:
    # Without times, so that files are as old as their unpacking: files from 1970 break
    # programs that pack wheels and zips.
    return tarfile.data_filter(info, directory).replace(mtime=None, deep=False)  # type: ignore[arg-type]
