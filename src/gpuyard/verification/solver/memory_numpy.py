# pyright: basic
"""A memory of the processor, with passes in NumPy, where there is no compiler."""

from __future__ import annotations

import numpy as np

from .memory import FACTOR, STEP, WORDS, row_order

_HALF = np.uint64(31)
_FACTOR = np.uint64(FACTOR)
_STEP = np.uint64(STEP)


class NumpyMemory:
    """See `memory.ProvenMemory`."""

    def __init__(self, rows: int) -> None:
        self._words = np.empty((rows, WORDS), np.uint64)

    def fill(self, base: int) -> None:
        """See `memory.ProvenMemory.fill`."""
        for number, row in enumerate(self._words):
            first = number * WORDS
            places = np.arange(first, first + WORDS, dtype=np.uint64)
            row[:] = _mixed(places * _STEP + np.uint64(base))

    def mix(self, start: int, shift: int) -> bytes:
        """See `memory.ProvenMemory.mix`."""
        rows = len(self._words)
        order = row_order(start, rows)
        for one, other in zip(order[: rows // 2], order[rows // 2 :]):
            partner = np.roll(self._words[other], -shift)
            self._words[one] = _mixed(self._words[one] + partner)
            partner = _mixed(partner + self._words[one])
            self._words[other] = np.roll(partner, shift)
        return self._words.sum(axis=1, dtype=np.uint64).astype("<u8").tobytes()

    def close(self) -> None:
        """It goes with the object."""


def _mixed(words: np.ndarray) -> np.ndarray:
    """Products keep their last 64 bits."""
    return (words ^ words >> _HALF) * _FACTOR
