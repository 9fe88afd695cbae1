"""How soon lines are found in a log of 1 GB, as it is and compressed, beside grep."""

import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, alternate
from gpuyard.domain.log_query import LogQuery
from gpuyard.insight.log_search import find_lines
from gpuyard.storage.log_times import LogTimes
from gpuyard.storage.packed_log import pack, packed_path, stored_log

GROUP = "logs"
_BYTES = 1 << 30
_PART_LINES = 80_000
_ROUNDS = 5
_LAST = "the needle is here"


def measure(scale: float) -> Iterator[Figure]:
    """A text that stands only in the last line, and one in the middle of the log."""
    rounds = max(int(_ROUNDS * scale), 1)
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "attempt_1.log"
        _write(log, int(_BYTES * scale))
        copy = log.with_suffix(".copy")
        copy.hardlink_to(log)
        yield from _figures(log, copy, rounds, "")
        pack(log)
        size = packed_path(log).stat().st_size / copy.stat().st_size
        yield Figure(GROUP, "size of a compressed log", [size], "of the log")
        yield from _figures(log, copy, rounds, ", compressed")


def _figures(log: Path, copy: Path, rounds: int, what: str) -> Iterator[Figure]:
    def ours(**asked: str) -> float:
        began = time.perf_counter()
        _find_first(log, LogQuery(limit=1, **asked))
        return 1000 * (time.perf_counter() - began)

    def grep() -> float:
        began = time.perf_counter()
        words = ["grep", "-a", "-m", "1", "-F", _LAST, str(copy)]
        subprocess.run(words, check=True, capture_output=True)
        return 1000 * (time.perf_counter() - began)

    for words, asked in (
        ("a text", {"search": _LAST}),
        ("an expression", {"regex": "the ne+dle is"}),
    ):
        ours(**asked)
        values, floors = alternate(rounds, lambda asked=asked: ours(**asked), grep)
        name = f"{words} in the last line of 1 GB{what}"
        yield Figure(GROUP, name, values, "ms", 300, floors, "grep -F", absolute=True)
    values, floors = alternate(rounds, lambda: ours(search="step 200000 "), grep)
    name = f"a text in the first lines of 1 GB{what}"
    yield Figure(GROUP, name, values, "ms", 300, floors, "grep -F", absolute=True)


def _find_first(log: Path, query: LogQuery) -> None:
    times = LogTimes(log, 0.0)
    page = find_lines(stored_log(log), times, query, is_complete=True, within_s=3600)
    assert page.lines or page.is_end


def _write(log: Path, size: int) -> None:
    """Lines of a training, which repeat only after some megabytes."""
    chance = random.Random(1)
    part = "".join(
        f"2026-11-28 20:00:00,{n % 1000:03} INFO step {n * 5} loss={chance.random():.6f}"
        f" lr={chance.random():.3e} tokens/s={chance.randint(10_000, 99_999)}\n"
        for n in range(_PART_LINES)
    ).encode()
    with log.open("wb") as file:
        for _ in range(max(size // len(part), 1)):
            file.write(part)
        file.write(_LAST.encode() + b"\n")
