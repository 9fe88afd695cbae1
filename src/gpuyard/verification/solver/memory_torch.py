# pyright: basic
"""A memory of a GPU, with passes in PyTorch: by Triton's kernels where they run.

PyTorch alone reads and writes the memory several times for each pass.
"""

from __future__ import annotations

import ctypes
from typing import Any

from .memory import FACTOR, STEP, WORDS, signed

_LOW_33_BITS = (1 << 33) - 1
_LOW_63_BITS = (1 << 63) - 1
# 64 MiB; a few such blocks are needed beside the proven memory.
_ROWS_AT_ONCE = 256


class TorchMemory:
    """See `memory.ProvenMemory`; `kernels` is `memory_kernels`, or None."""

    def __init__(self, torch: Any, device: str, kernels: Any, rows: int) -> None:
        self._torch = torch
        self._device = device
        self._kernels = kernels
        self.words = torch.empty((rows, WORDS), dtype=torch.int64, device=device)

    def fill(self, base: int) -> None:
        """See `memory.ProvenMemory.fill`."""
        if self._kernels:
            self._kernels.fill(self.words, signed(base), signed(STEP), signed(FACTOR))
            return
        for first in range(0, self.words.shape[0], _ROWS_AT_ONCE):
            some = self.words[first : first + _ROWS_AT_ONCE].view(-1)
            self._torch.arange(first * WORDS, first * WORDS + some.numel(), out=some)
            _mix(some.mul_(signed(STEP)).add_(signed(base)))

    def mix(self, start: int, shift: int) -> bytes:
        """See `memory.ProvenMemory.mix`."""
        torch = self._torch
        order = self._order(start)
        sums = torch.empty(len(order), dtype=torch.int64, device=self._device)
        if self._kernels:
            self._kernels.mix(self.words, order, sums, shift, signed(FACTOR))
        else:
            self._mix_in_blocks(order, sums, shift)
        return _bytes_of(sums.cpu())

    def close(self) -> None:
        """Give the memory back."""
        del self.words

    def _order(self, start: int) -> Any:
        rows = self.words.shape[0]
        keys = self._torch.arange(rows, dtype=self._torch.int64, device=self._device)
        _mix(_mix(keys.mul_(signed(STEP)).add_(signed(start))))
        keys = (keys >> 1).bitwise_and_(_LOW_63_BITS)
        return self._torch.argsort(keys, stable=True)

    def _mix_in_blocks(self, order: Any, sums: Any, shift: int) -> None:
        pairs = len(order) // 2
        for first in range(0, pairs, _ROWS_AT_ONCE):
            one = order[first : min(first + _ROWS_AT_ONCE, pairs)]
            other = order[pairs + first : pairs + first + len(one)]
            rows = self.words[one]
            partners = self._torch.roll(self.words[other], -shift, 1)
            _mix(rows.add_(partners))
            _mix(partners.add_(rows))
            self.words[one] = rows
            self.words[other] = self._torch.roll(partners, shift, 1)
            sums[one] = rows.sum(1)
            sums[other] = partners.sum(1)


def _mix(words: Any) -> Any:
    """Mix in place. The mask makes the signed shift an unsigned one."""
    return words.bitwise_xor_((words >> 31).bitwise_and_(_LOW_33_BITS)).mul_(
        signed(FACTOR)
    )


def _bytes_of(words: Any) -> bytes:
    """The bytes of a tensor on the processor; NumPy may be missing there."""
    return ctypes.string_at(words.data_ptr(), words.numel() * words.element_size())
