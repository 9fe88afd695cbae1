"""Directories as uncompressed tar archives, the same bytes for the same content, and back again."""

import secrets
import shutil
import tarfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from gpuyard.storage.streams import CHUNK


def pack(directory: Path, target: IO[bytes]) -> None:
    """Write `directory` to `target` with sorted names and nothing of owners or times."""
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directory.rglob("*")):
            archive.add(path, str(path.relative_to(directory)), recursive=False, filter=_anonymous)


def unpack(source: IO[bytes], directory: Path) -> None:
    """Write an archive's content into `directory`; tarfile.TarError when it is none or would leave the directory."""
    with tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK) as archive:
        archive.extractall(directory, filter=_harmless)


@contextmanager
def beside(target: Path) -> Generator[Path]:
    """A name next to `target`, to be renamed to it once it is whole; what is still there at the end is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.parent / f".gpuyard-{secrets.token_hex(8)}"
    try:
        yield fresh
    finally:
        _remove(fresh)


def replace(fresh: Path, target: Path) -> None:
    """Rename `fresh` to `target`, whatever stood there; a file is exchanged in one step, a directory in two."""
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


def _harmless(info: tarfile.TarInfo, directory: str) -> tarfile.TarInfo:
    # No times: a file from 1970 breaks what packs wheels and zips. It is as old as its unpacking.
    return tarfile.data_filter(info, directory).replace(mtime=None, deep=False)  # type: ignore[arg-type]
