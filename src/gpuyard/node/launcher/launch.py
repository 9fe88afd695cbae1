"""A request to start an attempt, checked and converted to the form that exec takes, or
refused with the reason.
"""

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.devices.access import DeviceRule
from gpuyard.domain.reasons import Reason
from gpuyard.node.launcher.group_pool import PooledGroup
from gpuyard.node.launcher.identity import ProcessIdentity
from gpuyard.node.launcher.limits import ProcessLimits
from gpuyard.node.launcher.members import ATTEMPT_VARIABLE

_UNLIMITED = ProcessLimits()


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to start. The environment is complete, and must hold GPUYARD_ATTEMPT_ID.

    `argv[0]` is looked up in the environment's PATH; relative names and PATH entries
    start from `workdir`. `log`: the file to which stdout and stderr are appended, made
    with mode 0600. `stdin`: the bytes on standard input, or the descriptor that becomes
    it; without either, /dev/null.
    `cgroup_root`: see `Cgroup.create`. `first_group`: the group of a pool in which it
    begins, for an attempt without account, devices and limits of its own. `reaper`:
    this process's parent, if that is the subreaper that gets orphans. `identity`: the
    account that the process takes; without it, that of this process. `devices`: which
    devices it may open; None for all.
    """

    attempt_id: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    workdir: Path
    log: Path
    limits: ProcessLimits = _UNLIMITED
    stdin: bytes | int | None = field(default=None, repr=False)
    cgroup_root: Path | None = None
    first_group: PooledGroup | None = None
    reaper: int | None = None
    identity: ProcessIdentity | None = None
    devices: tuple[DeviceRule, ...] | None = None

    @property
    def as_whom(self) -> str:
        """The account for a message; empty for this process's own."""
        return f" by {self.identity.account.name}" if self.identity else ""


class LaunchError(Exception):
    """The attempt was not started, and nothing of it is left except perhaps an empty
    log file.

    `reason` is for programs, the message for people. `spawn_failed` may be temporary:
    the host was short of processes, memory or descriptors.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class ExecProgram:
    """A launch in the form that exec takes: bytes, and in `path` the file to
    execute.
    """

    path: bytes
    argv: list[bytes]
    entries: list[bytes]
    directory: bytes

    def environment(self) -> dict[bytes, bytes]:
        """The `NAME=value` entries as a dict."""
        found: dict[bytes, bytes] = {}
        for entry in self.entries:
            name, _, value = entry.partition(b"=")
            found[name] = value
        return found


def resolve(launch: LaunchRequest) -> ExecProgram:
    """Check the request and find the program. Raises LaunchError.

    Only the start itself shows whether the program can be executed and the working
    directory entered; `examine` finds out before.
    """
    try:
        argv = _plain("an argument", launch.argv)
        entries = _plain(
            "a variable",
            [f"{name}={value}" for name, value in launch.environment.items()],
        )
        (directory,) = _plain("the working directory", [str(launch.workdir)])
    except UnicodeEncodeError as error:
        raise LaunchError(
            Reason.INVALID_ARGUMENT,
            f"text that no file system encoding can express: {error.reason}",
        ) from None
    for name in launch.environment:
        if not name or "=" in name:
            raise LaunchError(
                Reason.INVALID_ARGUMENT,
                f"a variable's name must not be empty or hold '=': {name!r}",
            )
    if launch.environment.get(ATTEMPT_VARIABLE) != launch.attempt_id:
        raise LaunchError(
            Reason.INVALID_ARGUMENT,
            f"the environment must hold {ATTEMPT_VARIABLE}={launch.attempt_id}",
        )
    if not argv or not argv[0]:
        raise LaunchError(
            Reason.INVALID_ARGUMENT,
            "there is no command: argv is empty, or its first word is",
        )
    path = _find(launch)
    if not path:
        examine(launch)
    return ExecProgram(os.fsencode(path), argv, entries, directory)


def _find(launch: LaunchRequest) -> str:
    """The file for `argv[0]`, as a path from the working directory; empty if it is not
    in PATH.
    """
    name = launch.argv[0]
    if "/" in name:
        return name
    for folder in _search_path(launch):
        candidate = f"{folder or '.'}/{name}"
        # Without Path, because this runs for each attempt and each folder of PATH.
        place = os.path.join(launch.workdir, candidate)
        if os.access(place, os.X_OK) and os.path.isfile(place):
            return candidate
    return ""


def _search_path(launch: LaunchRequest) -> list[str]:
    return launch.environment.get("PATH", os.defpath).split(":")


def _plain(what: str, texts: Sequence[str]) -> list[bytes]:
    """The texts as bytes. They are encoded together, because each attempt has an
    environment of about a hundred variables.
    """
    if not texts:
        return []
    joined = "\0".join(texts)
    if joined.count("\0") >= len(texts):
        faulty = next(text for text in texts if "\0" in text)
        culprit = faulty.partition("=")[0].partition("\0")[0]
        raise LaunchError(
            Reason.INVALID_ARGUMENT,
            f"{what} ({culprit}…) holds a NUL byte, which no process can be given",
        )
    return os.fsencode(joined).split(b"\0")


def examine(launch: LaunchRequest) -> None:
    """Raise LaunchError if the program or its working directory cannot be used."""
    _check_directory(launch.workdir)
    name = launch.argv[0]
    candidates = [name]
    if "/" not in name:
        candidates = [f"{folder or '.'}/{name}" for folder in _search_path(launch)]
    places = {path: os.path.join(launch.workdir, path) for path in candidates}
    files = [path for path, place in places.items() if os.path.isfile(place)]
    if any(os.access(places[file], os.X_OK) for file in files):
        return
    if files:
        raise LaunchError(
            Reason.NOT_EXECUTABLE,
            f"{files[0]} is not executable (chmod +x makes it so)",
        )
    if "/" in name:
        raise LaunchError(
            Reason.COMMAND_NOT_FOUND,
            f"there is no file {name} (seen from {launch.workdir})",
        )
    raise LaunchError(
        Reason.COMMAND_NOT_FOUND,
        f"the command {name} is in no folder of PATH"
        f" ({':'.join(_search_path(launch))})",
    )


def _check_directory(workdir: Path) -> None:
    if not os.path.isdir(workdir):
        problem = "is not a directory" if workdir.exists() else "does not exist"
    elif not os.access(workdir, os.X_OK):
        problem = "may not be entered"
    else:
        return
    raise LaunchError(
        Reason.WORKDIR_MISSING, f"the working directory {workdir} {problem}"
    )


def explain(error: OSError, launch: LaunchRequest) -> LaunchError:
    """The reason why a program that `resolve` had found was not started."""
    try:
        examine(launch)
    except LaunchError as found:
        return found
    name = launch.argv[0]
    if error.errno in (errno.ENOENT, errno.ELIBBAD):
        missing = (
            "the interpreter it names in its first line, or its loader, is missing"
        )
        return LaunchError(Reason.NOT_EXECUTABLE, f"{name} cannot be run: {missing}")
    if error.errno == errno.ENOEXEC:
        return LaunchError(
            Reason.NOT_EXECUTABLE,
            f"{name} is neither a program for this machine nor a script with a #! line",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP):
        return LaunchError(
            Reason.NOT_EXECUTABLE,
            f"{name} cannot be run{launch.as_whom}: {error.strerror}",
        )
    if error.errno == errno.E2BIG:
        return LaunchError(
            Reason.INVALID_ARGUMENT,
            "the arguments and the environment together are too long for this system",
        )
    return LaunchError(
        Reason.SPAWN_FAILED, f"no process could be started: {error.strerror}"
    )
