"""Run a program that has to succeed."""

import os
import subprocess
from collections.abc import Sequence
from typing import Any


def run_program(
    command: Sequence[str | os.PathLike[str]], **options: Any
) -> subprocess.CompletedProcess[str]:
    """What it printed, as text; AssertionError with all of it if it failed.

    `options` are those of `subprocess.run`, such as `cwd`.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(command, text=True, check=False, **{**pipes, **options})
    assert done.returncode == 0, (
        f"{command} ended with {done.returncode}\n"
        f"--- stdout\n{done.stdout[-5000:]}\n--- stderr\n{(done.stderr or '')[-5000:]}"
    )
    return done
