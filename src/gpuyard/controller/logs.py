"""The output of a job as one stream, through all its attempts."""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpuyard.controller.core import Core
from gpuyard.domain.errors import NotFoundError, ProviderError
from gpuyard.domain.log_query import LogPage, LogQuery
from gpuyard.domain.printable import printable
from gpuyard.domain.states import JobState
from gpuyard.insight.log_patterns import check_query
from gpuyard.insight.log_search import find_lines
from gpuyard.providers.base import GpuProviderInterface, LogPiece
from gpuyard.providers.configured import Providers
from gpuyard.storage.log_times import LogTimes
from gpuyard.storage.logfile import LogFile

_LONGEST_WAIT_S = 5.0
# Between two looks at a copy that grows.
_COPY_S = 0.1
# Between two looks of a client for lines in it.
_COPY_WAIT_S = 1.0
# So long the output of an attempt that has ended is asked for.
ENDED_S = 10.0
# A reader that does not read holds two of these in memory.
_PART_BYTES = 1 << 16
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place in the output of a job: a byte of one of its attempts."""

    attempt: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a job's output, by one attempt; `offset` is the place of its first
    byte, None if that is not known.
    """

    attempt: int
    offset: int | None
    data: bytes


@dataclass(frozen=True, slots=True)
class LinesPage:
    """Lines of one attempt of a job; `is_over`: that attempt will have no more."""

    attempt: int
    page: LogPage
    is_over: bool


def check_progress(page: LogPage, query: LogQuery, provider: str) -> None:
    """ProviderError for a page after which the next would be the same once more: what a
    machine sends is not believed, and whoever reads page by page must come to an end.
    """
    stands_still = not page.is_end and page.next <= query.begin
    if query.tail is not None:
        end = page.next if query.end is None else query.end
        stands_still = page.previous is not None and page.previous >= end
    if stands_still:
        raise ProviderError(
            "The node answers with the same lines of the log again and again.",
            provider,
            "LOG_FAULT",
        )


class Logs:
    """The output of jobs.

    `wait_for_event(timeout_s)` returns after the next event or the timeout.
    `copy_path(attempt_id)` is where the output of an attempt in an external queue is
    copied to.
    """

    def __init__(
        self,
        core: Core,
        providers: Providers,
        wait_for_event: Callable[[float], Awaitable[object]],
        copy_path: Callable[[str], Path],
    ) -> None:
        self._core = core
        self._copy_path = copy_path
        self._providers = providers
        self._wait_for_event = wait_for_event

    async def read(
        self,
        job_id: str,
        *,
        lines: int | None = None,
        follow: bool = False,
        number: int | None = None,
        position: LogPosition | None = None,
    ) -> AsyncIterator[LogPart]:
        """The output of the last attempt or of attempt `number`, or what comes at and
        after `position`; with `lines`, only the last lines.

        With `follow`, it goes on until the end of the attempt `number`; without a
        number, through all later attempts until the end of the job.
        """
        first = number if position is None else position.attempt
        begin = self._attempt(job_id, first)
        offset = 0 if position is None else position.offset
        if position:
            lines = None
        while True:
            # Read first: an attempt that begins and ends meanwhile is still found.
            is_over = self.is_over(job_id)
            for attempt in self._attempts_from(job_id, begin):
                async for part in self._output(attempt, offset, lines, follow):
                    yield part
                begin = attempt["number"] + 1
                lines = None
                offset = 0
                if number is not None or not follow:
                    return
            if not follow or is_over:
                return
            # The event of an end that came meanwhile is past.
            if not self.is_over(job_id):
                await self._wait_for_event(_LONGEST_WAIT_S)

    async def find(
        self,
        job_id: str,
        query: LogQuery,
        *,
        number: int | None = None,
        wait_s: float = 0.0,
    ) -> LinesPage:
        """A page of lines of the last attempt or of attempt `number`; while there are
        none and more may come, it waits up to `wait_s`. InvalidInputError.
        """
        check_query(query)
        attempts = self._attempts(job_id)
        newest = max((row["number"] for row in attempts), default=1)
        wanted = newest if number is None else number
        attempt = next((row for row in attempts if row["number"] == wanted), None)
        if attempt is None:
            # A client may wait for the attempt that comes next; any other is an error.
            if wanted != len(attempts) + 1:
                self._attempt(job_id, wanted)
            is_over = self.is_over(job_id)
            if wait_s and not is_over:
                await self._wait_for_event(wait_s)
            return LinesPage(wanted, LogPage([], 0, "", True), is_over)
        page, is_over = await self._lines(attempt, query, wait_s)
        if page.is_end and wanted < newest:
            return LinesPage(wanted, page, is_over=True)
        return LinesPage(wanted, page, is_over and page.is_end)

    async def _lines(
        self, attempt: Row, query: LogQuery, wait_s: float
    ) -> tuple[LogPage, bool]:
        """A page of lines of an attempt, and whether there will be no more."""
        copy = self._copy_path(attempt["id"])
        provider = self._providers.node_provider(attempt["provider"])
        nodes = [share["node_id"] for share in attempt["placements"] or ()]
        if provider is not None and nodes and not copy.exists():
            reference = self._reference(attempt)
            found = await provider.find_lines(nodes[0], reference, query, wait_s)
            if found.problem:
                problem = printable(found.problem)
                raise ProviderError(problem, attempt["provider"], "LOG_FAULT")
            page = found.page or LogPage([], query.begin, "", True)
            check_progress(page, query, attempt["provider"])
            return page, found.end and not self._is_live(attempt)
        is_live = self._is_live(attempt)
        page = await asyncio.to_thread(_lines_of_copy, copy, query, not is_live)
        if is_live and wait_s and not page.lines and page.is_end:
            await self._wait_for_event(min(wait_s, _COPY_WAIT_S))
        return page, not is_live

    def is_over(self, job_id: str) -> bool:
        """Whether the job will have no more output."""
        row = self._core.queries.job(job_id)
        return row is None or JobState(row["state"]).terminal

    def _attempts_from(self, job_id: str, first: int) -> list[Row]:
        return [row for row in self._attempts(job_id) if row["number"] >= first]

    def _attempts(self, job_id: str) -> list[Row]:
        return self._core.queries.attempts_of([job_id]).get(job_id, [])

    def _attempt(self, job_id: str, number: int | None) -> int:
        """The number of the attempt to begin with: `number`, or that of the last one,
        or 1 where there is none yet. NotFoundError.
        """
        attempts = [row["number"] for row in self._attempts(job_id)]
        if number is None:
            return max(attempts, default=1)
        if number not in attempts:
            raise NotFoundError(
                f"Job {job_id} has no attempt {number}.", f"It has {len(attempts)}."
            )
        return number

    async def _output(
        self, attempt: Row, offset: int, lines: int | None, follow: bool
    ) -> AsyncIterator[LogPart]:
        """The output of one attempt, as `read`."""
        number = attempt["number"]
        sent = 0
        give_up_at = math.inf
        while True:
            problem: ProviderError | None = None
            try:
                async for piece in self._pieces(attempt, offset, lines, follow):
                    sent += len(piece.data)
                    if piece.offset is not None:
                        # From here it can be read again.
                        offset = piece.offset + len(piece.data)
                        lines = None
                    yield LogPart(number, piece.offset, piece.data)
            except ProviderError as error:
                problem = error
            if problem is None:
                return
            # An attempt that never reached its agent has no log. The log of an agent
            # that is not connected is back later.
            live = self._is_live(attempt)
            if problem.error_code == "JOB_NOT_FOUND" and not (follow and live):
                return
            repeats = sent > 0 and lines is not None
            if not follow or repeats:
                raise problem
            # The node of an attempt that was lost may never come back.
            if not live:
                give_up_at = min(give_up_at, time.monotonic() + ENDED_S)
            if time.monotonic() >= give_up_at:
                return
            await self._wait_for_event(_LONGEST_WAIT_S)

    async def _pieces(
        self, attempt: Row, offset: int, lines: int | None, follow: bool
    ) -> AsyncIterator[LogPiece]:
        """From our copy where there is one, else from the provider."""
        copy = self._copy_path(attempt["id"])
        provider = self._providers.get(attempt["provider"])
        if provider is not None and provider.output_moves:
            if follow:
                await self._wait_for_copy(attempt, copy)
            if copy.exists():
                async for piece in self._copied(attempt, copy, offset, lines, follow):
                    yield piece
                return
        sent = 0
        if provider and (self._is_live(attempt) or not copy.exists()):
            pieces = self._provided(provider, attempt, offset, lines, follow)
            try:
                async for piece in pieces:
                    sent += len(piece.data)
                    yield piece
                if sent:
                    return
            except ProviderError:
                if sent or self._is_live(attempt) or not copy.exists():
                    raise
        # An attempt that has ended, perhaps while it was waited for: its provider may
        # have forgotten it already.
        if not self._is_live(attempt) and copy.exists():
            async for piece in _read_file(copy, offset, lines):
                yield piece

    def _provided(
        self,
        provider: GpuProviderInterface,
        attempt: Row,
        offset: int,
        lines: int | None,
        follow: bool,
    ) -> AsyncIterator[LogPiece]:
        """From the provider."""
        reference = self._reference(attempt)
        node_id = attempt["placements"][0]["node_id"] if attempt["placements"] else ""
        node_provider = self._providers.node_provider(attempt["provider"])
        if node_provider is not None and node_id:
            return node_provider.stream_log_pieces_of(
                node_id, reference, offset=offset, lines=lines, follow=follow
            )
        return provider.stream_log_pieces(
            reference, offset=offset, lines=lines, follow=follow
        )

    async def _wait_for_copy(self, attempt: Row, copy: Path) -> None:
        """Wait until the copy of a live attempt is begun."""
        while self._is_live(attempt):
            if copy.exists():
                return
            await asyncio.sleep(_COPY_S)

    async def _copied(
        self,
        attempt: Row,
        copy: Path,
        offset: int,
        lines: int | None,
        follow: bool,
    ) -> AsyncIterator[LogPiece]:
        """From our copy; with `follow`, until the attempt has ended."""
        if lines is not None:
            offset = await asyncio.to_thread(_last_lines, copy, lines)
        while True:
            # Read first: the copy is whole before the attempt has ended.
            is_live = self._is_live(attempt)
            if copy.stat().st_size > offset:
                async for piece in _read_file(copy, offset, None):
                    offset = (piece.offset or 0) + len(piece.data)
                    yield piece
            if not follow or not is_live:
                return
            await asyncio.sleep(_COPY_S)

    def _is_live(self, attempt: Row) -> bool:
        return attempt["id"] in self._core.view.attempts

    def _reference(self, attempt: Row) -> str:
        """The provider's name for the attempt, which may be newer than its row."""
        live = self._core.view.attempts.get(attempt["id"])
        if live and live.provider_ref:
            return live.provider_ref
        return attempt["provider_ref"] or attempt["id"]


async def _read_file(
    path: Path, offset: int, lines: int | None
) -> AsyncIterator[LogPiece]:
    """The file, which is complete, from the byte `offset` on, or its last lines.

    Its front may have been freed.
    """
    first = LogFile(path).start()
    with path.open("rb") as file:
        if lines is None:
            file.seek(offset)
        else:
            await asyncio.to_thread(seek_last_lines, file, lines)
        begin = file.seek(max(file.tell(), first))
        while part := await asyncio.to_thread(file.read, _PART_BYTES):
            yield LogPiece(begin, part)
            begin += len(part)


def _lines_of_copy(copy: Path, query: LogQuery, is_complete: bool) -> LogPage:
    """A page of lines of a copy, which may not be begun yet."""
    try:
        times = LogTimes(copy, copy.stat().st_mtime)
        return find_lines(LogFile(copy), times, query, is_complete=is_complete)
    except FileNotFoundError:
        return LogPage([], query.begin, "", True)


def _last_lines(path: Path, lines: int) -> int:
    """The byte at which the last `lines` lines of a file begin."""
    with path.open("rb") as file:
        seek_last_lines(file, lines)
        return file.tell()


def seek_last_lines(file: BinaryIO, lines: int) -> None:
    """Move to the start of the last `lines` lines, however long they are."""
    end = file.seek(0, os.SEEK_END)
    if lines == 0 or end == 0:
        return
    # The newline at the end of the file ends its last line, and begins no other.
    position = end - 1
    while position > 0:
        size = min(_PART_BYTES, position)
        file.seek(position - size)
        block = file.read(size)
        newlines = block.count(b"\n")
        if newlines >= lines:
            break
        lines -= newlines
        position -= size
    else:
        file.seek(0)
        return
    begin = size
    for _ in range(lines):
        begin = block.rfind(b"\n", 0, begin)
    file.seek(position - size + begin + 1)
