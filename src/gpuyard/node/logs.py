"""Answers ReadLog and FindLines: a part of an attempt's log, or a page of its lines, if
wanted after a wait for output.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from gpuyard.domain import wire, wire_frames
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.log_query import LogPage
from gpuyard.insight.log_search import find_lines
from gpuyard.node.attempt import AttemptRun
from gpuyard.storage.log_times import LogTimes
from gpuyard.storage.logfile import LogFile
from gpuyard.storage.packed_log import with_stored_log
from gpuyard.storage.untrusted import UntrustedFileError

_LOOK_S = 0.02
_LONGEST_LOOK_S = 10.0
# No server asks for more.
_LONGEST_PART = 1 << 20
_State = tuple[int, bool]
Result = TypeVar("Result")


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
        return _with_log(path, attempt, lambda log: log.size()), over
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
        # A search takes a processor: one at a time.
        self._searching = asyncio.Lock()
        self._answering: set[asyncio.Task[None]] = set()

    def answer(
        self,
        question: wire.ReadLog | wire.FindLines,
        path: Path,
        attempt: AttemptRun | None,
    ) -> None:
        """Answer in the background."""
        if isinstance(question, wire.FindLines):
            answering = self._find(question, path, attempt)
        else:
            answering = self._answer(question, path, attempt)
        task = asyncio.create_task(answering)
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

    async def _find(
        self, question: wire.FindLines, path: Path, attempt: AttemptRun | None
    ) -> None:
        """Answer with a page of lines, once there is one."""
        deadline = time.monotonic() + question.wait_s
        with suppress(ConnectionError):
            while True:
                async with self._searching:
                    found = await asyncio.to_thread(find_page, question, path, attempt)
                page = found.page
                left_s = deadline - time.monotonic()
                if page is None or page.lines or found.end or left_s <= 0:
                    break
                # What was looked at is not looked at again.
                begun = replace(
                    question.query, begin=page.next, begin_section=page.next_section
                )
                question = replace(question, query=begun)
                if page.is_end:
                    await self._wait_for_output(page.next, left_s, path, attempt)
                    await asyncio.sleep(min(_LOOK_S, left_s))
            async with self._turn:
                await self._writer.drain()
                self._writer.write(wire_frames.encode(found))

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


def _with_log(
    path: Path, attempt: AttemptRun | None, use: Callable[[LogFile], Result]
) -> Result:
    """Use the log at `path`; that of a live attempt hides its secrets, and one that is
    over may be compressed.
    """
    return with_stored_log(path, use) if attempt is None else use(attempt.log)


def _last_lines(
    question: wire.ReadLog, path: Path, attempt: AttemptRun | None
) -> wire.LogPart:
    """The last lines of the log; nothing from 0 on if there is no log yet."""
    over = attempt is None or not attempt.live
    limit = _limit_of(question)
    try:
        lines = max(0, question.tail_lines)
        first, data = _with_log(path, attempt, lambda log: log.tail(lines))
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
        first, data = _with_log(path, attempt, lambda log: log.read(offset, limit))
    except (FileNotFoundError, UntrustedFileError):
        if attempt is None:
            return wire.LogPart(question.request, 0, b"", end=True, missing=True)
    return wire.LogPart(question.request, first, data, end=over and len(data) < limit)


def find_page(
    question: wire.FindLines, path: Path, attempt: AttemptRun | None
) -> wire.LinesFound:
    """The page of lines that is asked for, as the log is now."""
    # Checked before the read: the next question finds lines written in between.
    over = attempt is None or not attempt.live

    def find(log: LogFile) -> LogPage:
        times = LogTimes(path, log.path.lstat().st_mtime)
        return find_lines(log, times, question.query, is_complete=over)

    try:
        page = _with_log(path, attempt, find)
    except (FileNotFoundError, UntrustedFileError):
        return wire.LinesFound(question.request, end=over)
    except (OSError, InvalidInputError) as error:
        return wire.LinesFound(question.request, problem=str(error))
    return wire.LinesFound(question.request, page, end=over and page.is_end)
