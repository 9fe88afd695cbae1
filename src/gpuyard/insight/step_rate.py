"""The speed of a training in steps per second, measured from when its steps were
seen.
"""

from math import exp

SPAN_S = 60.0  # a step this long ago weighs 1/e


class StepRate:
    """Steps per second, exponentially smoothed over time; only steps forward count."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._step: int | None = None
        self._at = 0.0

    def see(self, step: int, at: float) -> None:
        """Note that `step` was reached at `at` (UTC seconds).

        Steps of one moment are counted with those of the next.
        """
        if self._step is None or step < self._step or at < self._at:
            self._step = step
            self._at = at
        elif step > self._step and at > self._at:
            passed = at - self._at
            rate = (step - self._step) / passed
            weight = 1 - exp(-passed / SPAN_S)
            if self.rate is None:
                self.rate = rate
            else:
                self.rate += weight * (rate - self.rate)
            self._step = step
            self._at = at
