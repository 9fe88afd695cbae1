"""What signals ask of a program that trains: SIGUSR1 a checkpoint, SIGTERM and Ctrl-C a
checkpoint and then the end.
"""

import signal
from types import FrameType


class Requests:
    """What the signals that came have asked for."""

    def __init__(self) -> None:
        self.save = False
        self.stop = 0  # the number of the signal, which the exit code tells
        signal.signal(signal.SIGUSR1, self._on_save)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)

    def _on_save(self, number: int, frame: FrameType | None) -> None:
        self.save = True

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self.stop = number
