"""Proofs of a device's memory and speed, by using them.

This runs with the executor's own packages, on Python 3.9 or newer: on a GPU with its
PyTorch; without one on the processor, in C where there is a compiler, else in NumPy.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from . import memory, memory_c, product

# What was compiled, by device; None where nothing can be.
_compiled: dict[str, Any] = {}
_SMALL_ROWS = 4
_SMALL_SIZE = 64
_NONCE = "00"
# No class asks for so little: a processor in place of a GPU would take minutes and the
# memory of others to fail.
_MOST_HERE_GB = 2.0
_LARGEST_HERE = 1024


def prepare() -> None:
    """Do what takes long and needs no nonce: imports, the start of CUDA, compiling."""
    torch, device = _device()
    _helper(torch, device)
    _product(torch, device, _NONCE, _SMALL_SIZE).step()


def vram(
    nonce_hex: str, gigabytes: float, passes: int = memory.FEWEST_PASSES
) -> dict[str, Any]:
    """Prove `gigabytes` × 2³⁰ bytes, rounded down to pairs of rows, by so many passes.

    Returns `{"gigabytes": held, "digest": hex, "device": name, "took_s": seconds}`. The
    digest is the same on every device. Raises RuntimeError or MemoryError when there is
    less memory, and ValueError for a nonce that is not hexadecimal.
    """
    began = time.perf_counter()
    torch, device = _device()
    if device == "cpu" and not gigabytes <= _MOST_HERE_GB:
        raise RuntimeError(f"no GPU here, and {gigabytes:g} GiB is a GPU's memory")
    rows = memory.rows_of(gigabytes)
    proven = _memory(torch, device, rows)
    try:
        found = memory.digest(nonce_hex, proven, passes)
    finally:
        proven.close()
        _free(torch)
    held = rows * memory.ROW_BYTES / 2**30
    took_s = time.perf_counter() - began
    name = _name(torch, device)
    return {"gigabytes": held, "digest": found, "device": name, "took_s": took_s}


def speed(nonce_hex: str, size: int, steps: int) -> dict[str, Any]:
    """Multiply matrices with `size` columns (a multiple of 8) `steps` times.

    Returns `{"digest": hex, "device": name, "took_s": seconds}`. The digest is the same
    on every device.
    """
    began = time.perf_counter()
    torch, device = _device()
    if device == "cpu" and size > _LARGEST_HERE:
        raise RuntimeError("no GPU here, and these are a GPU's products")
    chain = _product(torch, device, nonce_hex, size)
    found = product.digest(nonce_hex, steps, chain)
    took_s = time.perf_counter() - began
    return {"digest": found, "device": _name(torch, device), "took_s": took_s}


def _memory(torch: Any, device: str, rows: int) -> Any:
    helper = _helper(torch, device)
    if device != "cpu":
        from .memory_torch import TorchMemory

        return TorchMemory(torch, device, helper, rows)
    if helper:
        return memory_c.CompiledMemory(helper, rows)
    from .memory_numpy import NumpyMemory

    return NumpyMemory(rows)


def _product(torch: Any, device: str, nonce_hex: str, size: int) -> Any:
    if device == "cpu":
        return product.NumpyProduct(nonce_hex, size)
    return product.TorchProduct(torch, device, _helper(torch, device), nonce_hex, size)


def _helper(torch: Any, device: str) -> Any:
    """Triton's kernels for a GPU, the passes in C for a processor; None where they
    cannot be compiled.
    """
    if device not in _compiled:
        makes = (
            memory_c.compiled if device == "cpu" else lambda: _kernels(torch, device)
        )
        _compiled[device] = makes()
    return _compiled[device]


def _kernels(torch: Any, device: str) -> Any:
    """Triton's kernels, compiled, if they give what PyTorch alone gives.

    Triton may be missing, find no C compiler, or not know this GPU.
    """
    from .memory_torch import TorchMemory

    try:
        kernels = importlib.import_module(".memory_kernels", __package__)
        digests = {
            memory.digest(_NONCE, TorchMemory(torch, device, some, _SMALL_ROWS))
            for some in (kernels, None)
        }
        if len(digests) != 1:
            raise RuntimeError("its kernels compute something else")
        return kernels
    except Exception as error:  # noqa: BLE001  # compilers can raise anything
        why = f"{type(error).__name__}: {error}"[:500]
        sys.stderr.write(f"slow without Triton: {why}\n")
        return None


def _device() -> tuple[Any, str]:
    """PyTorch and the device to use; no PyTorch on the processor."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None, "cpu"
    return (torch, "cuda") if torch.cuda.is_available() else (None, "cpu")


def _free(torch: Any) -> None:
    """Let the next proof have the memory of this one."""
    if torch is not None:
        torch.cuda.empty_cache()


def _name(torch: Any, device: str) -> str:
    return str(torch.cuda.get_device_name()) if device != "cpu" else "cpu"
