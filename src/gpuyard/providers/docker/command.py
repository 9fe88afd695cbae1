"""Commands in running containers, over the daemon's `exec`.

docker-py reads the headers of the answer through a buffer and hands out the socket
behind it, so that output which came along with them would be lost. So the request is
made here.
"""

# docker-py has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import asyncio
import io
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Any

import requests
from docker.api.client import APIClient
from docker.errors import APIError, NotFound

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.stream_frames import PART, RunCommand
from gpuyard.providers.commands import GRACE_S, MARK, SIGNAL_MARKED, marked, new_mark
from gpuyard.providers.docker.command_input import CommandInput
from gpuyard.providers.docker.daemon import DockerDaemon
from gpuyard.providers.docker.stream import in_thread

# Before each part of the output of a command without a terminal: which of its streams,
# and how many bytes.
_HEADER = Struct(">BxxxI")
_STDOUT = 1
_STDERR = 2
_LOOK_S = 0.05
# How many parts of its output wait here for a slow reader.
_PARTS = 16
_KILLED = 137
_END_OF_FILE = b"\x04"


@dataclass(frozen=True, slots=True)
class ExecConnection:
    """The connection to a command: what it puts out, and where its input goes. Whoever
    drops the answer closes both.
    """

    answer: requests.Response
    output: io.BufferedReader
    input: socket.socket


async def start_in_container(
    daemon: DockerDaemon, container: str, request: RunCommand
) -> "ContainerCommand":
    """Start a command in a container. ProviderError says why that fails."""
    client: APIClient = (await daemon.client()).api
    mark = new_mark()
    terminal = bool(request.terminal)
    try:
        made: Mapping[str, str] = await daemon.call(
            client.exec_create,
            container,
            marked(request, mark),
            stdin=True,
            tty=terminal,
        )
        connection = await daemon.call(_connected, client, made["Id"], terminal)
    except (APIError, requests.HTTPError) as error:
        message = f"Docker: {getattr(error, 'explanation', '') or error}"
        raise ProviderError(message, "docker", "REFUSED") from None
    place = _ExecPlace(daemon, client, container, made["Id"])
    command = ContainerCommand(place, connection, mark, terminal=terminal)
    if terminal:
        await command.resize(request.rows, request.columns)
    return command


def _connected(client: APIClient, exec_id: str, terminal: bool) -> ExecConnection:
    answer = client.post(
        f"{client.base_url}/v{client.api_version}/exec/{exec_id}/start",
        json={"Tty": terminal, "Detach": False},
        headers={"Connection": "Upgrade", "Upgrade": "tcp"},
        stream=True,
        timeout=client.timeout,
    )
    answer.raise_for_status()
    raw: Any = answer.raw
    # Only there is what was read too far.
    output: Any = raw._fp.fp
    line: Any = getattr(output, "raw", None)
    connected = getattr(line, "_sock", None)
    if not isinstance(connected, socket.socket):
        answer.close()
        message = "Commands cannot be run over this kind of connection to Docker."
        raise ProviderError(message, "docker", "UNSUPPORTED")
    connected.settimeout(None)
    return ExecConnection(answer, output, connected)


@dataclass(frozen=True, slots=True)
class _ExecPlace:
    """A command as the daemon knows it."""

    daemon: DockerDaemon
    client: APIClient
    container: str
    exec_id: str

    async def facts(self) -> Mapping[str, Any]:
        """Whether it runs, and its exit code."""
        found: Mapping[str, Any] = await self.daemon.call(
            self.client.exec_inspect, self.exec_id
        )
        return found

    async def signal(self, mark: str, name: str) -> None:
        """Signal all its processes that are left."""
        words = ["sh", "-c", SIGNAL_MARKED, "sh", f"{MARK}={mark}", name]
        made: Mapping[str, str] = await self.daemon.call(
            self.client.exec_create, self.container, words
        )
        await self.daemon.call(self.client.exec_start, made["Id"])

    async def resize(self, rows: int, columns: int) -> None:
        """Tell it the size of its terminal."""
        await self.daemon.call(
            self.client.exec_resize, self.exec_id, height=rows, width=columns
        )


class ContainerCommand:
    """A command in a container. See JobCommand."""

    def __init__(
        self,
        place: _ExecPlace,
        connection: ExecConnection,
        mark: str,
        *,
        terminal: bool,
    ) -> None:
        self._place = place
        self._input = CommandInput(connection.input)
        self._connection = connection
        self._mark = mark
        self._terminal = terminal
        self._parts = {
            number: asyncio.Queue[bytes](_PARTS) for number in (_STDOUT, _STDERR)
        }
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Sort the output by its streams."""
        read = _whole if self._terminal else _sorted
        with suppress(ProviderError):
            async for part in in_thread(read(self._connection.output)):
                await self._parts[part[0]].put(part[1:])
        for parts in self._parts.values():
            await parts.put(b"")

    async def read_output(self, size: int) -> bytes:
        """See JobCommand."""
        return await self._parts[_STDOUT].get()

    async def read_errors(self, size: int) -> bytes:
        """See JobCommand."""
        return await self._parts[_STDERR].get()

    async def write(self, data: bytes) -> None:
        """See JobCommand."""
        await self._input.write(data)

    async def end_input(self) -> None:
        """See JobCommand."""
        if self._terminal:
            await self.write(_END_OF_FILE)
        else:
            self._input.end()

    async def resize(self, rows: int, columns: int) -> None:
        """See JobCommand."""
        if self._terminal:
            with suppress(APIError):  # it has just ended
                await self._place.resize(rows, columns)

    async def exit_code(self) -> int:
        """See JobCommand."""
        await self._reading
        while True:
            try:
                facts = await self._place.facts()
            except NotFound:  # the container is gone
                return _KILLED
            if not facts["Running"]:
                return int(facts["ExitCode"])
            await asyncio.sleep(_LOOK_S)

    async def end(self) -> None:
        """See JobCommand."""
        # First: nobody sends any more. Its output stays open, for what it puts out when
        # it gets the signal.
        self._input.end()
        with suppress(APIError):  # the container has ended, and all in it
            await self._place.signal(self._mark, "HUP")
            await asyncio.wait({self._reading}, timeout=GRACE_S)
            await self._place.signal(self._mark, "KILL")

    async def close(self) -> None:
        """See JobCommand."""
        # First: then nothing waits for the command, and closing does not wait either.
        self._input.close()
        await asyncio.to_thread(self._connection.answer.close)
        self._reading.cancel()


def _whole(output: io.BufferedReader) -> Iterator[bytes]:
    """The output of a terminal; before each part the number of its stream."""
    while part := output.read1(PART):
        yield bytes([_STDOUT]) + part


def _sorted(output: io.BufferedReader) -> Iterator[bytes]:
    """The output without a terminal; before each part the number of its stream."""
    while len(header := output.read(_HEADER.size)) == _HEADER.size:
        number, left = _HEADER.unpack(header)
        while left:
            part = output.read1(min(left, PART))
            if not part:
                return
            left -= len(part)
            yield bytes([_STDERR if number == _STDERR else _STDOUT]) + part
