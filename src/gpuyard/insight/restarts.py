"""Counts steps on over the epochs where a program begins to count anew in each."""

from collections.abc import Mapping
from dataclasses import replace

from gpuyard.insight.bars import is_held_out
from gpuyard.insight.reading import Reading


class Restarts:
    """The steps of lines that do not say how long an epoch is, or which it is.

    An epoch is taken to be as long as its `total`, or else as its last step that was
    seen. A step that goes back within an epoch stays as it is.
    """

    def __init__(self) -> None:
        self._epoch: float | None = None
        self._step = 0
        self._total: int | None = None
        self._before = 0  # steps of the epochs before this one

    def count_on(self, reading: Reading, epoch: float | None) -> Reading:
        """The reading, counted over all epochs; `epoch` is the one that runs.

        A reading that only evaluates does not take the position back.
        """
        step = reading.step
        if step is None or epoch is None:
            return reading
        goes_back = step <= self._step and self._epoch is not None
        if goes_back and epoch == self._epoch and _only_evaluates(reading.metrics):
            return replace(reading, step=None, total=None)
        if goes_back and epoch > (self._epoch or 0):
            first = 0 if step else 1  # a program that counts from 0
            self._before += self._total or self._step + first
        self._epoch = epoch
        self._step = step
        self._total = reading.total
        if not self._before:
            return reading
        return replace(reading, step=self._before + step, total=None, eta_s=None)


def _only_evaluates(metrics: Mapping[str, float]) -> bool:
    return bool(metrics) and all(map(is_held_out, metrics))
