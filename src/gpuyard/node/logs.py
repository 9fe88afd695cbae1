"""Answers ReadLog: a part of an attempt's log, if wanted after a wait for output."""

import asyncio
import time
from pathlib import Path

from gpuyard.domain import wire
from gpuyard.node.attempt import AttemptRun
from gpuyard.node.launcher import LogFile

_LOOK_S = 0.02


async def read_log(
    question: wire.ReadLog, path: Path, attempt: AttemptRun | None
) -> wire.LogPart:
    """The bytes from the offset on.

    With `wait_s`, waits until there are any or the attempt is over.
    """
    deadline = time.monotonic() + question.wait_s
    offset = question.offset
    tail = question.tail_lines
    while True:
        # Checked before the read: the next question finds bytes written in between.
        over = attempt is None or not attempt.live
        log = LogFile(path) if attempt is None else attempt.log
        found = _read(log, offset, tail, question.limit)
        if found is None and attempt is None:
            return wire.LogPart(question.request, 0, b"", end=True, missing=True)
        first, data = found or (max(offset, 0), b"")
        if offset < 0 and found:
            offset = first
            tail = 0
        if data or over or time.monotonic() >= deadline:
            return wire.LogPart(
                question.request, first, data, end=over and len(data) < question.limit
            )
        await asyncio.sleep(_LOOK_S)


def _read(
    log: LogFile, offset: int, tail_lines: int, limit: int
) -> tuple[int, bytes] | None:
    try:
        return log.tail(tail_lines) if offset < 0 else log.read(offset, limit)
    except FileNotFoundError:
        return None
