"""A memory of the processor, with passes in C: as fast as one core can be."""

from __future__ import annotations

import ctypes
import pkgutil
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from .memory import ROW_BYTES, WORDS, row_order

_COMPILERS = ("cc", "gcc", "clang")
# The second try is for a compiler that does not know this processor.
_OPTIONS = (["-O3", "-march=native"], ["-O3"])
_COMPILE_S = 60.0


def compiled() -> ctypes.CDLL | None:
    """The compiled passes; None where no compiler can make them."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        return None
    # Not by its path: the solver may be one file.
    source = pkgutil.get_data(__package__ or "", "passes.c")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "passes.so"
        file = target.with_suffix(".c")
        file.write_bytes(source or b"")
        for options in _OPTIONS:
            command = [compiler, *options, "-shared", "-fPIC"]
            command += ["-o", str(target), str(file)]
            try:
                done = subprocess.run(
                    command, capture_output=True, timeout=_COMPILE_S, check=False
                )
                if done.returncode == 0:
                    # It stays loaded after its file is gone.
                    return _declared(ctypes.CDLL(str(target)))
            except (OSError, subprocess.SubprocessError):
                continue
    return None


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer = ctypes.c_void_p
    size = ctypes.c_size_t
    library.take.argtypes = [size]
    library.take.restype = pointer
    library.give_back.argtypes = [pointer, size]
    library.fill.argtypes = [pointer, size, ctypes.c_uint64]
    library.mix_rows.argtypes = [pointer, pointer, size, size, size, pointer]
    for function in (library.give_back, library.fill, library.mix_rows):
        function.restype = None
    return library


class CompiledMemory:
    """See `memory.ProvenMemory`; MemoryError when there is too little."""

    def __init__(self, library: ctypes.CDLL, rows: int) -> None:
        self._library = library
        self._rows = rows
        self._words: Any = library.take(rows * ROW_BYTES)
        if not self._words:
            raise MemoryError(f"{rows * ROW_BYTES} bytes cannot be had")

    def fill(self, base: int) -> None:
        """See `memory.ProvenMemory.fill`."""
        self._library.fill(self._words, self._rows * WORDS, base)

    def mix(self, start: int, shift: int) -> bytes:
        """See `memory.ProvenMemory.mix`."""
        rows = self._rows
        words = ctypes.c_uint64 * rows
        order = words(*row_order(start, rows))
        sums = words()
        self._library.mix_rows(self._words, order, rows // 2, WORDS, shift, sums)
        return bytes(sums)

    def close(self) -> None:
        """Give the memory back."""
        self._library.give_back(self._words, self._rows * ROW_BYTES)
