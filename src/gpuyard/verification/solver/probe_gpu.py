"""Proofs of a GPU's memory and speed, by using them.

This runs with the executor's own PyTorch, on Python 3.9 or newer; torch is imported
late. Without a GPU it runs on the processor, with small sizes. The tests have a second
version of the memory proof in plain Python.

The memory proof: memory consists of rows of 64-bit words and is filled from the nonce.
Then, layer by layer, all rows are paired at random, and each row is mixed with its
partner, shifted. After the last layer a word depends on tens of thousands of rows, in
states that were overwritten long ago. So a missing row cannot be computed by itself:
that takes the whole fill, which needs all of the memory. Reading back is cheap beside
that. It is done several times, each time with weights that depend on all rows of the
time before, so that sums cannot replace the rows.
"""

from __future__ import annotations

import hashlib
import importlib
import statistics
import struct
import sys
import time
from typing import Any

WORDS = 32768  # of 8 bytes: a row is 256 KiB
LAYERS = 16
SWEEPS = 8
# Odd numbers, so that multiplying is reversible, with many bits; as signed 64 bits.
STEP = 0x9E3779B97F4A7C15 - (1 << 64)
FACTOR = 0xBF58476D1CE4E5B9 - (1 << 64)
_LOW_33_BITS = (1 << 33) - 1
# Without Triton: 64 MiB; a few such blocks are needed beside the proven memory.
_ROWS_AT_ONCE = 256
# Triton's kernels, by the device for which they were compiled.
_compiled: dict[str, Any] = {}


def prepare() -> None:
    """Do what takes long and needs no nonce: import PyTorch, start CUDA, and let Triton
    compile.
    """
    torch, device = _torch()
    _kernels(torch, device)
    _wait(torch, device)


def vram(nonce_hex: str, gigabytes: float) -> dict[str, Any]:
    """Fill `gigabytes` × 2³⁰ bytes (rounded down to pairs of rows), and read them back.

    Returns `{"gigabytes": held, "digest": hex, "fill_s": …, "read_s": …, "device":
    name}`. The digest is the same on every device. Raises RuntimeError when there is
    less memory, and ValueError for a nonce that is not hexadecimal.
    """
    nonce = bytes.fromhex(nonce_hex)
    torch, device = _torch()
    rows = max(1, int(gigabytes * 2**30) // (WORDS * 16)) * 2
    kernels = _kernels(torch, device)
    started = time.perf_counter()
    memory = torch.empty((rows, WORDS), dtype=torch.int64, device=device)
    _fill(torch, memory, nonce, kernels)
    _wait(torch, device)
    filled = time.perf_counter()
    digest = _read(torch, memory, nonce, kernels)
    ended = time.perf_counter()
    return {
        "gigabytes": rows * WORDS * 8 / 2**30,
        "digest": digest,
        "device": _name(torch, device),
        "fill_s": filled - started,
        "read_s": ended - filled,
    }


def speed(nonce_hex: str, rounds: int = 5) -> dict[str, Any]:
    """Measure matrix products and copies; returns the medians of a few rounds.

    `{"tflops": …, "bandwidth_gbs": …, "device": name}`. Products are in half precision
    on a GPU, in single precision on a processor. `bandwidth_gbs` counts 10⁹ bytes read
    and written per second. The numbers come from the nonce, because a GPU multiplies
    zeros faster.
    """
    torch, device = _torch()
    on_gpu = device != "cpu"
    size, times, copied = (8192, 20, 2**30) if on_gpu else (256, 2, 2**22)
    source = torch.Generator(device=device).manual_seed(
        _word(bytes.fromhex(nonce_hex), b"speed") >> 1
    )
    kind = torch.float16 if on_gpu else torch.float32
    one, other = (
        torch.randn((size, size), generator=source, device=device).to(kind)
        for _ in range(2)
    )
    product = torch.empty_like(one)
    here = torch.randint(
        -128, 127, (copied,), generator=source, device=device, dtype=torch.int8
    )
    there = torch.empty_like(here)
    multiplied = [
        _timed(torch, device, times, lambda: torch.mm(one, other, out=product))
        for _ in range(rounds + 1)
    ]
    moved = [
        _timed(torch, device, times, lambda: there.copy_(here))
        for _ in range(rounds + 1)
    ]
    # The first round only warms up libraries and clocks.
    return {
        "tflops": 2 * size**3 / statistics.median(multiplied[1:]) / 1e12,
        "bandwidth_gbs": 2 * copied / statistics.median(moved[1:]) / 1e9,
        "device": _name(torch, device),
    }


def _kernels(torch: Any, device: str) -> Any:
    """The same steps as Triton kernels, many times as fast; None where Triton cannot
    run: it is missing, finds no C compiler, or does not know this GPU.
    """
    if device != "cpu" and device not in _compiled:
        try:
            _compiled[device] = _compile(torch, device)
        except Exception as error:  # noqa: BLE001  # compilers can raise anything
            why = f"{type(error).__name__}: {error}"[:500]
            sys.stderr.write(f"solver: a slow memory proof, without Triton: {why}\n")
    return _compiled.get(device)


def _compile(torch: Any, device: str) -> Any:
    """Let Triton compile the kernels, and compare what they do."""
    kernels = importlib.import_module(".probe_kernels", __package__)
    memory = torch.empty((4, WORDS), dtype=torch.int64, device=device)
    digests: set[str] = set()
    for some in (kernels, None):
        _fill(torch, memory, b"", some)
        digests.add(_read(torch, memory, b"", some))
    if len(digests) != 1:
        raise RuntimeError("its kernels compute something else")
    return kernels


def _fill(torch: Any, memory: Any, nonce: bytes, kernels: Any = None) -> None:
    rows = memory.shape[0]
    base = _word(nonce, b"fill")
    if kernels:
        kernels.fill(memory, base, STEP, FACTOR)
    else:
        _fill_in_passes(torch, memory, base)
    for layer in range(LAYERS):
        order = torch.argsort(
            _stream(torch, _word(nonce, b"layer %d" % layer), rows, memory.device)
        )
        ones = order[: rows // 2]
        others = order[rows // 2 :]
        shift = 1 << layer % (WORDS.bit_length() - 1)
        if kernels:
            kernels.pair(memory, ones, others, shift, FACTOR)
        else:
            _pair_in_passes(torch, memory, ones, others, shift)


def _fill_in_passes(torch: Any, memory: Any, base: int) -> None:
    for first in range(0, memory.shape[0], _ROWS_AT_ONCE):
        some = memory[first : first + _ROWS_AT_ONCE].view(-1)
        torch.arange(first * WORDS, first * WORDS + some.numel(), out=some)
        _mix(some.mul_(STEP).add_(base))


def _pair_in_passes(
    torch: Any, memory: Any, ones: Any, others: Any, shift: int
) -> None:
    for first in range(0, len(ones), _ROWS_AT_ONCE):
        one = ones[first : first + _ROWS_AT_ONCE]
        other = others[first : first + _ROWS_AT_ONCE]
        rows = memory[one]
        partners = memory[other]
        _mix(rows.add_(torch.roll(partners, shift, 1)))
        _mix(partners.add_(torch.roll(rows, shift, 1)))
        memory[one] = rows
        memory[other] = partners


def _read(torch: Any, memory: Any, nonce: bytes, kernels: Any = None) -> str:
    key = hashlib.sha256(nonce + b"read").digest()
    for _ in range(SWEEPS):
        weights = _stream(torch, _word(key, b"weights"), WORDS, memory.device)
        if kernels:
            sums = kernels.sums(memory, weights)
        else:
            some = [(rows * weights).sum(1) for rows in memory.split(_ROWS_AT_ONCE)]
            sums = torch.cat(some)
        words = sums.tolist()
        key = hashlib.sha256(key + struct.pack(f"<{len(words)}q", *words)).digest()
    return key.hex()


def _stream(torch: Any, start: int, count: int, device: Any) -> Any:
    """Different words, as many as asked for, since each step is reversible."""
    return _mix(
        _mix(
            torch.arange(count, dtype=torch.int64, device=device).mul_(STEP).add_(start)
        )
    )


def _mix(words: Any) -> Any:
    """Mix in place. The mask makes the signed shift an unsigned one."""
    return words.bitwise_xor_((words >> 31).bitwise_and_(_LOW_33_BITS)).mul_(FACTOR)


def _word(key: bytes, use: bytes) -> int:
    """A signed word, different for each use."""
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
    """Wait until the GPU is done, since its work runs in the background."""
    if device != "cpu":
        torch.cuda.synchronize()


def _name(torch: Any, device: str) -> str:
    return str(torch.cuda.get_device_name()) if device != "cpu" else "cpu"
