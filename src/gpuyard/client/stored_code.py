"""Has the code of working folders stored before jobs are submitted, so that they run
what was there then.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.client.carrying import runs_on_this_host
from gpuyard.client.connection import Address
from gpuyard.domain.errors import RefusedError

Folder = tuple[str, str]
"""A working folder, and the project of the jobs in it: an account of the machine may be
theirs.
"""
Answer = Mapping[str, Any]
"""What the server says of a folder: the `digest` of its stored code, None without; and
`why` there is none, if a person would not expect it.
"""
OLD_SERVER: Answer = {"digest": None, "why": ""}
"""What a server of an older version would say, which stores none."""


def folders_of(address: Address, bodies: Sequence[Any]) -> list[Folder]:
    """The folders whose code has to be stored, each once: those of jobs that run on
    this host and do not say themselves which code they run.
    """
    wanted = [_folder_of(body) for body in bodies if _wants_code(address, body)]
    return list(dict.fromkeys(wanted))


def with_code(
    address: Address, bodies: Sequence[Any], answers: Mapping[Folder, Answer]
) -> tuple[list[Any], list[str]]:
    """`bodies`, each job with the stored code of its folder, and why that of some
    folders was not stored. `answers` is by folder.
    """
    filled_in: list[Any] = []
    for body in bodies:
        wants_code = _wants_code(address, body)
        digest = answers[_folder_of(body)]["digest"] if wants_code else None
        filled_in.append({**body, "submitted_code": digest} if digest else body)
    problems = [answer["why"] for answer in answers.values() if answer["why"]]
    return filled_in, list(dict.fromkeys(problems))


def refuse(problems: Sequence[str]) -> None:
    """RefusedError if there are problems."""
    if problems:
        raise RefusedError(
            f"The code cannot be stored: {'; '.join(problems)}.",
            "Without snapshot=True the job runs the code as it is when it starts.",
        )


def _folder_of(body: Any) -> Folder:
    project = body.get("project")
    return body["workdir"], project if isinstance(project, str) else ""


def _wants_code(address: Address, body: Any) -> bool:
    if not runs_on_this_host(address, body):
        return False
    is_decided = body.get("live") or "submitted_code" in body
    return isinstance(body.get("workdir"), str) and not is_decided
