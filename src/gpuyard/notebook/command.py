"""The command `gpuyard`, as a notebook runs it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

COMMAND = (sys.executable, "-P", "-m", "gpuyard.cli.entry")


def run(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """`gpuyard WORDS` with the Python of the notebook; nothing can be typed to it."""
    return subprocess.run(
        [*COMMAND, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )


def environment() -> dict[str, str]:
    """The variables of the notebook, with its own Python as the first: a server of
    notebooks often starts them without their environments being active.
    """
    found = dict(os.environ)
    programs = str(Path(sys.executable).parent)
    found["PATH"] = os.pathsep.join([programs, found.get("PATH", os.defpath)])
    if sys.prefix != sys.base_prefix:
        found["VIRTUAL_ENV"] = sys.prefix
    return found


def words_of_cell(options: Sequence[str], script: Path) -> list[str]:
    """The words of the command that submits the script of a cell. The script imports
    what lies beside the notebook.
    """
    path = os.pathsep.join(filter(None, [".", os.environ.get("PYTHONPATH", "")]))
    name = [] if _has_name(options) else ["--name", "cell"]
    return [
        *("run", "--json", *name, "--env", f"PYTHONPATH={path}"),
        *options,
        str(script),
    ]


def _has_name(options: Sequence[str]) -> bool:
    return any(word.split("=")[0] == "--name" for word in options)
