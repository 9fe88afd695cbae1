"""Read files that the jobs of a study left in their folders.

A job writes there what it likes: a pipe would keep its reader for ever, and a link may
lead anywhere. So only regular files are opened, through no link below the given folder,
and no more is read than fits.
"""

import json
from collections.abc import Iterator, Mapping, Set
from itertools import islice
from pathlib import Path, PurePath
from typing import IO, Any, cast

from gpuyard.storage.untrusted import (
    UntrustedFileError,
    open_beneath,
    read_json_beneath,
)

LONGEST_LINE = 16 << 20
"""Bytes that a line may have: an answer of 100,000 tokens needs less."""
LONGEST_TEXT = 500
"""Characters that are shown of a text, such as an error."""
_LARGEST = 64 << 20
_MOST_FAULTS = 20
# Of a row without its tokens; and of a token: its text, its id and log-probability,
# those of the runner-up, and its time.
_LINE_BYTES = 64 << 10
_TOKEN_BYTES = 256


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


class LeftLines:
    """The lines of all files `*.jsonl` in a folder that a job left.

    No more than `most` lines are read, and of a file nothing from a line on that has
    more than `longest` bytes. `faults` then says what was left out.
    """

    def __init__(
        self, folder: Path, name: str, most: int, longest: int = LONGEST_LINE
    ) -> None:
        """The files are in the folder `name` below `folder`."""
        self._folder = folder
        self._name = name
        self._most = most
        self._longest = longest
        self.faults: list[str] = []

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines, file by file in the order of their names."""
        lines = self._lines()
        yield from islice(lines, self._most)
        if next(lines, None) is not None:
            self.faults.append(
                f"{self._name} has more than {self._most:,} lines: the others are not"
                " read"
            )

    def rows(self, needed: Set[str]) -> Iterator[Mapping[str, Any]]:
        """Yield the JSON objects with these keys; other lines are left out."""
        for line in self:
            try:
                row: Any = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and row.keys() >= needed:
                yield cast(Mapping[str, Any], row)

    def _lines(self) -> Iterator[bytes]:
        for path in sorted((self._folder / self._name).glob("*.jsonl")):
            try:
                with open_left(self._folder, PurePath(self._name, path.name)) as file:
                    yield from self._lines_of(file)
            except OSError as error:
                self._note(f"{self._name}/{path.name}: {error.strerror or error}")

    def _lines_of(self, file: IO[bytes]) -> Iterator[bytes]:
        while line := file.readline(self._longest + 1):
            if len(line) > self._longest:
                fault = f"a line has more than {self._longest:,} bytes"
                raise UntrustedFileError(fault)
            yield line

    def _note(self, fault: str) -> None:
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(fault)


def most_lines(results: int) -> int:
    """Return how many lines are read where so many results are expected.

    A few may be damaged or there twice. Far more tell nothing, and reading them may
    take for ever.
    """
    return 2 * results + 1000


def longest_line(most_tokens: int | None) -> int:
    """Return how many bytes the line of an answer with so many tokens may have."""
    if most_tokens is None:
        return LONGEST_LINE
    return min(LONGEST_LINE, _LINE_BYTES + _TOKEN_BYTES * max(0, most_tokens))


def shown(text: object, longest: int = LONGEST_TEXT) -> str:
    """A text of a job as one line for people: cut, and with blanks in place of what a
    terminal would obey or no file could hold.
    """
    whole = str(text)
    line = "".join(c if c.isprintable() else " " for c in whole[:longest])
    return line if len(whole) <= longest else f"{line[:-1]}…"
