"""Streams from the server to attempts on nodes. The server asks over the link of the
agent (OpenStream), and the agent connects once more for each.
"""

import asyncio
import secrets

from gpuyard.domain import wire
from gpuyard.domain.errors import ClosedPortError, ProviderError, RefusedError
from gpuyard.domain.printable import printable
from gpuyard.providers.link import Link

# How long an agent has to connect.
_JOIN_S = 10.0


class NodeStream:
    """A stream that an agent has opened. Whoever reads and writes it closes it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.closed = asyncio.Event()

    def close(self) -> None:
        """Let the agent's connection end."""
        self.closed.set()


class NodeStreams:
    """The streams of one provider, by the keys that the agents were given."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._waiting: dict[str, asyncio.Future[NodeStream]] = {}
        self._open: set[NodeStream] = set()

    async def open(
        self,
        link: Link,
        attempt_id: str,
        port: int,
        *,
        stdin: bool = False,
        own_port: bool = False,
    ) -> NodeStream:
        """Have the agent at `link` open a stream; see wire.OpenStream.

        RefusedError says why there is none, ClosedPortError that nothing listens.
        ProviderError when the agent does not answer.
        """
        # Nobody else can join under it.
        key = secrets.token_hex(16)
        joined: asyncio.Future[NodeStream] = asyncio.get_running_loop().create_future()
        self._waiting[key] = joined
        try:
            link.send(wire.OpenStream(key, attempt_id, port, stdin, own_port))
            async with asyncio.timeout(_JOIN_S):
                return await joined
        except TimeoutError:
            message = "The node's agent did not open the stream."
            raise ProviderError(message, self._provider, "NO_ANSWER") from None
        finally:
            self._waiting.pop(key, None)

    async def join(
        self,
        message: wire.JoinStream,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Hand an agent's new connection to whoever asked for it; returns when it is
        closed.
        """
        joined = self._waiting.pop(message.key, None)
        if joined is None or joined.done():
            return
        if message.problem:
            joined.set_exception(_refusal(message))
            return
        stream = NodeStream(reader, writer)
        self._open.add(stream)
        joined.set_result(stream)
        try:
            await stream.closed.wait()
        finally:
            self._open.discard(stream)

    def close(self) -> None:
        """Close all."""
        for stream in self._open:
            stream.close()


def _refusal(message: wire.JoinStream) -> RefusedError:
    problem = printable(message.problem)
    if message.closed_port:
        return ClosedPortError(
            f"Nothing answers at the port on the node ({problem}).",
            "Has the program begun to listen? It must listen on 127.0.0.1 or 0.0.0.0.",
        )
    return RefusedError(f"The node opens no stream: {problem}.")
