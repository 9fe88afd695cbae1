"""What becomes of connections and of answers that are under way, when tests want it."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import Message, Scope, Send

_LAST: Message = {"type": "http.response.body", "body": b"", "more_body": False}


class _Answer:
    """One answer that is under way. It can stall, or end as if that were all."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.path: str = scope["path"]
        self.loop = asyncio.get_running_loop()
        self._send = send
        self._start: Message | None = None
        self._is_over = False

    async def carry(self, message: Message) -> None:
        """Send a message, unless the answer has stalled or ended.

        The headers of a log come with its first line, as from a real server.
        """
        if self._is_over:
            return
        is_start = message["type"] == "http.response.start"
        if is_start and message["status"] == 200 and self.path.endswith("/log"):
            self._start = message
            return
        await self._send_start()
        await self._send(message)

    async def _send_start(self) -> None:
        if self._start is not None:
            start = self._start
            self._start = None
            await self._send(start)

    async def end(self) -> None:
        """End it, without an error: what was not sent is left out."""
        if not self._is_over:
            self._is_over = True
            await self._send_start()
            await self._send(_LAST)

    def stall(self) -> None:
        """Send nothing any more; the connection stays open."""
        self._is_over = True


class Wire:
    """All connections of the server. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: set[_Answer] = set()
        self._ports: set[int] = set()
        self._frozen: set[int] = set()
        self._thawed: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def freeze(self) -> None:
        """Nothing comes through the connections that there are, in either direction,
        and they stay open. New ones are as always.
        """
        with self._lock:
            self._frozen |= self._ports
            for answer in self._answers:
                answer.stall()

    def stall(self, path: str) -> None:
        """Answers that are under way send nothing any more."""
        self._each(path, lambda answer: answer.stall())

    def end(self, path: str) -> None:
        """Answers that are under way end now, without an error."""
        self._each(path, lambda answer: answer.loop.create_task(answer.end()))

    def under_way(self, path: str) -> int:
        """How many answers are."""
        with self._lock:
            return sum(bool(re.search(path, each.path)) for each in self._answers)

    def _each(self, path: str, work: Callable[[_Answer], Any]) -> None:
        with self._lock:
            for answer in self._answers:
                if re.search(path, answer.path):
                    answer.loop.call_soon_threadsafe(work, answer)

    def thaw(self) -> None:
        """Requests that came through frozen connections are answered."""
        with self._lock:
            self._frozen.clear()
            while self._thawed:
                loop, event = self._thawed.pop()
                loop.call_soon_threadsafe(event.set)

    async def arrive(self, scope: Scope) -> None:
        """A request has come; on a frozen connection it does not come through."""
        port = scope["client"][1]
        event = asyncio.Event()
        with self._lock:
            self._ports.add(port)
            if port not in self._frozen:
                return
            self._thawed.append((asyncio.get_running_loop(), event))
        await event.wait()

    @contextmanager
    def answering(self, scope: Scope, send: Send) -> Iterator[Send]:
        """The way for the messages of an answer."""
        answer = _Answer(scope, send)
        with self._lock:
            self._answers.add(answer)
        try:
            yield answer.carry
        finally:
            with self._lock:
                self._answers.discard(answer)
