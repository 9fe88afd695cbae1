"""A small disk that a test can fill: a tmpfs of its own."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.components import require


@contextmanager
def small_disk(path: Path, size: str = "2m") -> Iterator[Path]:
    """Mount a tmpfs of `size` at `path`.

    Needs root.
    """
    path.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "gpuyard-test", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    require("tmpfs", mounted.returncode == 0, mounted.stderr.strip())
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> None:
    """Write into the file `path` until its disk is full."""
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
