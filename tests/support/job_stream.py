"""The client's end of a stream to an attempt, by hand."""

from gpuyard.domain import stream_frames as frames
from gpuyard.providers.node_streams import NodeStream
from tests.support.node import Node


class Stream:
    """A stream to an attempt of `node`, as the server has it from the agent."""

    def __init__(
        self,
        node: Node,
        attempt_id: str,
        port: int = 0,
        *,
        stdin: bool = False,
        own_port: bool = False,
    ) -> None:
        self._node = node
        node_id = node.sink.hellos[-1].node_id
        opening = node.provider.open_stream(
            node_id, attempt_id, port, stdin=stdin, own_port=own_port
        )
        self._stream: NodeStream = node.loop.run(opening)
        self._frames = frames.agent_frames()
        self._received: list[frames.FromAgent] = []

    def send(self, *sent: frames.FromClient) -> None:
        async def write() -> None:
            for frame in sent:
                self._stream.writer.write(frames.encode(frame))

        self._node.loop.run(write())

    def next(self) -> frames.FromAgent | None:
        """The next frame; None at the end."""
        while not self._received:
            data = self._node.loop.run(self._stream.reader.read(1 << 16))
            if not data:
                return None
            self._received += self._frames.feed(data)
        return self._received.pop(0)

    def rest(self) -> list[frames.FromAgent]:
        """All frames to the end."""
        return list(iter(self.next, None))

    def until(self, text: bytes) -> bytes:
        """What is put out, until it holds `text`."""
        shown = b""
        while text not in shown:
            frame = self.next()
            assert frame is not None, shown
            if isinstance(frame, frames.Output):
                shown += frame.data
        return shown

    def hang_up(self) -> None:
        self._node.loop.run(self._close())

    async def _close(self) -> None:
        self._stream.close()
