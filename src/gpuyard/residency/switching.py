"""Switching: how long it takes to boot, wake and unload a model, and to start and stop
a script worker.

Configured times hold until there are measurements for a name, a move and a class of
GPU. Then quantiles of the newest measurements are used.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

KEPT = 20
"""The number of newest measurements that count."""


class Switch(StrEnum):
    """What is measured.

    A `reboot` is on a node where the model was loaded before: its weights may still be
    in memory there.
    """

    BOOT = "boot"
    REBOOT = "reboot"
    WAKE = "wake"
    UNLOAD = "unload"
    EXIT = "exit"


# The move whose time is used if a move has no measurements.
_INSTEAD = {Switch.REBOOT: Switch.BOOT}


@dataclass(frozen=True, slots=True)
class Timing:
    """One measurement: the seconds of a move on a class of GPU (empty if unknown).

    `slot`: its place among the newest `KEPT` measurements; a newer one replaces it.
    """

    name: str
    move: Switch
    gpu_class: str
    seconds: float
    slot: int


class SwitchTimes:
    """The seconds of each move of each model or script.

    Raises KeyError for a move that is neither configured nor measured.
    """

    def __init__(self, configured: Mapping[tuple[str, Switch], float]) -> None:
        self._configured = dict(configured)
        self._measured: dict[tuple[str, Switch], dict[str, deque[float]]] = defaultdict(
            dict
        )
        self._count: dict[tuple[str, Switch, str], int] = defaultdict(int)

    def note(
        self, name: str, move: Switch, seconds: float, gpu_class: str = ""
    ) -> Timing:
        """Add a measurement."""
        number = self._count[name, move, gpu_class]
        self._count[name, move, gpu_class] += 1
        by_class = self._measured[name, move]
        by_class.setdefault(gpu_class, deque(maxlen=KEPT)).append(seconds)
        return Timing(name, move, gpu_class, seconds, number % KEPT)

    def seconds(
        self, name: str, move: Switch, gpu_class: str = "", quantile: float = 0.5
    ) -> float:
        """How long the move takes: as measured on this class of GPU, else on any class,
        else as configured.
        """
        by_class = self._measured.get((name, move))
        if by_class:
            times = by_class.get(gpu_class) or chain.from_iterable(by_class.values())
            return _quantile(times, quantile)
        if move in _INSTEAD:
            return self.seconds(name, _INSTEAD[move], gpu_class, quantile)
        return self._configured[name, move]


def _quantile(times: Iterable[float], share: float) -> float:
    """The quantile, interpolated between the two nearest values."""
    ordered = sorted(times)
    at = share * (len(ordered) - 1)
    low = ordered[math.floor(at)]
    high = ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))
