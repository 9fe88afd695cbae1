"""Reads and replaces files where a job, or anybody else, may write.

A file there may be a link to a secret, a pipe that never ends, a folder, or too large.
So only a regular file below the given folder is opened, through no link at any step,
and no more of it is read than its reader expects.
"""

import json
import os
import stat
from pathlib import Path, PurePath
from typing import IO, Any

from gpuyard.storage.archive import beside

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Without O_NONBLOCK the opening of a pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class UntrustedFileError(OSError):
    """The file is not what its reader expects; the message says why."""


def open_beneath(folder: Path, name: str | PurePath) -> IO[bytes]:
    """Open the regular file `name` below `folder` for reading.

    UntrustedFileError when a step is a link, when `name` leads out of the folder, or
    when it is no regular file; OSError as usual.
    """
    *folders, last = _steps(name)
    current = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for step in folders:
            inner = _open(step, _FOLDER, current, name)
            os.close(current)
            current = inner
        descriptor = _open(last, _FILE, current, name)
    finally:
        os.close(current)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UntrustedFileError(f"{name} is no regular file")
    return os.fdopen(descriptor, "rb")


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


def write_whole(path: Path, content: bytes) -> None:
    """Put a file at `path`, whole or not at all. A link there is replaced."""
    with beside(path) as fresh:
        fresh.write_bytes(content)
        fresh.replace(path)


def _steps(name: str | PurePath) -> list[str]:
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UntrustedFileError(f"{name} is not below its folder")
    return list(path.parts)


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
