"""The end of a stream beside a job: frames from the client are taken at once, and
those to it as fast as it reads.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from gpuyard.domain import stream_frames as frames
from gpuyard.domain.stream_frames import PART, WINDOW, Input, InputEnd, Resize, Taken

_READ_BYTES = 1 << 16


class FrameChannel:
    """One stream. `listen` runs as long as the client is there."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = frames.client_frames()
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        self._under_way = 0
        self._all_sent = False
        self._early: list[frames.FromClient] = []

    async def first(self) -> frames.FromClient:
        """The first frame; ValueError when there is none."""
        while data := await self._reader.read(_READ_BYTES):
            received = self._frames.feed(data)
            if received:
                self._early = received[1:]
                return received[0]
        raise ValueError("the stream ended before it began")

    async def listen(self, resize: Callable[[Resize], None]) -> None:
        """Take what the client sends until it has gone. ValueError when it sends more
        than it may, or what it may not.
        """
        self._take(self._early, resize)
        while data := await self._reader.read(_READ_BYTES):
            self._take(self._frames.feed(data), resize)

    def _take(
        self, received: list[frames.FromClient], resize: Callable[[Resize], None]
    ) -> None:
        for frame in received:
            match frame:
                case Input():
                    self._under_way += len(frame.data)
                    if self._under_way > WINDOW:
                        raise ValueError("more input than the stream takes")
                    if frame.data:
                        self._input.put_nowait(frame.data)
                case InputEnd():
                    if not self._all_sent:
                        self._all_sent = True
                        self._input.put_nowait(b"")
                case Resize():
                    resize(frame)
                case frames.RunCommand():
                    raise ValueError("a second command on one stream")

    async def input(self) -> AsyncIterator[bytes]:
        """What the client sends for the other end, until it says that this was all.
        The next part is asked for when the last one has arrived where it belongs.
        """
        while data := await self._input.get():
            yield data
            self._under_way -= len(data)
            await self.send(Taken(len(data)))

    async def send(self, frame: frames.FromAgent) -> None:
        """Send a frame, after the client has read enough of those before."""
        self._writer.write(frames.encode(frame))
        await self._writer.drain()

    async def send_all(
        self,
        read: Callable[[int], Awaitable[bytes]],
        framed: Callable[[bytes], frames.FromAgent],
    ) -> None:
        """Send all that can be read."""
        while data := await read(PART):
            await self.send(framed(data))

    async def hang_up(self) -> None:
        """Send no more, and leave when the other end has all, whatever it says."""
        self.end()
        while await self._reader.read(_READ_BYTES):
            pass

    def end(self) -> None:
        """No more frames follow."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        else:
            self._writer.close()  # TLS ends both ways; what was written is sent first
