"""The output of jobs, as providers hand it out."""

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple


class LogPiece(NamedTuple):
    """A piece of a job's output, and the place of its first byte; None if that is not
    known.
    """

    offset: int | None
    data: bytes


class OutputPart(NamedTuple):
    """A part of a job's output. `mark()` tells where it ends (`stream_output`); call it
    before you take the next part.
    """

    data: bytes
    mark: Callable[[], str]


async def log_text(parts: AsyncIterator[bytes]) -> str:
    """A whole log as text."""
    data = b"".join([part async for part in parts])
    return data.decode(errors="replace")


def last_lines(log: str, count: int) -> str:
    """The last lines of a log, with their line ends."""
    return "".join(log.splitlines(keepends=True)[-count:]) if count else ""
