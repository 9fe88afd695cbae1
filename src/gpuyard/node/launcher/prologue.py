"""The first steps of an attempt that is limited or runs under another account, in its
own process: it joins its groups, sets its limits, takes its account, and becomes the
job.

Run as a script of its own (`python -I -S -c …`) with a socket as descriptor 3. From
that it reads its orders: a marshalled dict of `groups` (files to enter), `rlimits`
(pairs of resource and value), `cpus`, `identity` (None, or the account with the folders
that it must be able to use), `directory` (which an account enters itself), `path`,
`argv` and `environment` (as for `os.execve`). With `terminal`, descriptor 0 is one, and
becomes that of its session. It answers `exec` just before the exec,
and then the errno if that failed; any other answer is a reason, a space and why there
was no exec. The socket closes on exec.

The job's environment is part of the orders, so that it cannot disturb this interpreter.
The orders arrive whole or not at all, so that no job runs without limits if the agent
dies meanwhile: then this process ends by the signal `NEVER_STARTED`.

This is not a shell: a shell loses variables whose names are not identifiers, and cannot
say why an exec failed.
"""

import marshal
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

NEVER_STARTED = signal.SIGRTMAX - 7
_CONTROL = 3
_PR_SET_NO_NEW_PRIVS = 38
# The number of the system call, by kind of machine.
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271}
_JOIN_SESSION_KEYRING = 1


class ExecRefusedError(Exception):
    """There is no exec. The text is a reason, a space and the message."""


def main() -> int:
    """Carry out the orders; returns only if that fails."""
    os.set_inheritable(_CONTROL, False)
    try:
        orders = marshal.loads(b"".join(iter(lambda: os.read(_CONTROL, 1 << 16), b"")))
    except (EOFError, ValueError, TypeError, OSError):
        return give_up()
    try:
        take_limits(orders["groups"], orders["rlimits"], orders["cpus"])
        if orders.get("terminal"):
            take_terminal()
        if orders["identity"]:
            take_identity(orders["identity"], orders["directory"])
    except ExecRefusedError as refused:
        os.write(_CONTROL, str(refused).encode(errors="replace"))
        return 1
    except (OSError, ValueError) as error:
        os.write(_CONTROL, f"limits_failed {error}".encode())
        return 1
    try:
        os.write(_CONTROL, b"exec")
    except OSError:
        return give_up()
    # Python ignores these; a job starts with every signal at its default.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execve(orders["path"], orders["argv"], orders["environment"])
    except OSError as error:
        os.write(_CONTROL, str(error.errno).encode())
    return 1


def give_up() -> int:
    """End this process because the agent has died, so that the job must not run.

    It ends by a signal of which no program dies by itself.
    """
    os.kill(os.getpid(), NEVER_STARTED)
    return 1


def take_limits(
    groups: Iterable[str], rlimits: Iterable[tuple[int, int]], cpus: Iterable[int]
) -> None:
    """Enter the groups and set the limits for this process and all its children.

    Raises OSError or ValueError.
    """
    for group in groups:
        entry = os.open(group, os.O_WRONLY)
        os.write(entry, b"0")  # the writer itself
        os.close(entry)
    for limit, value in rlimits:
        resource.setrlimit(limit, (value, value))
    if cpus:
        os.sched_setaffinity(0, cpus)


def take_terminal() -> None:
    """Make descriptor 0 the terminal of this session, which this process leads: then
    Ctrl-C is a signal. Raises OSError.
    """
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def take_identity(identity: dict[str, Any], directory: str) -> None:
    """Become the account for good, and enter the working directory as it.

    Raises ExecRefusedError.
    """
    name = identity["name"]
    leave_keyring = keyring_leaver()
    try:
        if identity["no_new_privileges"]:
            forgo_privileges()
        os.setgroups(identity["groups"])
        os.setresgid(*[identity["gid"]] * 3)
        os.setresuid(*[identity["uid"]] * 3)
        leave_keyring()
    except OSError as error:
        message = f"account_refused the process cannot become {name}: {error}"
        raise ExecRefusedError(message) from None
    if identity["uid"] and capabilities_left():
        raise ExecRefusedError(f"account_refused root's powers stay with {name} here")
    os.umask(identity["umask"])
    enter(name, directory)
    for folder in identity["folders"]:
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise ExecRefusedError(
                f"account_refused the account {name} may not use the folder"
                f" {closed_folder(folder)}"
            )


def forgo_privileges() -> None:
    """From now on no program gains rights by being executed, such as sudo."""
    # Only a few need it; and as the account, the interpreter may be out of reach.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs is not to be had")


def keyring_leaver() -> Callable[[], object]:
    """What begins a session keyring of its own: that of the agent may hold keys of
    root. Where the kernel has none, or a container forbids the call, there is nothing
    to leave.

    As the account, the interpreter may be out of reach, so this comes first.
    """
    import ctypes

    call = _KEYCTL.get(os.uname().machine, -1)
    return partial(ctypes.CDLL(None).syscall, call, _JOIN_SESSION_KEYRING, None)


def capabilities_left() -> bool:
    """True when this process still has a part of root's powers."""
    with open("/proc/self/status") as status:  # noqa: PTH123  (pathlib takes 5 ms)
        lines = dict(line.split(":", 1) for line in status)
    return any(int(lines[name], 16) for name in ("CapPrm", "CapEff", "CapAmb"))


def enter(name: str, directory: str) -> None:
    """Change to the working directory. Raises ExecRefusedError."""
    try:
        os.chdir(directory)
    except PermissionError:
        raise ExecRefusedError(
            f"workdir_missing the account {name} may not enter the folder"
            f" {closed_folder(directory)}, and its working directory is {directory}"
        ) from None
    except OSError as error:
        raise ExecRefusedError(
            f"workdir_missing the working directory {directory} cannot be entered:"
            f" {error.strerror}"
        ) from None


def closed_folder(path: str) -> str:
    """The first folder on the way to `path` that this process may not enter; `path`
    itself if there is none.
    """
    steps = path.split("/")
    for count in range(1, len(steps)):
        folder = "/".join(steps[:count]) or "/"
        if not os.access(folder, os.X_OK):
            return folder
    return path


if __name__ == "__main__":
    sys.exit(main())
