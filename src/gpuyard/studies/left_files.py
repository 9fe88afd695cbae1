"""Read files that the jobs of a study left in their folders.

A job writes there what it likes: a pipe would keep its reader for ever, and a link may
lead anywhere. So only regular files are opened, and no more is read than fits.
"""

import json
import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import IO, Any, cast

from gpuyard.storage.untrusted import UntrustedFileError, open_regular

_LARGEST = 64 << 20


def open_left(path: Path) -> IO[bytes]:
    """Open a file for reading; OSError where it is no regular file."""
    return os.fdopen(open_regular(path), "rb")


def read_left(path: Path, limit: int = _LARGEST) -> bytes:
    """The content of a file of at most `limit` bytes; OSError."""
    with open_left(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UntrustedFileError(f"{path.name} has more than {limit:,} bytes")
    return content


def read_left_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; OSError, or ValueError where it holds none."""
    try:
        found: Any = json.loads(read_left(path))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return cast(dict[str, Any], found)


def left_lines(folder: Path) -> Iterator[bytes]:
    """Yield the lines of all files `*.jsonl` in a folder that can be read."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            with open_left(path) as file:
                yield from file
        except OSError:
            continue


def left_rows(folder: Path, needed: Set[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects with these keys; other lines are left out."""
    for line in left_lines(folder):
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and row.keys() >= needed:
            yield cast(Mapping[str, Any], row)
