"""TensorBoard over the event files of jobs, as a job of its own: what is submitted for
it.
"""

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from gpuyard.domain.errors import RefusedError
from gpuyard.domain.jobs import Job

BOARD_NAME = "tensorboard"
BOARD_LISTENS = "TensorBoard listens on port "
"""What its output says, and then the port."""
START = "import sys; sys.path[:] = filter(None, sys.path); exec(sys.stdin.read())"
"""Runs a program from the standard input. The folder may be somebody else's: nothing in
it is imported.
"""
_PROGRAM = "board_program.py"
_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")
# Lists of folders. An empty or relative one is looked for where a program begins.
_SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")


def board_body(
    jobs: Sequence[Job],
    idle_s: float,
    environment: Mapping[str, str],
    home: str,
    python: str = "python3",
) -> dict[str, Any]:
    """The job that runs TensorBoard over these jobs, with this Python, and ends when
    nobody has looked for `idle_s`; RefusedError for a job that has not begun, or that
    ran in a container. `environment`: that of a program which begins in the folder
    `home`.
    """
    words: list[str] = []
    for job in jobs:
        if job.started_at is None:
            raise RefusedError(f"{job.name} has not begun.", "Wait until it runs.")
        spec: dict[str, Any] = job.spec or {}
        workdir = spec.get("workdir")
        if not workdir or spec.get("image"):
            fault = f"{job.name} has no folder on a node: it runs in a container."
            raise RefusedError(fault, "Copy its event files, and show them yourself.")
        end = "" if job.ended_at is None else str(job.ended_at)
        label = f"{job.name}-{job.id[-6:]}".replace("/", "-")
        words += [label, str(workdir), str(job.started_at), end]
    program = resources.files("gpuyard.insight").joinpath(_PROGRAM).read_text()
    return {
        "name": BOARD_NAME,
        "command": [python, "-c", START, str(idle_s), *words],
        "stdin": program,
        # It begins in a folder of its own: those of the jobs may be somebody else's.
        "workdir": None,
        "environment": {
            name: _anchored(value, home) if name in _SEARCHED else value
            for name, value in environment.items()
        },
        "resources": {"cpus": 1, "gpus": 0},
        # It needs the folders of the jobs as they are.
        "live": True,
    }


def _anchored(places: str, home: str) -> str:
    """A list of folders as a program in `home` finds them, without the empty ones."""
    named = filter(None, places.split(":"))
    return ":".join(str(PurePosixPath(home, place)) for place in named)


def python_of(spec: Mapping[str, Any]) -> str:
    """The Python that the command of a job names, or else the one on its PATH."""
    command: Sequence[str] = spec.get("command") or [""]
    path = PurePosixPath(command[0])
    if len(path.parts) == 1 or not _PYTHON.fullmatch(path.name):
        return "python3"
    return str(PurePosixPath(spec.get("workdir") or "/") / path)
