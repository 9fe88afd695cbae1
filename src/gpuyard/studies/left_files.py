"""Read files that the jobs of a study left in their folders.

A job writes there what it likes: a pipe would keep its reader for ever, and a link may
lead anywhere. So only regular files are opened, through no link below the given folder,
and no more is read than fits.
"""

import json
from collections.abc import Iterator, Mapping, Set
from pathlib import Path, PurePath
from typing import IO, Any, cast

from gpuyard.storage.untrusted import (
    UntrustedFileError,
    open_beneath,
    read_json_beneath,
)

LONGEST_LINE = 16 << 20
"""Bytes that a line may have: an answer of 100,000 tokens needs less."""
_LARGEST = 64 << 20


def open_left(folder: Path, name: str | PurePath) -> IO[bytes]:
    """Open the file `name` below `folder` for reading.

    OSError where it is no regular file, or lies behind a link.
    """
    return open_beneath(folder, name)


def read_left_object(folder: Path, name: str | PurePath) -> dict[str, Any]:
    """The JSON object in a file of at most 64 MiB.

    OSError as `open_left`, and ValueError where it holds none.
    """
    found: Any = read_json_beneath(folder, name, _LARGEST)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return cast(dict[str, Any], found)


def left_lines(folder: Path, name: str) -> Iterator[bytes]:
    """Yield the lines of all files `*.jsonl` in the folder `name` below `folder`.

    What cannot be read is left out. So is the rest of a file from a line on that has
    more than `LONGEST_LINE` bytes.
    """
    for path in sorted((folder / name).glob("*.jsonl")):
        try:
            with open_left(folder, PurePath(name, path.name)) as file:
                yield from _lines(file)
        except OSError:
            continue


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise UntrustedFileError(f"a line has more than {LONGEST_LINE:,} bytes")
        yield line


def left_rows(folder: Path, name: str, needed: Set[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects with these keys; other lines are left out.

    The files are those of `left_lines`.
    """
    for line in left_lines(folder, name):
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and row.keys() >= needed:
            yield cast(Mapping[str, Any], row)
