"""What a GPU can do, shown by doing it: memory that is there all at once, and how fast it computes and reads.

Runs where the executor's PyTorch is: Python 3.9 or newer, the standard library, and torch imported late. Without a GPU
it works on the processor, small. gpuyard's `verification/vram.py` computes the same digest in plain Python.

The memory proof. Memory is seen as rows of words of 64 bits and filled from the nonce. Then, layer after layer, all
rows are paired at random and each of a pair is mixed with the other, shifted: after the last layer a word depends on
tens of thousands of rows, in states that have long been overwritten. So what is not held cannot be computed again one
by one: it takes the whole fill, for which that memory is missing. Reading back is cheap beside it and happens several
times, each with weights that depend on every row of the time before: nothing can be summed up and dropped.
"""

from __future__ import annotations

import hashlib
import importlib
import statistics
import struct
import time
from typing import Any

WORDS = 32768  # of 8 bytes: a row is 256 KiB
LAYERS = 16
SWEEPS = 8
# Odd numbers with many bits, so that multiplying is reversible and spreads them; read as signed 64 bits.
STEP = 0x9E3779B97F4A7C15 - (1 << 64)
FACTOR = 0xBF58476D1CE4E5B9 - (1 << 64)
_LOW_33_BITS = (1 << 33) - 1
_ROWS_AT_ONCE = 256  # 64 MiB, of which a handful are needed beside the memory that is proven


def vram(nonce_hex: str, gigabytes: float) -> dict[str, Any]:
    """Fill `gigabytes` × 2³⁰ bytes (rounded down to pairs of rows) under the nonce, and read them back.

    `{"gigabytes": held, "digest": hex, "fill_s": …, "read_s": …, "device": name}`. The digest is the same on every
    device. RuntimeError where there is less memory, ValueError for a nonce that is not hexadecimal.
    """
    nonce = bytes.fromhex(nonce_hex)
    torch, device = _torch()
    rows = max(1, int(gigabytes * 2**30) // (WORDS * 16)) * 2
    started = time.perf_counter()
    memory = torch.empty((rows, WORDS), dtype=torch.int64, device=device)
    _fill(torch, memory, nonce)
    _wait(torch, device)
    filled = time.perf_counter()
    digest = _read(torch, memory, nonce)
    ended = time.perf_counter()
    return {
        "gigabytes": rows * WORDS * 8 / 2**30, "digest": digest, "device": _name(torch, device),
        "fill_s": filled - started, "read_s": ended - filled,
    }  # fmt: skip


def speed(nonce_hex: str, rounds: int = 5) -> dict[str, Any]:
    """The medians of a few rounds: `{"tflops": of matrix products, "bandwidth_gbs": of copies, "device": name}`.

    Products are in half precision on a GPU, in single precision on a processor. `bandwidth_gbs` counts 10⁹ bytes read
    and written per second. The nonce makes the numbers, because a GPU multiplies zeros faster.
    """
    torch, device = _torch()
    on_gpu = device != "cpu"
    size, times, copied = (8192, 20, 2**30) if on_gpu else (256, 2, 2**22)
    source = torch.Generator(device=device).manual_seed(_word(bytes.fromhex(nonce_hex), b"speed") >> 1)
    kind = torch.float16 if on_gpu else torch.float32
    one, other = (torch.randn((size, size), generator=source, device=device).to(kind) for _ in range(2))
    product = torch.empty_like(one)
    here = torch.randint(-128, 127, (copied,), generator=source, device=device, dtype=torch.int8)
    there = torch.empty_like(here)
    multiplied = [_timed(torch, device, times, lambda: torch.mm(one, other, out=product)) for _ in range(rounds + 1)]
    moved = [_timed(torch, device, times, lambda: there.copy_(here)) for _ in range(rounds + 1)]
    # The first round of each starts libraries and clocks.
    return {
        "tflops": 2 * size**3 / statistics.median(multiplied[1:]) / 1e12,
        "bandwidth_gbs": 2 * copied / statistics.median(moved[1:]) / 1e9,
        "device": _name(torch, device),
    }


def _fill(torch: Any, memory: Any, nonce: bytes) -> None:
    rows = memory.shape[0]
    base = _word(nonce, b"fill")
    for first in range(0, rows, _ROWS_AT_ONCE):
        some = memory[first : first + _ROWS_AT_ONCE].view(-1)
        torch.arange(first * WORDS, first * WORDS + some.numel(), out=some)
        _mix(some.mul_(STEP).add_(base))
    for layer in range(LAYERS):
        order = torch.argsort(_stream(torch, _word(nonce, b"layer %d" % layer), rows, memory.device))
        shift = 1 << layer % (WORDS.bit_length() - 1)
        for first in range(0, rows // 2, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE, rows // 2)
            one, other = order[first:last], order[rows // 2 + first : rows // 2 + last]
            ones, others = memory[one], memory[other]
            _mix(ones.add_(torch.roll(others, shift, 1)))
            _mix(others.add_(torch.roll(ones, shift, 1)))
            memory[one], memory[other] = ones, others


def _read(torch: Any, memory: Any, nonce: bytes) -> str:
    key = hashlib.sha256(nonce + b"read").digest()
    for _ in range(SWEEPS):
        weights = _stream(torch, _word(key, b"weights"), WORDS, memory.device)
        sums = [(some * weights).sum(1) for some in memory.split(_ROWS_AT_ONCE)]
        words = torch.cat(sums).tolist()
        key = hashlib.sha256(key + struct.pack(f"<{len(words)}q", *words)).digest()
    return key.hex()


def _stream(torch: Any, start: int, count: int, device: Any) -> Any:
    """As many words as asked for, no two alike: multiplying by odd numbers and mixing are reversible."""
    return _mix(_mix(torch.arange(count, dtype=torch.int64, device=device).mul_(STEP).add_(start)))


def _mix(words: Any) -> Any:
    """In place. The shift is one of unsigned words, hence the mask."""
    return words.bitwise_xor_((words >> 31).bitwise_and_(_LOW_33_BITS)).mul_(FACTOR)


def _word(key: bytes, use: bytes) -> int:
    """A signed word that is another for each use."""
    return int.from_bytes(hashlib.sha256(key + use).digest()[:8], "little", signed=True)


def _timed(torch: Any, device: str, times: int, work: Any) -> float:
    """Seconds of one of `times` runs."""
    _wait(torch, device)
    started = time.perf_counter()
    for _ in range(times):
        work()
    _wait(torch, device)
    return (time.perf_counter() - started) / times


def _torch() -> tuple[Any, str]:
    torch = importlib.import_module("torch")
    return torch, "cuda" if torch.cuda.is_available() else "cpu"


def _wait(torch: Any, device: str) -> None:
    """A GPU is asked and works on; its clock is ours only after it is done."""
    if device != "cpu":
        torch.cuda.synchronize()


def _name(torch: Any, device: str) -> str:
    return str(torch.cuda.get_device_name()) if device != "cpu" else "cpu"
