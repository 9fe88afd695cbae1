"""A connection to a port of a job, over a stream to its node."""

import asyncio
from collections import deque

from gpuyard.domain import stream_frames as frames

_READ_BYTES = 1 << 16


class PortStream:
    """Bytes to and from the port. One task writes and one reads."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = frames.agent_frames()
        self._read: deque[bytes] = deque()
        self._ended = False
        self._credit = frames.WINDOW
        self._has_credit = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Send bytes, as fast as they are taken: somebody must read meanwhile."""
        for start in range(0, len(data), frames.PART):
            part = data[start : start + frames.PART]
            while self._credit < len(part):
                self._has_credit.clear()
                await self._has_credit.wait()
            self._credit -= len(part)
            self._writer.write(frames.encode(frames.Input(part)))
            await self._writer.drain()

    async def read(self) -> bytes:
        """The next bytes; none when no more follow. ValueError for what is no frame."""
        while not self._read and not self._ended:
            data = await self._reader.read(_READ_BYTES)
            self._ended = not data
            for frame in self._frames.feed(data):
                self._take(frame)
        return self._read.popleft() if self._read else b""

    def _take(self, frame: frames.FromAgent) -> None:
        if isinstance(frame, frames.Taken):
            self._credit += frame.count
            self._has_credit.set()
        elif isinstance(frame, frames.Output) and frame.data:
            self._read.append(frame.data)
        elif isinstance(frame, frames.OutputEnd):
            self._ended = True
