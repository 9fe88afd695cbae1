"""Environments of Python with heavy packages, each built once (a minute) and kept in the
cache.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def cache_of_tests() -> Path:
    """The folder for what tests keep from one run to the next."""
    place = Path(os.environ.get("GPUYARD_CACHE") or "~/.cache/gpuyard").expanduser()
    (place / "tests").mkdir(parents=True, exist_ok=True)
    return place / "tests"


def make_python(name: str, packages: Sequence[str]) -> Path:
    """The interpreter of an environment with these packages, which is made if it is
    not there.
    """
    cache = cache_of_tests()
    content = repr((tuple(packages), sys.version_info[:2])).encode()
    key = hashlib.sha256(content).hexdigest()[:12]
    folder = cache / f"{name}-{key}"
    done = cache / f"{name}-{key}.complete"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run(
                [folder / "bin/pip", "install", "-qq", *packages], check=True
            )
            done.touch()
    return folder / "bin" / "python"
