"""A command in a container, over a WebSocket: the protocols v4 and, from Kubernetes 1.30
on, v5 of `remotecommand`. If the client goes, the command goes on, as on a real node.
"""

import asyncio
import fcntl
import json
import os
import struct
import termios
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.support.kubernetes.container import Beside, Container, Streams, reader_of
from tests.support.kubernetes.objects import Object
from tests.support.kubernetes.options import Options

_V5 = "v5.channel.k8s.io"
_V4 = "v4.channel.k8s.io"
_STDIN = 0
_STDOUT = 1
_STDERR = 2
_STATUS = 3
_RESIZE = 4
_CLOSE = 255


async def execute(socket: WebSocket, container: Container, options: Options) -> None:
    """Run what a request asks for, and carry its streams."""
    speaks = [_V5, _V4] if options.minor >= 30 else [_V4]
    asked: list[str] = socket.scope["subprotocols"]
    chosen = next((each for each in asked if each in speaks), None)
    await socket.accept(subprotocol=chosen)
    await _Execution(socket, container, chosen or _V4).run()


class _Execution:
    def __init__(self, socket: WebSocket, container: Container, protocol: str) -> None:
        self._socket = socket
        self._container = container
        self._protocol = protocol
        query = socket.query_params
        self._terminal = query.get("tty") == "true"
        self._takes_input = query.get("stdin") == "true"
        self._input: int | None = None
        self._outputs: dict[int, int] = {}

    def _start(self) -> Beside:
        command = self._socket.query_params.getlist("command")
        theirs = self._open()
        try:
            return self._container.start_beside(command, theirs)
        finally:
            for number in {theirs.input, theirs.output, theirs.errors}:
                os.close(number)

    def _open(self) -> Streams:
        if self._terminal:
            master, slave = os.openpty()
            self._input = os.dup(master)
            self._outputs = {_STDOUT: master}
            return Streams(slave, slave, slave, terminal=True)
        their_input, our_input = os.pipe()
        our_output, their_output = os.pipe()
        our_errors, their_errors = os.pipe()
        self._outputs = {_STDOUT: our_output, _STDERR: our_errors}
        self._input = our_input
        if not self._takes_input:
            self._end_input()
        return Streams(their_input, their_output, their_errors, terminal=False)

    def _end_input(self) -> None:
        if self._input is not None:
            os.close(self._input)
        self._input = None

    async def run(self) -> None:
        beside = self._start()
        taking = asyncio.create_task(self._take())
        sending = [self._send(number, end) for number, end in self._outputs.items()]
        try:
            await asyncio.gather(*sending)
            code, failure = await beside.ended()
            with suppress(RuntimeError, WebSocketDisconnect):
                status = json.dumps(_status(code, failure)).encode()
                await self._socket.send_bytes(bytes([_STATUS]) + status)
                await self._socket.close()
        finally:
            taking.cancel()
            self._end_input()

    async def _send(self, number: int, end: int) -> None:
        reader = await reader_of(end)
        gone = False
        with suppress(OSError):  # the other end of a terminal is closed
            while data := await reader.read(1 << 14):
                try:
                    if not gone:
                        await self._socket.send_bytes(bytes([number]) + data)
                except (RuntimeError, WebSocketDisconnect, OSError):
                    gone = True

    async def _take(self) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):
            while True:
                message = await self._socket.receive_bytes()
                await self._serve(message[0], message[1:])

    async def _serve(self, number: int, data: bytes) -> None:
        if number == _STDIN and self._input is not None:
            with suppress(OSError):
                await asyncio.to_thread(_write_all, self._input, data)
        elif number == _RESIZE and self._terminal and self._input is not None:
            size = json.loads(data)
            packed = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
            fcntl.ioctl(self._input, termios.TIOCSWINSZ, packed)
        elif number == _CLOSE and self._protocol == _V5 and data == bytes([_STDIN]):
            self._end_input()


def _write_all(end: int, data: bytes) -> None:
    while data:
        data = data[os.write(end, data) :]


def _status(code: int, failure: str) -> Object:
    if not code:
        return {"metadata": {}, "status": "Success"}
    if failure:
        why = f"error executing command in container: {failure}"
        return {
            "metadata": {},
            "status": "Failure",
            "message": why,
            "reason": "InternalError",
            "details": {"causes": [{"message": why}]},
            "code": 500,
        }
    return {
        "metadata": {},
        "status": "Failure",
        "message": (
            "command terminated with non-zero exit code: command terminated with exit"
            f" code {code}"
        ),
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
