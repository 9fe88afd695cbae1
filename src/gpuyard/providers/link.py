"""The connection to one agent: sends and receives frames, and matches answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from typing import TypeVar

from gpuyard.domain import wire, wire_frames
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.log_query import LogQuery
from gpuyard.domain.wire_frames import UnreadableReport

Message = wire.FromAgent | UnreadableReport
Report = wire.NumberedReport | UnreadableReport
_Answer = wire.LogPart | wire.LinesFound | wire.Found
Answer = TypeVar("Answer", wire.LogPart, wire.LinesFound, wire.Found)
# The most bytes of a log in one answer. A shorter part ends at the log's current end.
# Each reader that does not read holds about two of these in memory, and other messages
# of the agent wait while one is sent.
LOG_PART = 1 << 16
_ANSWER_S = 30.0
_READ_BYTES = 1 << 16
# What an agent has not read, or not had acknowledged: beyond any that works.
_MOST_UNREAD = 4 * wire_frames.MAX_FRAME
_MOST_REPORTS = 10_000


class Link:
    """The server's end of an agent's connection. Its errors name the `provider`;
    `max_frame` is the most bytes that the agent may say at once.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        provider: str,
        max_frame: int = wire_frames.MAX_FRAME,
    ) -> None:
        self._max_frame = max_frame
        self._reader = reader
        self._writer = writer
        self._provider = provider
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[_Answer]] = {}
        self.closed = False
        self._silent_beats = 0
        self._reports: list[Report] = []
        self._has_reports = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._ended = asyncio.Event()

    async def messages(self) -> AsyncIterator[Message]:
        """Every message until the link ends, except answers to requests.

        Those go to the callers that wait for them.
        """
        async for frame in self._frames():
            message = wire_frames.decode_from_agent(frame)
            self._silent_beats = 0
            if isinstance(message, _Answer):
                waiter = self._waiting.pop(message.request, None)
                if waiter and not waiter.done():
                    waiter.set_result(message)
            else:
                yield message

    async def _frames(self) -> AsyncIterator[bytes]:
        """Every frame until the link ends.

        The first is read alone, because it may say that the connection is a stream.
        Then all that has come is read at once: a busy agent sends thousands a second.
        """
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            header = await self._reader.readexactly(4)
            length = wire_frames.frame_length(header, self._max_frame)
            yield await self._reader.readexactly(length)
            received = bytearray()
            while part := await self._reader.read(_READ_BYTES):
                received += part
                for frame in wire_frames.take_frames(received, self._max_frame):
                    yield frame

    async def expect_beats(self, every_s: float) -> None:
        """Abort the link when its agent has been silent for too long.

        An agent that is stopped (SIGSTOP) keeps its connection open.
        """
        while self._silent_beats <= wire.SILENT_BEATS:
            # Counted, not timed: a server that was stopped itself must not take live
            # agents for dead.
            await asyncio.sleep(every_s)
            if self._has_room.is_set():
                self._silent_beats += 1
        # close() would wait for an agent that does not read.
        self._writer.transport.abort()

    async def add_report(self, report: Report) -> None:
        """Keep a report for the next call of `next_reports`; waits while there are too
        many, so that who says more than can be committed cannot exhaust memory.
        """
        self._reports.append(report)
        self._has_reports.set()
        if len(self._reports) >= _MOST_REPORTS and not self.closed:
            self._has_room.clear()
            await self._has_room.wait()

    async def pause(self, seconds: float) -> None:
        """Wait so long, but no longer than the link lasts."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)

    async def next_reports(self) -> list[Report]:
        """Wait for reports and take all there are; none once the link has ended."""
        await self._has_reports.wait()
        batch = self._reports
        self._reports = []
        self._has_room.set()
        if not self.closed:
            self._has_reports.clear()
        return batch

    def send(self, message: wire.ToAgent) -> None:
        """Queue a message.

        ProviderError when the link has ended or the message is too large.
        """
        if self.closed or self._writer.is_closing():
            raise self._error("The node's agent is not connected.", "NOT_CONNECTED")
        frame = wire_frames.encode(message)
        if len(frame) > wire_frames.MAX_FRAME:
            most = wire_frames.MAX_FRAME
            text = f"{len(frame)} bytes are more than the {most} an agent takes."
            raise self._error(text, "TOO_LARGE")
        self._writer.write(frame)
        if self._writer.transport.get_write_buffer_size() > _MOST_UNREAD:
            # It does not read what it makes us say.
            self._writer.transport.abort()

    def _error(self, message: str, code: str) -> ProviderError:
        return ProviderError(message, self._provider, code)

    async def read_log(
        self, attempt_id: str, offset: int, tail_lines: int, wait_s: float
    ) -> wire.LogPart:
        """Part of an attempt's log; see wire.ReadLog."""
        number = next(self._numbers)
        request = wire.ReadLog(number, attempt_id, offset, LOG_PART, tail_lines, wait_s)
        return await self._request(request, wire.LogPart, wait_s)

    async def find_lines(
        self, attempt_id: str, query: LogQuery, wait_s: float
    ) -> wire.LinesFound:
        """A page of lines of an attempt's log; see wire.FindLines."""
        number = next(self._numbers)
        request = wire.FindLines(number, attempt_id, query, wait_s)
        return await self._request(request, wire.LinesFound, wait_s)

    async def find(self, attempt_id: str) -> wire.Found:
        """Whether the agent has this attempt."""
        request = wire.Find(next(self._numbers), attempt_id)
        return await self._request(request, wire.Found, 0)

    async def _request(
        self,
        request: wire.ReadLog | wire.FindLines | wire.Find,
        answer_type: type[Answer],
        wait_s: float,
    ) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Answer] = loop.create_future()
        self._waiting[request.request] = future
        try:
            self.send(request)
            answer = await asyncio.wait_for(future, wait_s + _ANSWER_S)
        except TimeoutError:
            raise self._error("The node's agent did not answer.", "NO_ANSWER") from None
        finally:
            self._waiting.pop(request.request, None)
        if not isinstance(answer, answer_type):
            message = "The node's agent answered another question."
            raise self._error(message, "BAD_ANSWER")
        return answer

    def close(self) -> None:
        """End the link; callers that wait for an answer get a ProviderError."""
        if self.closed:
            return
        self.closed = True
        self._ended.set()
        self._writer.close()
        self._has_reports.set()
        self._has_room.set()
        for future in self._waiting.values():
            if not future.done():
                error = self._error(
                    "The link to the node's agent broke.", "NOT_CONNECTED"
                )
                future.set_exception(error)
