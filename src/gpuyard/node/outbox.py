"""Reports on their way to the server: numbered, in order, kept until acknowledged, repeated on the next link."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import structlog

from gpuyard.domain import wire

log = structlog.get_logger(__name__)
# Beyond this, old progress is dropped: a server that is away for a day must not fill this host's memory.
_MAX_WAITING = 20_000
_DROPPABLE = (wire.ProgressSeen, wire.UsageSeen)


class Outbox:
    """The agent's reports."""

    def __init__(self) -> None:
        self._waiting: deque[wire.Report] = deque()
        self._number = 0
        self._more = asyncio.Event()

    def put(self, body: Any) -> None:
        """Queue a report. One that cannot be sent is dropped, and said so: it must not hold up those behind it."""
        report = wire.Report(self._number + 1, body)
        try:
            size = len(wire.encode(report))
        except (ValueError, OverflowError, TypeError) as error:
            log.error("a report cannot be encoded", kind=type(body).__name__, error=str(error))
            return
        if size > wire.MAX_FRAME:
            log.error("a report is too large", kind=type(body).__name__, bytes=size)
            return
        self._number += 1
        if isinstance(body, wire.GpusSeen):  # the newest look says all; they come for as long as nobody listens
            self._waiting = deque(r for r in self._waiting if not isinstance(r.body, wire.GpusSeen))
        self._waiting.append(report)
        if len(self._waiting) > _MAX_WAITING:
            self._waiting = deque(r for r in self._waiting if not isinstance(r.body, _DROPPABLE))
        self._more.set()

    def acknowledge(self, seq: int) -> None:
        """Drop what the server has committed."""
        while self._waiting and self._waiting[0].seq <= seq:
            self._waiting.popleft()

    async def deliver(self, writer: asyncio.StreamWriter) -> None:
        """Send all that is not acknowledged, then what comes, until the link ends."""
        sent = 0
        with suppress(ConnectionError):  # who reads from the link hears of its end, too
            while True:
                self._more.clear()
                for report in [r for r in self._waiting if r.seq > sent]:
                    writer.write(wire.encode(report))
                    sent = report.seq
                await writer.drain()
                await self._more.wait()
