"""A command in a container that reads none of its input."""

import asyncio
import io
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import requests

from gpuyard.providers.docker.command import ContainerCommand, ExecConnection

# More than the buffers of a socket hold.
MUCH = bytes(16 << 20)


def connected(here: socket.socket) -> ContainerCommand:
    """A command at the other end of this socket."""
    raw: Any = socket.SocketIO(here, "r")
    output: io.BufferedReader = io.BufferedReader(raw)
    answer = requests.Response()
    answer.raw = output
    connection = ExecConnection(answer, output, here)
    return ContainerCommand(cast("Any", None), connection, "mark", terminal=False)


def test_it_stops_nobody_else_and_is_let_go() -> None:
    async def check(here: socket.socket) -> None:
        pool = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(pool)
        command = connected(here)
        stuck = asyncio.create_task(command.write(MUCH))
        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.to_thread(int), 60)
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        next_one = asyncio.create_task(command.write(MUCH))
        await asyncio.sleep(0)
        await command.close()
        with pytest.raises(OSError, match=r"."):
            await next_one
        with pytest.raises(OSError, match="is closed"):
            await command.write(b"late")

    there, here = socket.socketpair()
    with there, here:
        asyncio.run(check(here))
    for thread in threading.enumerate():
        if thread.name == "docker-input":
            thread.join(60)
            assert not thread.is_alive()


def test_its_input_arrives_whole_and_in_order() -> None:
    async def check(here: socket.socket, there: socket.socket) -> None:
        command = connected(here)
        parts = [bytes([number]) * 100_000 for number in range(20)]
        reader, _ = await asyncio.open_connection(sock=there)
        for part in parts:
            await asyncio.gather(command.write(part), reader.readexactly(len(part)))
        await command.end_input()
        assert not await reader.read()
        await command.close()

    there, here = socket.socketpair()
    with there, here:
        asyncio.run(check(here, there))
