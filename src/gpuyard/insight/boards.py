"""TensorBoard over the event files of jobs, as a job of its own: what is submitted for
it.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from gpuyard.domain.errors import RefusedError
from gpuyard.domain.jobs import Job
from gpuyard.domain.workspaces import workspace_key

BOARD_NAME = "tensorboard"
BOARD_LISTENS = "TensorBoard listens on port "
"""What its output says, and then the port."""
START = "import sys; sys.path[:] = filter(None, sys.path); exec(sys.stdin.read())"
"""Runs a program from the standard input. The folder may be somebody else's: nothing in
it is imported.
"""
_PROGRAM = "board_program.py"
_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")
# Its containers are on our own nodes, and see the folder of their job at its own path.
_CONTAINERS_HERE = "docker"
# The folder of a job there is one of a pod, or of a machine that ends with the job.
_ELSEWHERE = frozenset({"kubernetes", "tencent", "aws", "alibaba", "skypilot"})
_IN_WORKSPACE = "workspace"
# Lists of folders. An empty or relative one is looked for where a program begins.
_SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")


def board_body(
    jobs: Sequence[Job],
    idle_s: float,
    environment: Mapping[str, str],
    home: str,
    python: str = "python3",
    *,
    workspaces: Mapping[str, str],
) -> dict[str, Any]:
    """The job that runs TensorBoard over these jobs, with this Python, and ends when
    nobody has looked for `idle_s`; RefusedError for a job that has not begun, or of
    which no node has a folder. `environment`: that of a program which begins in the
    folder `home`. `workspaces`: the folders of workspaces, by `workspace_of`.
    """
    words: list[str] = []
    for job in jobs:
        if job.started_at is None:
            raise RefusedError(f"{job.name} has not begun.", "Wait until it runs.")
        folders = dict(_folders(job, workspaces))
        if not folders:
            raise _without_folder(job)
        end = "" if job.ended_at is None else str(job.ended_at)
        for folder, label in folders.items():
            words += [label, folder, str(job.started_at), end]
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


def workspace_of(job: Job) -> str | None:
    """The key of the workspace of a job, given with its spec; None if it has none."""
    name = (job.spec or {}).get("workspace")
    return workspace_key(job.project, name) if name else None


def _folders(job: Job, workspaces: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The folders on nodes where it may have logged, and a label for each."""
    label = f"{job.name}-{job.id[-6:]}".replace("/", "-")
    spec: Mapping[str, Any] = job.spec or {}
    if spec.get("workdir") and not _is_elsewhere(job):
        yield str(spec["workdir"]), label
    if job.code and job.code.folder:
        # Its code had changed since the submission: it worked there.
        yield job.code.folder, label
    if folder := workspaces.get(workspace_of(job) or ""):
        yield folder, f"{label}/{_IN_WORKSPACE}"


def _is_elsewhere(job: Job) -> bool:
    """Whether its working folder is not where our nodes find it."""
    is_image = bool((job.spec or {}).get("image"))
    return job.provider in _ELSEWHERE or (is_image and job.provider != _CONTAINERS_HERE)


def _without_folder(job: Job) -> RefusedError:
    if not _is_elsewhere(job):
        return RefusedError(
            f"{job.name} has no working folder: what it wrote went with it.",
            "Submit it with a `workdir`, or let it log to a workspace.",
        )
    return RefusedError(
        f"{job.name} ran on {job.provider}, and no node of ours has its folder.",
        "`gpuyard compare` draws what it logs. For TensorBoard, keep its event files"
        " (`gpuyard run --artifacts FOLDER`), get them with `gpuyard artifacts get`,"
        " and run `tensorboard --logdir` over them.",
    )


def board_project(
    jobs: Sequence[Job],
    private: Collection[str],
    may_submit: Callable[[str | None], bool],
) -> str | None:
    """Of which project a TensorBoard over these jobs is: who sees it sees their names
    and folders. It is that of the first job, if whoever asks may submit there.
    `private`: the names of the private projects. RefusedError for jobs of several of
    these.
    """
    named = {job.project for job in jobs if job.project}
    hidden = sorted(named.intersection(private))
    if len(hidden) > 1:
        raise RefusedError(
            f"These jobs are of the private projects {', '.join(hidden)}, whose"
            " members do not see each other's jobs.",
            "Show those of one project at a time.",
        )
    if hidden:
        return hidden[0]
    first = jobs[0].project
    return first if may_submit(first) else None


def _anchored(places: str, home: str) -> str:
    """A list of folders as a program in `home` finds them, without the empty ones."""
    named = filter(None, places.split(":"))
    return ":".join(str(PurePosixPath(home, place)) for place in named)


def python_of(spec: Mapping[str, Any]) -> str:
    """The Python that the command of a job names, or else the one on its PATH; that of
    a container is in its image, and not on the node.
    """
    if spec.get("image"):
        return "python3"
    command: Sequence[str] = spec.get("command") or [""]
    path = PurePosixPath(command[0])
    if len(path.parts) == 1 or not _PYTHON.fullmatch(path.name):
        return "python3"
    return str(PurePosixPath(spec.get("workdir") or "/") / path)
