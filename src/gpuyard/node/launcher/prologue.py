"""The first steps of a limited attempt, in its own process: it joins its groups, sets
its limits, and becomes the job.

Run as a script of its own (`python -I -S -c …`) with a socket as descriptor 3. From
that it reads its orders: a marshalled dict of `groups` (files to enter), `rlimits`
(pairs of resource and value), `cpus`, `path`, `argv` and `environment` (as for
`os.execve`). It answers `exec` just before the exec, and then the errno if that failed;
any other answer says why there was no exec. The socket closes on exec.

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
from collections.abc import Iterable

NEVER_STARTED = signal.SIGRTMAX - 7
_CONTROL = 3


def main() -> int:
    """Carry out the orders; returns only if that fails."""
    os.set_inheritable(_CONTROL, False)
    try:
        orders = marshal.loads(b"".join(iter(lambda: os.read(_CONTROL, 1 << 16), b"")))
    except (EOFError, ValueError, TypeError, OSError):
        return give_up()
    try:
        take_limits(orders["groups"], orders["rlimits"], orders["cpus"])
    except (OSError, ValueError) as error:
        os.write(_CONTROL, str(error).encode())
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


if __name__ == "__main__":
    sys.exit(main())
