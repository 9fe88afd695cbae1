"""Streams to a running job: WebSockets to the server that carry the frames of
domain/stream_frames.py.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidStatus,
    WebSocketException,
)

from gpuyard import __version__
from gpuyard.client.connection import Address
from gpuyard.client.light import unreachable
from gpuyard.client.problems import error_of
from gpuyard.client.transport import checked_url, tls_of_environment
from gpuyard.config.dialling import connect_to_own_port, is_loopback
from gpuyard.config.sockets import connected_socket, keep_alive
from gpuyard.domain import stream_frames as frames
from gpuyard.domain.errors import GpuyardError, RefusedError

_OPEN_S = 30.0
_CLOSE_S = 2.0
# So that a proxy on the way does not take an idle stream for dead.
_PING_S = 20.0


class JobStream:
    """An open stream: what the client sends, and what the agent answers."""

    def __init__(self, connection: ClientConnection, address: Address) -> None:
        self._connection = connection
        self._address = address
        self._credit = frames.WINDOW
        self._has_credit = asyncio.Event()

    async def send(self, frame: frames.FromClient) -> None:
        """Send a frame; one after the end of the stream is lost."""
        with suppress(ConnectionClosed):
            await self._connection.send(frames.encode(frame))

    @property
    def unacknowledged(self) -> int:
        """How many bytes of Input were sent and are not known to be taken."""
        return frames.WINDOW - self._credit

    async def has_room(self, size: int) -> None:
        """Wait until so many bytes of Input, `PART` at most, may be sent."""
        while self._credit < size:
            self._has_credit.clear()
            await self._has_credit.wait()

    async def send_input(self, data: bytes) -> None:
        """Send bytes as Input, as fast as they are taken."""
        for start in range(0, len(data), frames.PART):
            part = data[start : start + frames.PART]
            await self.has_room(len(part))
            self._credit -= len(part)
            await self.send(frames.Input(part))

    async def frames(self) -> AsyncIterator[frames.FromAgent]:
        """What comes, until the agent has said all. UnreachableError when the stream
        breaks off.
        """
        reader = frames.agent_frames()
        try:
            async for message in self._connection:
                received = message.encode() if isinstance(message, str) else message
                for frame in reader.feed(received):
                    if isinstance(frame, frames.Taken):
                        self._credit += frame.count
                        self._has_credit.set()
                    else:
                        yield frame
        except (ConnectionClosed, ValueError) as error:
            raise unreachable(self._address, error) from None


@asynccontextmanager
async def open_stream(address: Address, path: str) -> AsyncGenerator[JobStream]:
    """The stream at a path of the API.

    GpuyardError as the server raised it when it refuses; UnreachableError.
    """
    try:
        connection = await connect(
            "ws" + address.url.removeprefix("http") + path,
            additional_headers=address.identity_headers,
            user_agent_header=f"gpuyard/{__version__}",
            compression=None,
            ping_interval=_PING_S,
            ping_timeout=None,
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
            **_way_to(address),
        )
    except InvalidStatus as error:
        raise _refusal(error) from None
    except (OSError, WebSocketException) as error:
        raise unreachable(address, error) from None
    async with connection:
        # It, not the ping, finds that the server is dead: a client whose own reader
        # does not read leaves pings unanswered.
        keep_alive(connection.transport.get_extra_info("socket"))
        yield JobStream(connection, address)


def _way_to(address: Address) -> dict[str, Any]:
    """The options of `connect` that lead to our own server, or to one with TLS.

    OSError when nobody is there whom we may tell the token.
    """
    url = checked_url(address)
    if url.scheme == "https":
        return {"ssl": tls_of_environment()}
    if not is_loopback(url.host):
        return {}
    if address.socket:
        dialled = connected_socket(address.socket, address.owner)
    else:
        dialled = connect_to_own_port(url.host, url.port or 80, _OPEN_S)
        dialled.setblocking(False)
    return {"sock": dialled, "proxy": None}


def _refusal(error: InvalidStatus) -> GpuyardError:
    response = error.response
    if response.body:
        return error_of(response.status_code, bytes(response.body))
    return RefusedError(
        f"The server takes no stream ({response.status_code}).",
        "It may be older than this command; `gpuyard doctor` says so.",
    )
