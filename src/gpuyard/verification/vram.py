"""The digest of the memory proof, computed without a GPU.

`solver/probe_gpu.py` says how it works and why; this is the same in plain Python, written a second time so that one
checks the other. It takes about a second for a megabyte, so it is for practice and tests. For a real card the digest to
compare with comes from a trusted executor that was given the same nonce, or from `probe_gpu` on any machine with that
much memory: integers are the same everywhere.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass

WORDS = 32768
LAYERS = 16
SWEEPS = 8
LARGEST_GB = 1 / 64
_STEP = 0x9E3779B97F4A7C15
_FACTOR = 0xBF58476D1CE4E5B9
_ALL = (1 << 64) - 1


def gigabytes_to_ask(gpu_class: GPUClass) -> float:
    """How much a proof asks for (GiB): near the class's size, and more than the next smaller card of its kind has.

    Drivers, error correction and torch itself take up to an eighth of a card that is marked with 16 GB.
    """
    return round(GPU_CLASSES[gpu_class].memory_gb * 0.85, 2)


def digest(nonce_hex: str, gigabytes: float) -> str:
    """What `probe_gpu.vram` answers. ValueError above LARGEST_GB, where it would take minutes, and for a bad nonce."""
    if not gigabytes <= LARGEST_GB:
        raise ValueError(f"{gigabytes:g} GB are too much without a GPU; ask for at most {LARGEST_GB:g}")
    nonce = bytes.fromhex(nonce_hex)
    rows = max(1, int(gigabytes * 2**30) // (WORDS * 16)) * 2
    memory = _filled(nonce, rows)
    key = hashlib.sha256(nonce + b"read").digest()
    for _ in range(SWEEPS):
        weights = _stream(_word(key, b"weights"), WORDS)
        sums = [sum(word * weight for word, weight in zip(row, weights, strict=True)) & _ALL for row in memory]
        key = hashlib.sha256(key + struct.pack(f"<{rows}Q", *sums)).digest()
    return key.hex()


def _filled(nonce: bytes, rows: int) -> list[list[int]]:
    base = _word(nonce, b"fill")
    memory = [_mixed((place * _STEP + base) & _ALL for place in range(row * WORDS, (row + 1) * WORDS))
              for row in range(rows)]  # fmt: skip
    for layer in range(LAYERS):
        # The other side's words have a sign.
        keys = [key ^ 1 << 63 for key in _stream(_word(nonce, b"layer %d" % layer), rows)]
        order = sorted(range(rows), key=keys.__getitem__)
        shift = 1 << layer % (WORDS.bit_length() - 1)
        for one, other in zip(order[: rows // 2], order[rows // 2 :], strict=True):
            memory[one] = _together(memory[one], memory[other], shift)
            memory[other] = _together(memory[other], memory[one], shift)
    return memory


def _together(row: Sequence[int], other: Sequence[int], shift: int) -> list[int]:
    shifted = [*other[-shift:], *other[:-shift]]
    return _mixed((word + beside) & _ALL for word, beside in zip(row, shifted, strict=True))


def _mixed(words: Iterable[int]) -> list[int]:
    return [(word ^ word >> 31) * _FACTOR & _ALL for word in words]


def _stream(start: int, count: int) -> list[int]:
    return _mixed(_mixed((place * _STEP + start) & _ALL for place in range(count)))


def _word(key: bytes, use: bytes) -> int:
    return int.from_bytes(hashlib.sha256(key + use).digest()[:8], "little")
