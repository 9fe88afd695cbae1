"""What a node of a pool sends of the output of a job, as a file."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from gpuyard.controller.pool_output import is_written
from gpuyard.providers.base import LogPiece


async def sent(*pieces: LogPiece) -> AsyncIterator[LogPiece]:
    for piece in pieces:
        yield piece


def test_nothing_is_left_free_for_what_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "part"
    pieces = sent(
        LogPiece(1 << 62, b"one\n"), LogPiece(None, b"two"), LogPiece(1 << 63, b"six\n")
    )
    assert asyncio.run(is_written(file, pieces, 1000))
    assert file.read_bytes() == b"one\ntwo\nsix\n"


def test_more_than_may_be_is_not_written(tmp_path: Path) -> None:
    pieces = sent(LogPiece(0, b"x" * 600), LogPiece(600, b"x" * 600))
    assert not asyncio.run(is_written(tmp_path / "part", pieces, 1000))
