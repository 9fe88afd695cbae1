"""A descriptor of a pipe or a terminal, read and written on the event loop."""

import asyncio
import fcntl
import os
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_TERMINAL_BYTES = 1 << 16


class Descriptor:
    """One end, which this owns. It may be read or written, a terminal both."""

    def __init__(self, number: int) -> None:
        self.number = number
        os.set_blocking(number, False)
        self._drained = asyncio.Event()
        self._left = 0
        self._is_open = True

    def finish(self) -> None:
        """Nobody is waited for any more: what is there can be read, then comes the end.

        A program may leave others behind that hold the other end, and go on writing.
        """
        if os.isatty(self.number):
            # Not all that a terminal holds is counted.
            self._left = _TERMINAL_BYTES
        with suppress(OSError):  # not to be read
            found = fcntl.ioctl(self.number, termios.FIONREAD, b"\0" * 4)
            self._left = max(self._left, int.from_bytes(found, sys.byteorder))
        self._drained.set()

    async def read(self, most: int) -> bytes:
        """The next bytes; empty at the end."""
        loop = asyncio.get_running_loop()
        while True:
            is_last = self._drained.is_set()
            if is_last:
                most = min(most, self._left)
            try:
                data = os.read(self.number, most) if most else b""
                self._left -= len(data)
                return data
            except BlockingIOError:
                if is_last:
                    return b""
                await self._ready(loop.add_reader, loop.remove_reader)
            except OSError:  # a terminal that nobody holds any more
                return b""

    async def write(self, data: bytes) -> None:
        """Write all of it; OSError when nobody reads any more."""
        loop = asyncio.get_running_loop()
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self.number, left) :]
            except BlockingIOError:
                if self._drained.is_set():
                    raise BrokenPipeError from None
                await self._ready(loop.add_writer, loop.remove_writer)

    async def _ready(
        self, add: Callable[..., None], remove: Callable[[int], Any]
    ) -> None:
        """Wait until it is ready, or `finish` was called."""
        ready = asyncio.Event()
        add(self.number, ready.set)
        waits = [
            asyncio.create_task(ready.wait()),
            asyncio.create_task(self._drained.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            remove(self.number)
            for wait in waits:
                wait.cancel()

    def close(self) -> None:
        """Let go of it, once."""
        if self._is_open:
            self._is_open = False
            os.close(self.number)
