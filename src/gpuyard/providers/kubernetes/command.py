"""Commands in running pods, over the WebSocket of the API's `exec`.

Each message begins with the number of its channel. Protocol v5 can also close a
channel, which ends input. Servers before Kubernetes 1.30 speak only v4, where input
has no end.
"""

import asyncio
import json
from contextlib import AsyncExitStack, suppress

import aiohttp

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.stream_frames import PART, RunCommand
from gpuyard.providers.commands import GRACE_S, MARK, SIGNAL_MARKED, marked, new_mark
from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.fields import objects_at, text_at
from gpuyard.providers.kubernetes.manifest import CONTAINER

_V5 = "v5.channel.k8s.io"
_PROTOCOLS = (_V5, "v4.channel.k8s.io")
_STDIN = 0
_STDOUT = 1
_STDERR = 2
_STATUS = 3
_RESIZE = 4
_CLOSE = 255
# How many parts of its output wait here for a slow reader.
_PARTS = 16
_END_OF_FILE = b"\x04"


async def start_in_pod(
    api: KubernetesApi, pod: str, request: RunCommand
) -> "PodCommand":
    """Start a command in a pod. ProviderError says why that fails."""
    mark = new_mark()
    terminal = bool(request.terminal)
    command = PodCommand(api, pod, mark, terminal=terminal)
    await command.start(marked(request, mark))
    if terminal:
        await command.resize(request.rows, request.columns)
    return command


class PodCommand:
    """A command in a pod. See JobCommand."""

    def __init__(
        self, api: KubernetesApi, pod: str, mark: str, *, terminal: bool
    ) -> None:
        self._api = api
        self._pod = pod
        self._mark = mark
        self._terminal = terminal
        self._opened = AsyncExitStack()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._parts = {
            number: asyncio.Queue[bytes](_PARTS) for number in (_STDOUT, _STDERR)
        }
        self._status = b""
        self._reading: asyncio.Task[None] | None = None

    async def start(self, words: list[str]) -> None:
        """Start these words; ProviderError."""
        has = {"stdin": True, "stdout": True, "stderr": not self._terminal}
        query = [("container", CONTAINER)]
        query += [(name, str(there).lower()) for name, there in has.items()]
        query += [("tty", str(self._terminal).lower())]
        query += [("command", word) for word in words]
        path = f"{self._api.pods}/{self._pod}/exec"
        opening = self._api.websocket(path, _PROTOCOLS, query)
        self._socket = await self._opened.enter_async_context(opening)
        self._reading = asyncio.create_task(self._read(self._socket))

    async def _read(self, received: aiohttp.ClientWebSocketResponse) -> None:
        """Sort what comes by its channels."""
        async for message in received:
            if message.type is not aiohttp.WSMsgType.BINARY:
                continue
            number = message.data[0]
            data = message.data[1:]
            if number == _STATUS:
                self._status += data
            elif number in self._parts:
                for start in range(0, len(data), PART):
                    await self._parts[number].put(data[start : start + PART])
        for parts in self._parts.values():
            await parts.put(b"")

    async def read_output(self, size: int) -> bytes:
        """See JobCommand."""
        return await self._parts[_STDOUT].get()

    async def read_errors(self, size: int) -> bytes:
        """See JobCommand."""
        return await self._parts[_STDERR].get()

    async def _send(self, number: int, data: bytes) -> None:
        assert self._socket
        await self._socket.send_bytes(bytes([number]) + data)

    async def write(self, data: bytes) -> None:
        """See JobCommand."""
        await self._send(_STDIN, data)

    async def end_input(self) -> None:
        """See JobCommand."""
        assert self._socket
        if self._terminal:
            await self.write(_END_OF_FILE)
        elif self._socket.protocol == _V5:
            await self._send(_CLOSE, bytes([_STDIN]))

    async def resize(self, rows: int, columns: int) -> None:
        """See JobCommand."""
        if self._terminal:
            size = {"Width": columns, "Height": rows}
            await self._send(_RESIZE, json.dumps(size).encode())

    async def exit_code(self) -> int:
        """See JobCommand. ConnectionError when the connection broke off."""
        assert self._reading
        await asyncio.shield(self._reading)
        try:
            status = json.loads(self._status)
        except ValueError:
            raise ConnectionError("the cluster ended the connection") from None
        if text_at(status, "status") == "Success":
            return 0
        for cause in objects_at(status, "details", "causes"):
            if cause.get("reason") == "ExitCode":
                return int(text_at(cause, "message"))
        raise ConnectionError(text_at(status, "message"))

    async def end(self) -> None:
        """See JobCommand."""
        assert self._reading
        with suppress(ProviderError):  # the pod has ended, and all in it
            await self._signal("HUP")
            await asyncio.wait({self._reading}, timeout=GRACE_S)
            await self._signal("KILL")

    async def _signal(self, name: str) -> None:
        """Signal all its processes that are left."""
        killer = PodCommand(self._api, self._pod, self._mark, terminal=False)
        try:
            await killer.start(
                ["sh", "-c", SIGNAL_MARKED, "sh", f"{MARK}={self._mark}", name]
            )
            with suppress(ConnectionError):
                await killer.exit_code()
        finally:
            await killer.close()

    async def close(self) -> None:
        """See JobCommand."""
        if self._reading:
            self._reading.cancel()
        await self._opened.aclose()
