"""The memory proof on one core, against an attacker's own program in C.

Both run on the same core. The floor is the attacker's: what it is faster, a cheater can
use to hold less memory than its class (`verification/memory_limits.py`).
"""

import os
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import scaled, scratch
from benchmarks.figures import Figure, alternate
from gpuyard.verification.solver import memory, memory_c

GROUP = "proof"
ATTACKER = Path(__file__).parents[1] / "tests/programs/memory_attacker.c"
RATIO = 1.3
_ROWS = 4096


def measure(scale: float) -> Iterator[Figure]:
    """One figure: processor time, since other programs may run beside it."""
    rows = scaled(_ROWS, scale, 64) // 2 * 2
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    with scratch() as folder:
        program = folder / "attacker"
        words = ["gcc", "-O3", "-march=native", str(ATTACKER), "-o", str(program)]
        subprocess.run(words, check=True)
        values, floors = alternate(
            scaled(7, scale, 3),
            lambda: _proof_s(rows),
            lambda: _attack_s(program, rows),
        )
    yield Figure(
        GROUP,
        f"memory proof of {rows * memory.ROW_BYTES / 2**30:g} GiB on one core",
        values,
        "s",
        RATIO,
        floors,
        "an attacker's own program in C",
    )


def _proof_s(rows: int) -> float:
    library = memory_c.compiled()
    if library is None:
        sys.exit("no C compiler")
    began = time.process_time()
    proven = memory_c.CompiledMemory(library, rows)
    memory.digest(secrets.token_hex(16), proven)
    proven.close()
    return time.process_time() - began


def _attack_s(program: Path, rows: int) -> float:
    before = _children_s()
    words = [str(program), secrets.token_hex(16), str(rows)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return _children_s() - before


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
