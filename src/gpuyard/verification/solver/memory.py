"""The memory proof: which passes there are, and how they depend on each other.

A memory is rows of 64-bit words, filled from a nonce. Then come passes. In each, all
rows are paired at random; each word of a row is mixed with a word of its partner, and
the partner's with the result. A pass reads and writes each word once, which is all that
the time of a proof is spent on.

The pairs of a pass depend on the sums of all rows after the pass before. So no pass can
begin before the one before it is complete, nobody can do two at once while rows are in
a cache, and nobody can leave rows for later. A word depends on 2ᵏ words after k passes,
in states that were overwritten long ago: a row that is missing takes ever more work to
make again.

Memories differ in what computes them: `memory_kernels` (Triton), `memory_torch`,
`memory_c` and `memory_numpy`. All of them give the same digest.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

WORDS = 32768  # of 8 bytes: a row is 256 KiB
ROW_BYTES = WORDS * 8
# A word then depends on more rows than any card has.
FEWEST_PASSES = 16
# Odd numbers with many bits, so that multiplying is reversible.
STEP = 0x9E3779B97F4A7C15
FACTOR = 0xBF58476D1CE4E5B9
_ALL_BITS = (1 << 64) - 1
# Shifts are multiples of 16 words, which is a line of a GPU's cache.
_LEAST_SHIFT = 16
_SHIFTS = 11


class ProvenMemory(Protocol):
    """A memory of some rows, and what computes with it. Words are unsigned here."""

    def fill(self, base: int) -> None:
        """Each word becomes the mix of its place × STEP + `base`."""
        ...

    def mix(self, start: int, shift: int) -> bytes:
        """Do a pass: rows are paired in the order that follows from `start`.

        Returns the sums of all rows, as 64-bit words with the low byte first.
        """
        ...


def rows_of(gigabytes: float) -> int:
    """How many rows fit into `gigabytes` × 2³⁰ bytes, rounded down to pairs."""
    return max(1, int(gigabytes * 2**30) // (2 * ROW_BYTES)) * 2


def digest(nonce_hex: str, memory: ProvenMemory, passes: int = FEWEST_PASSES) -> str:
    """Prove a memory by so many passes; returns the digest in hexadecimal.

    Raises ValueError for a nonce that is not hexadecimal.
    """
    key = hashlib.sha256(bytes.fromhex(nonce_hex) + b"memory").digest()
    memory.fill(word(key, b"fill"))
    for number in range(passes):
        sums = memory.mix(word(key, b"order"), shift_of(number))
        key = hashlib.sha256(key + sums).digest()
    return key.hex()


def shift_of(number: int) -> int:
    """By how many words partners are shifted in a pass."""
    return _LEAST_SHIFT << number % _SHIFTS


def word(key: bytes, use: bytes) -> int:
    """An unsigned word, different for each use."""
    return int.from_bytes(hashlib.sha256(key + use).digest()[:8], "little")


def signed(number: int) -> int:
    """The same 64 bits, read as a number with a sign."""
    return number - (1 << 64) if number >> 63 else number


def row_order(start: int, rows: int) -> list[int]:
    """All rows in random order: the first half is paired with the second.

    They are sorted by 63 bits, which read the same with a sign and without one.
    """
    keys = [mixed(mixed(row * STEP + start)) >> 1 for row in range(rows)]
    return sorted(range(rows), key=keys.__getitem__)


def mixed(number: int) -> int:
    """One step of mixing a word."""
    number &= _ALL_BITS
    return (number ^ number >> 31) * FACTOR & _ALL_BITS
