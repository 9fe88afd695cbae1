"""The digest of the memory proof, computed in plain Python without a GPU.

`solver/probe_gpu.py` explains the proof. This is a second, independent version of it,
so that the tests can compare the two. It takes about a second for a megabyte.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence

WORDS = 32768
LAYERS = 16
SWEEPS = 8
LARGEST_GB = 1 / 64
_STEP = 0x9E3779B97F4A7C15
_FACTOR = 0xBF58476D1CE4E5B9
_ALL = (1 << 64) - 1


def digest(nonce_hex: str, gigabytes: float) -> str:
    """What `probe_gpu.vram` answers.

    ValueError above LARGEST_GB, where it would take minutes, and for a bad nonce.
    """
    if not gigabytes <= LARGEST_GB:
        raise ValueError(
            f"{gigabytes:g} GB are too much without a GPU; ask for at most"
            f" {LARGEST_GB:g}"
        )
    nonce = bytes.fromhex(nonce_hex)
    rows = max(1, int(gigabytes * 2**30) // (WORDS * 16)) * 2
    memory = _filled(nonce, rows)
    key = hashlib.sha256(nonce + b"read").digest()
    for _ in range(SWEEPS):
        weights = _stream(_word(key, b"weights"), WORDS)
        sums = [
            sum(word * weight for word, weight in zip(row, weights, strict=True)) & _ALL
            for row in memory
        ]
        key = hashlib.sha256(key + struct.pack(f"<{rows}Q", *sums)).digest()
    return key.hex()


def _filled(nonce: bytes, rows: int) -> list[list[int]]:
    base = _word(nonce, b"fill")
    memory = [
        _mixed(
            (place * _STEP + base) & _ALL
            for place in range(row * WORDS, (row + 1) * WORDS)
        )
        for row in range(rows)
    ]
    for layer in range(LAYERS):
        # The other side's words have a sign.
        keys = [
            key ^ 1 << 63 for key in _stream(_word(nonce, b"layer %d" % layer), rows)
        ]
        order = sorted(range(rows), key=keys.__getitem__)
        shift = 1 << layer % (WORDS.bit_length() - 1)
        for one, other in zip(order[: rows // 2], order[rows // 2 :], strict=True):
            memory[one] = _together(memory[one], memory[other], shift)
            memory[other] = _together(memory[other], memory[one], shift)
    return memory


def _together(row: Sequence[int], other: Sequence[int], shift: int) -> list[int]:
    shifted = [*other[-shift:], *other[:-shift]]
    return _mixed(
        (word + beside) & _ALL for word, beside in zip(row, shifted, strict=True)
    )


def _mixed(words: Iterable[int]) -> list[int]:
    return [(word ^ word >> 31) * _FACTOR & _ALL for word in words]


def _stream(start: int, count: int) -> list[int]:
    return _mixed(_mixed((place * _STEP + start) & _ALL for place in range(count)))


def _word(key: bytes, use: bytes) -> int:
    return int.from_bytes(hashlib.sha256(key + use).digest()[:8], "little")
