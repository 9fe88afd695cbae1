"""A real pseudo-terminal: a command in it believes that a person sits there."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

CTRL_C = "\x03"
CTRL_D = "\x04"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`raw` is everything shown so far, `text` the same without escapes; `type` presses
    keys.
    """

    def __init__(self, command: Sequence[str], **more: Any) -> None:
        self._master, inside = pty.openpty()
        self.resize(40, 160)
        self.raw = ""
        self.process = subprocess.Popen(
            command,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            # Its controlling terminal, so that Ctrl-C is a signal.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            **more,
        )
        os.close(inside)

    @property
    def text(self) -> str:
        """What was shown, without colours and movements of the cursor."""
        return _ESCAPE.sub("", self.raw)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Give the window another size."""
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def press_until(self, key: str, pattern: str, tries: int = 20) -> None:
        """Press `key` as a person does, once more when nothing happens: an interrupt
        can fall between two reads.
        """
        for _ in range(tries):
            self.type(key)
            with suppress(AssertionError):
                self.expect(pattern, timeout=1)
                return
        self.expect(pattern, timeout=1)

    def expect(self, pattern: str, timeout: float = 30) -> str:
        """Wait until `pattern` is shown, and return what matched."""
        deadline = time.monotonic() + timeout
        while not (found := re.search(pattern, self.text)):
            if time.monotonic() > deadline or not self._read(0.1):
                raise AssertionError(
                    f"the terminal does not show {pattern!r}, but:\n{self.text}"
                )
        return found[0]

    def leave(self, timeout: float = 30) -> int:
        """Wait until the command has left; its exit code."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._read(0.1):
            pass
        return self.process.wait(max(deadline - time.monotonic(), 1))

    def close(self) -> None:
        """End the command if the test did not."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self, timeout: float) -> bool:
        """Take in what is shown next; False when nothing ever will be, because the
        command has left.
        """
        if not select.select([self._master], [], [], timeout)[0]:
            return True
        try:
            self.raw += os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # Linux's way of saying that nobody holds the other end
            return False
        return True


@contextmanager
def terminal(command: Sequence[str], **more: Any) -> Iterator[Terminal]:
    """A terminal that runs `command`."""
    made = Terminal(command, **more)
    try:
        yield made
    finally:
        made.close()
