"""One link to one agent: frames in, frames out, questions matched with their answers."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import TypeVar

from gpuyard.domain import wire
from gpuyard.domain.errors import ProviderError

Answer = TypeVar("Answer", wire.LogPart, wire.Found)
# Bytes of a log asked for at once: a part that is shorter has come to the end of what was written so far.
LOG_PART = 1 << 20
_ANSWER_S = 30.0


class Link:
    """The server's end of an agent's connection. `provider`: whose errors it raises."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, provider: str) -> None:
        self._reader = reader
        self._writer = writer
        self._provider = provider
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[wire.LogPart | wire.Found]] = {}
        self.closed = False
        self._missed = 0
        self._reports: list[wire.Report] = []
        self._news = asyncio.Event()

    async def messages(self) -> AsyncIterator[wire.FromAgent]:
        """Every message until the link ends; answers to questions are handed to who asked."""
        while True:
            message = await self._receive()
            if message is None:
                return
            self._missed = 0
            if isinstance(message, wire.LogPart | wire.Found):
                waiter = self._waiting.pop(message.request, None)
                if waiter and not waiter.done():
                    waiter.set_result(message)
            else:
                yield message

    async def _receive(self) -> wire.FromAgent | None:
        try:
            header = await self._reader.readexactly(4)
            return wire.decode_from_agent(await self._reader.readexactly(wire.frame_length(header)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def expect_beats(self, every_s: float) -> None:
        """Cut the link when its agent has said nothing for too long: a process that is stopped keeps it open."""
        while self._missed <= wire.SILENT_BEATS:
            # Counted, not timed: a server that was stopped itself takes nobody for dead.
            await asyncio.sleep(every_s)
            self._missed += 1
        self._writer.transport.abort()  # whoever does not read would never let it be closed

    def hold(self, report: wire.Report) -> None:
        """Keep a report for who takes the next ones."""
        self._reports.append(report)
        self._news.set()

    async def next_reports(self) -> list[wire.Report]:
        """Wait for reports and take all that are there; none once the link has ended and all were taken."""
        await self._news.wait()
        batch, self._reports = self._reports, []
        if not self.closed:
            self._news.clear()
        return batch

    def send(self, message: wire.ToAgent) -> None:
        """Queue a message; ProviderError when the link is gone, or when it is more than a frame may hold."""
        if self.closed or self._writer.is_closing():
            raise self._error("The node's agent is not connected.", "NOT_CONNECTED")
        frame = wire.encode(message)
        if len(frame) > wire.MAX_FRAME:
            raise self._error(f"{len(frame)} bytes are more than the {wire.MAX_FRAME} an agent takes.", "TOO_LARGE")
        self._writer.write(frame)

    def _error(self, message: str, code: str) -> ProviderError:
        return ProviderError(message, self._provider, code)

    async def read_log(self, attempt_id: str, offset: int, tail_lines: int, wait_s: float) -> wire.LogPart:
        """Part of an attempt's log; see wire.ReadLog."""
        number = next(self._numbers)
        question = wire.ReadLog(number, attempt_id, offset, LOG_PART, tail_lines, wait_s)
        return await self._ask(question, wire.LogPart, wait_s)

    async def find(self, attempt_id: str) -> wire.Found:
        """Does the agent hold this attempt?"""
        return await self._ask(wire.Find(next(self._numbers), attempt_id), wire.Found, 0)

    async def _ask(self, question: wire.ReadLog | wire.Find, kind: type[Answer], wait_s: float) -> Answer:
        future: asyncio.Future[wire.LogPart | wire.Found] = asyncio.get_running_loop().create_future()
        self._waiting[question.request] = future
        try:
            self.send(question)
            answer = await asyncio.wait_for(future, wait_s + _ANSWER_S)
        except TimeoutError:
            raise self._error("The node's agent did not answer.", "NO_ANSWER") from None
        finally:
            self._waiting.pop(question.request, None)
        if not isinstance(answer, kind):
            raise self._error("The node's agent answered another question.", "BAD_ANSWER")
        return answer

    def close(self) -> None:
        """End the link; whoever waits for an answer hears that it will not come."""
        if self.closed:
            return
        self.closed = True
        self._writer.close()
        self._news.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._error("The link to the node's agent broke.", "NOT_CONNECTED"))
