"""The forms in which a job's output is sent: as it is, or in lines of JSON that say
where each part stands, so that a reader can go on there.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator

from gpuyard.controller.logs import LogPart, LogPosition

NDJSON = "application/x-ndjson"
_ERROR_S = 1.0
_HEARTBEAT = b"{}\n"
_HEARTBEAT_S = 15.0
POSITION = r"^[1-9][0-9]{0,8}:[0-9]{1,18}$"


def position_of(text: str | None) -> LogPosition | None:
    """`ATTEMPT:BYTE`, which matches `POSITION`, as a position."""
    if text is None:
        return None
    attempt, _, offset = text.partition(":")
    return LogPosition(int(attempt), int(offset))


async def begin(parts: AsyncIterator[LogPart]) -> "asyncio.Task[LogPart | None]":
    """The first part, which may take its time: a job may not have begun yet.

    An error that comes at once is raised, so that it is an error and not half an
    answer.
    """
    first = _next(parts)
    await asyncio.wait({first}, timeout=_ERROR_S)
    if first.done():
        first.result()
    return first


def _next(parts: AsyncIterator[LogPart]) -> "asyncio.Task[LogPart | None]":
    async def read() -> LogPart | None:
        return await anext(parts, None)

    return asyncio.create_task(read(), name="log-part")


async def plain(
    first: "asyncio.Task[LogPart | None]", parts: AsyncIterator[LogPart]
) -> AsyncIterator[bytes]:
    """The output as it is."""
    part = await first
    if part:
        yield part.data
    async for part in parts:
        yield part.data


async def framed(
    first: "asyncio.Task[LogPart | None]",
    parts: AsyncIterator[LogPart],
    stopping: asyncio.Event,
) -> AsyncIterator[bytes]:
    """A line of JSON for each part, one for the end, and an empty object now and then
    while there is nothing to say. A server that is stopping breaks off.
    """
    coming = first
    stop = asyncio.create_task(stopping.wait(), name="log-stop")
    try:
        yield _HEARTBEAT  # who waited for the server learns that it is there
        while not stop.done():
            done, _ = await asyncio.wait(
                {coming, stop},
                timeout=_HEARTBEAT_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if coming in done:
                part = coming.result()
                if part is None:
                    yield b'{"end": true}\n'
                    return
                yield _line_of(part)
                coming = _next(parts)
            elif not done:
                yield _HEARTBEAT
    finally:
        coming.cancel()
        stop.cancel()


def _line_of(part: LogPart) -> bytes:
    line = {
        "attempt": part.attempt,
        "offset": part.offset,
        "data": b64encode(part.data).decode(),
    }
    return json.dumps(line).encode() + b"\n"
