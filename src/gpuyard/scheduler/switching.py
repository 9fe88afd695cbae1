"""Switching: how long it takes to boot, wake and unload a model and to start and leave a script worker.

Configured times are only the start: each is learned per (name, what, class of GPU), as quantiles of the newest.
"""

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

KEPT = 20
"""So many of each are remembered."""


class Move(StrEnum):
    """What is timed. A boot is cold; a `reboot` is where the model was loaded before: its weights may be in memory."""

    BOOT = "boot"
    REBOOT = "reboot"
    WAKE = "wake"
    UNLOAD = "unload"
    EXIT = "exit"


# What stands for a move of which nothing was measured.
_INSTEAD = {Move.REBOOT: Move.BOOT}


@dataclass(frozen=True, slots=True)
class Timing:
    """One measurement: seconds of a move on a class of GPU (empty: none known). `place`: among those remembered."""

    name: str
    move: Move
    kind: str
    seconds: float
    place: int


class Switching:
    """Seconds by (model or script, move). KeyError for a name of which nothing is configured or known."""

    def __init__(self, configured: Mapping[tuple[str, Move], float]) -> None:
        self._configured = dict(configured)
        self._measured: dict[tuple[str, Move], dict[str, deque[float]]] = defaultdict(dict)
        self._count: dict[tuple[str, Move, str], int] = defaultdict(int)

    def took(self, name: str, move: Move, seconds: float, kind: str = "") -> Timing:
        """It was measured."""
        place = self._count[name, move, kind]
        self._count[name, move, kind] += 1
        self._measured[name, move].setdefault(kind, deque(maxlen=KEPT)).append(seconds)
        return Timing(name, move, kind, seconds, place % KEPT)

    def seconds(self, name: str, move: Move, kind: str = "", quantile: float = 0.5) -> float:
        """How long it will take: by this class of GPU, else by any, else as configured."""
        measured = self._measured.get((name, move))
        if measured:
            times = measured.get(kind) or [seconds for times in measured.values() for seconds in times]
            return _quantile(times, quantile)
        if move in _INSTEAD:
            return self.seconds(name, _INSTEAD[move], kind, quantile)
        return self._configured[name, move]


def _quantile(times: "deque[float] | list[float]", share: float) -> float:
    """Between the two nearest, as far as `share` lies between them."""
    ordered = sorted(times)
    at = share * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))
