"""What to start: checked, looked up and put in the form that exec takes, or refused with the reason."""

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpuyard.node.launcher.limits import Limits
from gpuyard.node.launcher.process import ATTEMPT_VARIABLE

_UNLIMITED = Limits()

Reason = Literal[
    "command_not_found",
    "not_executable",
    "workdir_missing",
    "log_unwritable",
    "invalid_argument",
    "limits_failed",
    "spawn_failed",
]


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start. The environment is the whole of it, and must hold GPUYARD_ATTEMPT_ID.

    `argv[0]` is looked up in the environment's PATH; relative names and PATH entries count from `workdir`. `log`: file
    that stdout and stderr are appended to, made with mode 0600. `stdin`: bytes to read there; without, /dev/null.
    `cgroup_root`: see `Cgroup.create`. `reaper`: this process's parent, if it is the subreaper to which orphans go.
    """

    attempt_id: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    workdir: Path
    log: Path
    limits: Limits = _UNLIMITED
    stdin: bytes | None = field(default=None, repr=False)
    cgroup_root: Path | None = None
    reaper: int | None = None


class LaunchError(Exception):
    """The attempt was not started, and nothing of it is left but perhaps an empty log file.

    `reason`: what was wrong, for programs. `spawn_failed` may pass: the host was short of processes, memory or
    descriptors. The message says it for people.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class Program:
    """A launch in the form that exec takes: bytes, and in `path` the file to execute."""

    path: bytes
    argv: list[bytes]
    entries: list[bytes]
    directory: bytes

    def environment(self) -> dict[bytes, bytes]:
        """The `NAME=value` entries as a dict."""
        return {name: value for name, _, value in (entry.partition(b"=") for entry in self.entries)}


def resolve(launch: Launch) -> Program:
    """Check what was asked for and find the program. Raises LaunchError."""
    try:
        argv = _plain("an argument", launch.argv)
        entries = _plain("a variable", [f"{name}={value}" for name, value in launch.environment.items()])
        (directory,) = _plain("the working directory", [str(launch.workdir)])
    except UnicodeEncodeError as error:
        raise LaunchError(
            "invalid_argument", f"text that no file system encoding can express: {error.reason}"
        ) from None
    for name in launch.environment:
        if not name or "=" in name:
            raise LaunchError("invalid_argument", f"a variable's name must not be empty or hold '=': {name!r}")
    if launch.environment.get(ATTEMPT_VARIABLE) != launch.attempt_id:
        raise LaunchError("invalid_argument", f"the environment must hold {ATTEMPT_VARIABLE}={launch.attempt_id}")
    if not argv or not argv[0]:
        raise LaunchError("invalid_argument", "there is no command: argv is empty, or its first word is")
    _check_directory(launch.workdir)
    return Program(_find(launch), argv, entries, directory)


def _plain(what: str, texts: Sequence[str]) -> list[bytes]:
    """The texts as bytes, all at once: an environment of a hundred variables is encoded for each attempt."""
    if not texts:
        return []
    joined = "\0".join(texts)
    if joined.count("\0") >= len(texts):
        culprit = next(text for text in texts if "\0" in text).partition("=")[0].partition("\0")[0]
        raise LaunchError("invalid_argument", f"{what} ({culprit}…) holds a NUL byte, which no process can be given")
    return os.fsencode(joined).split(b"\0")


def _check_directory(workdir: Path) -> None:
    if not os.path.isdir(workdir):  # noqa: PTH112  (half the time of Path's, at each attempt)
        problem = "is not a directory" if workdir.exists() else "does not exist"
    elif not os.access(workdir, os.X_OK):
        problem = "may not be entered"
    else:
        return
    raise LaunchError("workdir_missing", f"the working directory {workdir} {problem}")


def _find(launch: Launch) -> bytes:
    """The file that `argv[0]` means, as a path from the working directory."""
    name = launch.argv[0]
    search = launch.environment.get("PATH", os.defpath)
    candidates = [name] if "/" in name else [f"{folder or '.'}/{name}" for folder in search.split(":")]
    # Not by way of Path: this runs for each attempt, and for each folder of PATH.
    places = {candidate: os.path.join(launch.workdir, candidate) for candidate in candidates}  # noqa: PTH118
    files = [candidate for candidate, place in places.items() if os.path.isfile(place)]  # noqa: PTH113
    for file in files:
        if os.access(places[file], os.X_OK):
            return os.fsencode(file)
    if files:
        raise LaunchError("not_executable", f"{files[0]} is not executable (chmod +x makes it so)")
    if "/" in name:
        raise LaunchError("command_not_found", f"there is no file {name} (seen from {launch.workdir})")
    raise LaunchError("command_not_found", f"the command {name} is in no folder of PATH ({search})")


def explain(error: OSError, launch: Launch) -> LaunchError:
    """Say what it means that a program which `resolve` has found was not started."""
    try:
        resolve(launch)  # what was there may have gone since
    except LaunchError as found:
        return found
    name = launch.argv[0]
    if error.errno in (errno.ENOENT, errno.ELIBBAD):
        missing = "the interpreter it names in its first line, or its loader, is missing"
        return LaunchError("not_executable", f"{name} cannot be run: {missing}")
    if error.errno == errno.ENOEXEC:
        return LaunchError(
            "not_executable", f"{name} is neither a program for this machine nor a script with a #! line"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP):
        return LaunchError("not_executable", f"{name} cannot be run: {error.strerror}")
    if error.errno == errno.E2BIG:
        return LaunchError(
            "invalid_argument", "the arguments and the environment together are too long for this system"
        )
    return LaunchError("spawn_failed", f"no process could be started: {error.strerror}")
