"""Keeps keys out of the environment with which gpuyard's processes were started.

Any program of the same user can read that environment (`/proc/PID/environ`) for as long
as a process lives. So a process passes keys to the next one in a sealed file in memory,
and closes itself to other programs of its user. They stay in `os.environ`, which is
elsewhere in memory.

Standard library only.
"""

import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from gpuyard.domain.secret_names import looks_like_key

FILE_VARIABLE = "GPUYARD_PRIVATE_FD"
"""The number of the open file with the keys; the keeper passes it on."""
# The keys of webhooks and of providers may have any name that begins with GPUYARD_. By
# the variables of an attempt its processes are found.
_OURS = "GPUYARD_"
_PUBLIC = (
    "GPUYARD_HOME",
    "GPUYARD_CONFIG",
    "GPUYARD_URL",
    "GPUYARD_KEEPER",
    FILE_VARIABLE,
    "GPUYARD_JOB",
    "GPUYARD_ATTEMPT",
    "GPUYARD_ARRAY_INDEX",
)
_SETTINGS = (
    "GPUYARD_CONFIG",
    "GPUYARD_SERVER__",
    "GPUYARD_NODE__",
    "GPUYARD_SCHEDULER__",
    "GPUYARD_RESIDENCY__",
)
_PR_SET_DUMPABLE = 4
_SEALS = (
    fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
)


def is_private(name: str) -> bool:
    """True for a variable of ours that no job may see."""
    is_public = name.startswith((*_PUBLIC, *_SETTINGS))
    is_setting = name.startswith(_OURS) and not is_public
    return is_setting or looks_like_key(name)


def public_settings() -> dict[str, str]:
    """The settings in this process's environment that are no secret."""
    return {
        name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)
    }


def digest_of_keys() -> str:
    """Tells whether two processes have the same keys; the keeper computes it, too."""
    private = {name: value for name, value in os.environ.items() if is_private(name)}
    content = json.dumps(private, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def public_environment() -> dict[str, str]:
    """This process's environment without keys, for a program that needs none."""
    return {name: value for name, value in os.environ.items() if not is_private(name)}


def _handed_over() -> tuple[dict[str, str], int | None]:
    """The environment for the program that this process becomes, and the open file that
    holds the keys, if there are any.
    """
    environment = public_environment()
    environment.pop(FILE_VARIABLE, None)
    private = {name: os.environ[name] for name in os.environ.keys() - environment}
    private.pop(FILE_VARIABLE, None)
    if not private:
        return environment, None
    file = os.memfd_create("gpuyard", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(file, json.dumps(private).encode())
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    return {**environment, FILE_VARIABLE: str(file)}, file


@contextmanager
def handing_over() -> Generator[tuple[dict[str, str], tuple[int, ...]]]:
    """The environment for a new process of ours, and the open file to pass to it."""
    environment, file = _handed_over()
    files = () if file is None else (file,)
    try:
        yield environment, files
    finally:
        for opened in files:
            os.close(opened)


def execute(arguments: Sequence[str]) -> NoReturn:
    """Become another program of ours, which receives the keys."""
    environment, file = _handed_over()
    if file is not None:
        os.set_inheritable(file, True)
    os.execve(arguments[0], list(arguments), environment)


def protect() -> None:
    """Take the keys out of the file, and close this process to others of its user.

    If it was started with keys in its environment, it executes itself again without
    them.
    """
    is_shown = any(is_private(name) for name in _names_in_proc())
    close_to_others()  # before the keys are in this process's memory
    _receive()
    if is_shown:
        execute([sys.executable, *sys.orig_argv[1:]])


def close_to_others() -> None:
    """Close the environment, the memory and the open files of this process to other
    programs of its user. Root is exempt.
    """
    import ctypes  # late, because commands import this module

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot close this process to others")


def _receive() -> None:
    number = os.environ.pop(FILE_VARIABLE, None)
    if number is None:
        return
    file = int(number)
    private = json.loads(os.pread(file, os.fstat(file).st_size, 0))
    os.close(file)
    os.environ.update(private)


def _names_in_proc() -> list[str]:
    """The variables that this process was started with, and still has.

    One that was forked and executed nothing shows those of its parent.
    """
    names: list[str] = []
    command = b"".join(os.fsencode(word) + b"\0" for word in sys.orig_argv)
    if Path("/proc/self/cmdline").read_bytes() != command:
        return names
    for entry in Path("/proc/self/environ").read_bytes().split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name and os.environb.get(name) == value:
            names.append(os.fsdecode(name))
    return names
