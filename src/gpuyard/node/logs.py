"""Answers ReadLog: a part of an attempt's log, if wanted after a wait for output."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

from gpuyard.domain import wire, wire_frames
from gpuyard.node.attempt import AttemptRun
from gpuyard.storage.logfile import LogFile
from gpuyard.storage.untrusted import UntrustedFileError

_LOOK_S = 0.02
_LONGEST_LOOK_S = 10.0
# No server asks for more.
_LONGEST_PART = 1 << 20
_State = tuple[int, bool]


class LogWatch:
    """Waits for output. A log is looked at once, however many wait for it."""

    def __init__(self) -> None:
        self._looks: dict[Path, asyncio.Task[None]] = {}

    async def changed(
        self, path: Path, attempt: AttemptRun | None, before: _State, within_s: float
    ) -> None:
        """Wait until the log differs from `before`, or the time is over; it may return
        too early.
        """
        look = self._looks.get(path)
        if look is None:
            look = asyncio.create_task(_look(path, attempt, before), name="log-watch")
            look.add_done_callback(lambda _: self._looks.pop(path))
            self._looks[path] = look
        await asyncio.wait({look}, timeout=within_s)


async def _look(path: Path, attempt: AttemptRun | None, before: _State) -> None:
    deadline = time.monotonic() + _LONGEST_LOOK_S
    # Polled: another process writes the file.
    while _state(path, attempt) == before and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)


def _state(path: Path, attempt: AttemptRun | None) -> _State:
    """The size of a log, and whether it is complete."""
    over = attempt is None or not attempt.live
    try:
        return _log_of(path, attempt).size(), over
    except OSError:
        return 0, over


class LogSender:
    """Answers the ReadLogs of one link, one part at a time.

    A part is read from the file when the link has taken the part before. So parts never
    pile up in memory, and a heartbeat or a report waits behind one part at most.
    """

    def __init__(self, writer: asyncio.StreamWriter, watch: LogWatch) -> None:
        self._writer = writer
        self._watch = watch
        self._turn = asyncio.Lock()
        self._answering: set[asyncio.Task[None]] = set()

    def answer(
        self, question: wire.ReadLog, path: Path, attempt: AttemptRun | None
    ) -> None:
        """Answer in the background."""
        task = asyncio.create_task(self._answer(question, path, attempt))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def close(self) -> None:
        """Answer no more; the link has ended."""
        for task in self._answering:
            task.cancel()

    async def _answer(
        self, question: wire.ReadLog, path: Path, attempt: AttemptRun | None
    ) -> None:
        # The task that reads from the link sees its end as well.
        with suppress(ConnectionError):
            last = None
            offset = question.offset
            if offset < 0:
                last = _last_lines(question, path, attempt)
                offset = last.offset
            if last is None or not last.data:
                await self._wait_for_output(offset, question.wait_s, path, attempt)
            async with self._turn:
                await self._writer.drain()
                # What was written since the last lines were read is for the next part.
                if last is None or not last.data:
                    last = _read_part(question, offset, path, attempt)
                self._writer.write(wire_frames.encode(last))

    async def _wait_for_output(
        self, offset: int, wait_s: float, path: Path, attempt: AttemptRun | None
    ) -> None:
        """Wait for bytes behind `offset`, or for the end of the attempt."""
        deadline = time.monotonic() + wait_s
        while True:
            state = _state(path, attempt)
            size, over = state
            left_s = deadline - time.monotonic()
            if over or size > offset or left_s <= 0:
                return
            await self._watch.changed(path, attempt, state, left_s)


def _log_of(path: Path, attempt: AttemptRun | None) -> LogFile:
    """The log at `path`; that of a live attempt hides its secrets."""
    return LogFile(path) if attempt is None else attempt.log


def _last_lines(
    question: wire.ReadLog, path: Path, attempt: AttemptRun | None
) -> wire.LogPart:
    """The last lines of the log; nothing from 0 on if there is no log yet."""
    over = attempt is None or not attempt.live
    limit = _limit_of(question)
    try:
        first, data = _log_of(path, attempt).tail(max(0, question.tail_lines))
    except (FileNotFoundError, UntrustedFileError):
        return wire.LogPart(question.request, 0, b"", end=False)
    end = over and len(data) < limit
    return wire.LogPart(question.request, first, data[:limit], end=end)


def _limit_of(question: wire.ReadLog) -> int:
    return max(0, min(question.limit, _LONGEST_PART))


def _read_part(
    question: wire.ReadLog, offset: int, path: Path, attempt: AttemptRun | None
) -> wire.LogPart:
    """The bytes that the log has now, from `offset` on."""
    limit = _limit_of(question)
    # Checked before the read: the next question finds bytes written in between.
    over = attempt is None or not attempt.live
    first = offset
    data = b""
    try:
        first, data = _log_of(path, attempt).read(offset, limit)
    except (FileNotFoundError, UntrustedFileError):
        if attempt is None:
            return wire.LogPart(question.request, 0, b"", end=True, missing=True)
    return wire.LogPart(question.request, first, data, end=over and len(data) < limit)
