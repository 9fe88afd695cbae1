"""Matrix products that prove a speed: a chain of them, in whole numbers.

Each row of X is multiplied by B, and its products become the next row: 7 bits of each.
So every step takes a whole product, and the end depends on every one. Numbers of 7 bits
keep all sums exact, also in single precision over parts of 4096; so every device gives
the same digest, and numbers of fewer bits would not do.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

from .memory import FACTOR, STEP, signed, word

# The longest sum of products of 7 bits that single precision holds exactly.
EXACT = 4096
_LOW_33_BITS = (1 << 33) - 1
_ROW_PART = 4
_FEWEST_ROWS = 32


class Product(Protocol):
    """A chain of products."""

    def step(self) -> None:
        """Multiply once."""
        ...

    def result(self) -> bytes:
        """The rows of X as they are now, a byte for each number."""
        ...


def digest(nonce_hex: str, steps: int, product: Product) -> str:
    """Multiply `steps` times; returns the digest of what comes out, in hexadecimal."""
    for _ in range(steps):
        product.step()
    return hashlib.sha256(bytes.fromhex(nonce_hex) + product.result()).hexdigest()


def rows_of(size: int) -> int:
    """How many rows X has, if B has `size` rows and columns."""
    return max(_FEWEST_ROWS, size // _ROW_PART)


def starts(nonce_hex: str) -> tuple[int, int]:
    """From which words X and B are made."""
    key = hashlib.sha256(bytes.fromhex(nonce_hex) + b"product").digest()
    return word(key, b"rows"), word(key, b"matrix")


class NumpyProduct:
    """See `Product`; on the processor. `size` is a multiple of 8."""

    def __init__(self, nonce_hex: str, size: int) -> None:
        import numpy as np  # pyright: ignore

        self._numpy: Any = np
        rows, matrix = starts(nonce_hex)
        self._rows: Any = self._numbers(rows, rows_of(size), size)
        self._matrix: Any = self._numbers(matrix, size, size).astype(np.float64)

    def step(self) -> None:
        """See `Product.step`."""
        np = self._numpy
        sums = (self._rows.astype(np.float64) @ self._matrix).astype(np.int32)
        self._rows = (((sums ^ (sums >> 9)) & 127) - 64).astype(np.int8)

    def result(self) -> bytes:
        """See `Product.result`."""
        return self._rows.tobytes()

    def _numbers(self, start: int, rows: int, columns: int) -> Any:
        np = self._numpy
        words = np.arange(rows * columns // 8, dtype=np.uint64) * np.uint64(STEP)
        words += np.uint64(start)
        for _ in range(2):
            words = (words ^ words >> np.uint64(31)) * np.uint64(FACTOR)
        return words.astype("<u8").view(np.int8).reshape(rows, columns) >> 1


class TorchProduct:
    """See `Product`; on a GPU. `kernels`: `memory_kernels`, or None without Triton."""

    def __init__(
        self, torch: Any, device: str, kernels: Any, nonce_hex: str, size: int
    ) -> None:
        self._torch = torch
        self._device = device
        self._kernels = kernels
        rows, matrix = starts(nonce_hex)
        self._rows = self._numbers(rows, rows_of(size), size)
        self._matrix = self._numbers(matrix, size, size)
        self._whole = self._multiplies_whole_numbers()

    def step(self) -> None:
        """See `Product.step`."""
        sums = self._sums()
        if self._kernels:
            self._kernels.seven_bits(sums, self._rows)
            return
        self._rows.copy_((sums >> 9).bitwise_xor_(sums).bitwise_and_(127).sub_(64))

    def result(self) -> bytes:
        """See `Product.result`."""
        import ctypes

        here = self._rows.cpu()
        return ctypes.string_at(here.data_ptr(), here.numel())

    def _sums(self) -> Any:
        """X times B, as whole numbers of 32 bits."""
        torch = self._torch
        if self._whole:
            return torch._int_mm(self._rows, self._matrix)
        size = self._matrix.shape[0]
        sums = torch.zeros(self._rows.shape, dtype=torch.int32, device=self._device)
        for first in range(0, size, EXACT):
            rows = self._rows[:, first : first + EXACT].float()
            sums += (rows @ self._matrix[first : first + EXACT].float()).int()
        return sums

    def _multiplies_whole_numbers(self) -> bool:
        """Whether this GPU has products of whole numbers; older ones lack them."""
        try:
            self._torch._int_mm(self._rows, self._matrix)
        except (AttributeError, RuntimeError):
            return False
        return True

    def _numbers(self, start: int, rows: int, columns: int) -> Any:
        torch = self._torch
        words = torch.arange(
            rows * columns // 8, dtype=torch.int64, device=self._device
        )
        words.mul_(signed(STEP)).add_(signed(start))
        for _ in range(2):
            high = (words >> 31).bitwise_and_(_LOW_33_BITS)
            words = words.bitwise_xor_(high).mul_(signed(FACTOR))
        return words.view(torch.int8).view(rows, columns) >> 1
