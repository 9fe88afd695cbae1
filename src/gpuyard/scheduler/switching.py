"""Switching: how long it takes to boot, wake and unload a model and to start and leave a script worker.

Configured times are only the start: each is learned per (name, what), as the median of the newest measured.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from enum import StrEnum
from statistics import median

_KEPT = 20


class Move(StrEnum):
    """What is timed."""

    BOOT = "boot"
    WAKE = "wake"
    UNLOAD = "unload"
    EXIT = "exit"


class Switching:
    """Seconds by (model or script, move). KeyError for a name of which nothing is configured or known."""

    def __init__(self, configured: Mapping[tuple[str, Move], float]) -> None:
        self._configured = dict(configured)
        self._measured: dict[tuple[str, Move], deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def took(self, name: str, move: Move, seconds: float) -> None:
        """It was measured."""
        self._measured[name, move].append(seconds)

    def seconds(self, name: str, move: Move) -> float:
        """How long it will take."""
        measured = self._measured.get((name, move))
        return median(measured) if measured else self._configured[name, move]
