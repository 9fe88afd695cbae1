"""Reads the audit log, the newest line first."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gpuyard.domain.audit import AuditEvent, AuditLine

_BLOCK_BYTES = 64 * 1024
_MOST_LOOKED_AT = 200_000
"""Lines: what is rarer is not found, so that no question reads for long."""


def newest_lines(
    files: Sequence[Path],
    limit: int,
    event: AuditEvent | None = None,
    who: str | None = None,
    before: float | None = None,
) -> list[AuditLine]:
    """The newest lines of an `event` and of `who`, older than `before` (UTC seconds).
    The files come newest first. OSError.
    """
    found: list[AuditLine] = []
    for number, line in enumerate(_backwards(files)):
        if len(found) >= limit or number >= _MOST_LOOKED_AT:
            break
        is_wanted = (
            (event is None or line.get("event") == event)
            and (who is None or who in (line.get("who"), line.get("for")))
            and (before is None or line.get("at", before) < before)
        )
        if is_wanted:
            found.append(AuditLine.model_validate(line))
    return found


def _backwards(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        with suppress(FileNotFoundError):  # it has just become an older one
            for text in _lines(file):
                # A full disk may have cut one off.
                with suppress(msgspec.DecodeError):
                    yield msgspec.json.decode(text, type=dict[str, Any])


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file from its end, block by block."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        rest = b""
        while end > 0:
            begin = max(0, end - _BLOCK_BYTES)
            file.seek(begin)
            first, *whole = (file.read(end - begin) + rest).split(b"\n")
            yield from (line for line in reversed(whole) if line)
            rest = first
            end = begin
        if rest:
            yield rest
