"""A small disk that a test can fill: a tmpfs of its own."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: str = "2m") -> Iterator[Path]:
    """Mount a tmpfs of `size` at `path`. Needs root; skips where that lacks, which in CI is a failure."""
    path.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "gpuyard-test", str(path)],
                             capture_output=True, text=True, check=False)  # fmt: skip
    if mounted.returncode:
        words = f"a small disk needs a tmpfs mounted by root: {mounted.stderr.strip()}"
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            pytest.fail(words)
        pytest.skip(words)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> None:
    """Write into the file `path` until its disk is full."""
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
