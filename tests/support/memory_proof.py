"""The digest of the memory proof, computed by NumPy without a GPU.

`solver/probe_gpu.py` explains the proof. This is a second, independent version of it,
so that the tests can compare the two.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

WORDS = 32768
LAYERS = 16
SWEEPS = 8
LARGEST_GB = 1 / 64
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_HALF = np.uint64(31)

Words = NDArray[np.uint64]


def digest(nonce_hex: str, gigabytes: float) -> str:
    """What `probe_gpu.vram` answers.

    ValueError above LARGEST_GB, which tests need not, and for a bad nonce.
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
        sums = (memory * weights).sum(axis=1, dtype=np.uint64)
        key = hashlib.sha256(key + sums.astype("<u8").tobytes()).digest()
    return key.hex()


def _filled(nonce: bytes, rows: int) -> Words:
    places = np.arange(rows * WORDS, dtype=np.uint64).reshape(rows, WORDS)
    memory = _mixed(places * _STEP + _word(nonce, b"fill"))
    for layer in range(LAYERS):
        # The other side's words have a sign.
        keys = _stream(_word(nonce, b"layer %d" % layer), rows) ^ np.uint64(1 << 63)
        order = np.argsort(keys, kind="stable")
        shift = 1 << layer % (WORDS.bit_length() - 1)
        for one, other in zip(order[: rows // 2], order[rows // 2 :], strict=True):
            memory[one] = _together(memory[one], memory[other], shift)
            memory[other] = _together(memory[other], memory[one], shift)
    return memory


def _together(row: Words, other: Words, shift: int) -> Words:
    return _mixed(row + np.roll(other, shift))


def _mixed(words: Words) -> Words:
    """Products keep their last 64 bits."""
    return (words ^ words >> _HALF) * _FACTOR


def _stream(start: np.uint64, count: int) -> Words:
    return _mixed(_mixed(np.arange(count, dtype=np.uint64) * _STEP + start))


def _word(key: bytes, use: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(key + use).digest()[:8], "little"))
