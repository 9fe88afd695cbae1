"""A connection between two simulated processes: bytes arrive in order, after a while,
or not at all.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

from tests.simulation.loop import VirtualLoop


class End:
    """One end: what it needs of `asyncio.StreamWriter`, and a `StreamReader` for what
    the other end wrote.
    """

    def __init__(self, line: "Line") -> None:
        self._line = line
        self.reader = asyncio.StreamReader(loop=line.loop)
        self.other: End = self
        self.closed = False
        self._last = 0.0

    def write(self, data: bytes) -> None:
        if not self.closed:
            self._deliver(lambda other: other.reader.feed_data(data))

    def close(self) -> None:
        """What was written still arrives, then the end of it."""
        if not self.closed:
            self.closed = True
            self._deliver(End.hang_up)
            self._line.loop.call_soon(self.reader.feed_eof, context=self._line.context)

    def hang_up(self) -> None:
        """The other end has gone."""
        self.closed = True
        self.reader.feed_eof()

    def _deliver(self, what: Callable[["End"], object]) -> None:
        loop = self._line.loop
        # Timers of the same moment come in any order, bytes do not.
        self._last = max(self._last + 1e-6, loop.now + self._line.delay())
        loop.call_at(self._last, self._arrive, what, context=self._line.context)

    def _arrive(self, what: Callable[["End"], object]) -> None:
        if (
            not self._line.cut
            and not self.other.reader.at_eof()
            and not self.other.reader._eof
        ):
            what(self.other)

    @property
    def transport(self) -> "End":
        return self

    def abort(self) -> None:
        self._line.break_off()

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        """All that was written is on its way at once."""
        return 0

    async def drain(self) -> None:
        if self.closed:
            raise ConnectionResetError("the other end has gone")

    async def wait_closed(self) -> None:
        return

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default


class Line:
    """Both ends.

    `context` is the world's: bytes on their way outlive the process that wrote them.
    """

    def __init__(
        self, loop: VirtualLoop, context: Context, delay: Callable[[], float]
    ) -> None:
        self.loop = loop
        self.context = context
        self.delay = delay
        self.cut = False
        self.agent = End(self)
        self.server = End(self)
        self.agent.other = self.server
        self.server.other = self.agent

    def break_off(self) -> None:
        """What is on its way is lost, and both ends hear that the line is dead."""
        if not self.cut:
            self.cut = True
            for end in (self.agent, self.server):
                end.hang_up()

    @property
    def over(self) -> bool:
        return self.cut or (self.agent.closed and self.server.closed)
