"""The input of a command in a container, over a socket that blocks."""

import asyncio
import queue
import socket
import threading
from contextlib import suppress

_Part = tuple[bytes, asyncio.Future[OSError | None]]


class CommandInput:
    """Sends to a socket in a thread of its own. A command that reads nothing stops that
    thread only, and not those which the whole server shares. At most one part waits.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        # None is the end.
        self._parts = queue.SimpleQueue[_Part | None]()
        self._is_closed = False
        self._turn = asyncio.Lock()
        # What was given to the thread last: why it could not be sent, if it could not.
        self._last: asyncio.Future[OSError | None] | None = None

    async def write(self, data: bytes) -> None:
        """Send all of it; OSError when the command takes none any more."""
        async with self._turn:
            if self._last is None and not self._is_closed:
                threading.Thread(
                    target=self._send, name="docker-input", daemon=True
                ).start()
            elif self._last and not self._last.done():  # its writer was cancelled
                await asyncio.wait({self._last})
            if self._is_closed:  # perhaps while it waited; the thread has ended
                raise BrokenPipeError("the connection to the command is closed")
            self._last = self._loop.create_future()
            self._parts.put((data, self._last))
            fault = await asyncio.shield(self._last)
        if fault is not None:
            raise fault

    def _send(self) -> None:
        while (part := self._parts.get()) is not None:
            (data, done) = part
            fault: OSError | None = None
            try:
                self._socket.sendall(data)
            except OSError as error:
                fault = error
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(done.set_result, fault)

    def end(self) -> None:
        """No more input follows; what is being sent is given up."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection, its output as well."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._is_closed = True
        self._parts.put(None)
