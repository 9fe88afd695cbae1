"""Reports that wait to be sent to the server: numbered, in order, kept until they are
acknowledged, and sent again on a new link.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import structlog

from gpuyard.domain import wire, wire_frames

log = structlog.get_logger(__name__)
# Above this, old progress is dropped: if the server is away for a day, its reports must
# not fill this host's memory.
_MAX_WAITING = 20_000
_DROPPABLE = (wire.ProgressSeen, wire.UsageSeen)


def never_started(
    attempt_id: str, *, reason: str = "", stopped: str = "", message: str = ""
) -> wire.Ended:
    """The end of an attempt that was never started."""
    now = time.time()
    return wire.Ended(
        attempt_id, now, None, reason=reason, stopped=stopped, message=message
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A report as it is sent."""

    seq: int
    kind: type[object]
    frame: bytes


class Outbox:
    """The agent's reports."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._number = 0
        self._more = asyncio.Event()

    def put(self, body: Any) -> None:
        """Queue a report.

        A report that cannot be sent is dropped and logged: it must not hold up those
        behind it.
        """
        kind: type[object] = body.__class__
        report = wire.NumberedReport(self._number + 1, body)
        try:
            frame = wire_frames.encode(report)
            if kind in _DROPPABLE:
                # Programs decide what stands in these; the server would leave it out.
                wire_frames.decode_readable(frame[wire_frames.HEADER_BYTES :])
        except (ValueError, OverflowError, TypeError) as error:
            log.error(
                "a report cannot be sent", kind=type(body).__name__, error=str(error)
            )
            return
        if len(frame) > wire_frames.MAX_FRAME:
            log.error(
                "a report is too large", kind=type(body).__name__, bytes=len(frame)
            )
            return
        self._number += 1
        if isinstance(body, wire.GpusSeen):
            # The newest one replaces all before it, which pile up without a link.
            self._remove(wire.GpusSeen)
        self._waiting.append(_Waiting(self._number, kind, frame))
        if len(self._waiting) > _MAX_WAITING:
            self._remove(*_DROPPABLE)
        self._more.set()

    def _remove(self, *kinds: type) -> None:
        kept = [item for item in self._waiting if item.kind not in kinds]
        self._waiting = deque(kept)

    def acknowledge(self, seq: int) -> None:
        """Drop the reports up to `seq`, which the server has committed."""
        while self._waiting and self._waiting[0].seq <= seq:
            self._waiting.popleft()

    def _after(self, seq: int) -> list[_Waiting]:
        """The reports after `seq`; looks at no others, which may be many."""
        newer = takewhile(lambda report: report.seq > seq, reversed(self._waiting))
        return list(newer)[::-1]

    async def deliver(self, writer: asyncio.StreamWriter) -> None:
        """Send all reports that are not acknowledged, then new ones, until the link
        ends.
        """
        sent = 0
        # The task that reads from the link sees its end as well.
        with suppress(ConnectionError):
            while True:
                self._more.clear()
                new = self._after(sent)
                if new:
                    sent = new[-1].seq
                    writer.write(b"".join(report.frame for report in new))
                await writer.drain()
                await self._more.wait()
