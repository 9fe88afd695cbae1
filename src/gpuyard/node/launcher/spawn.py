"""Starts an attempt: opens its log and gets a process under its limits into being.

Without limits the process is spawned directly and moved into its control group after (0.3 ms); with limits it goes
through `prologue.py` (10 ms), which is under them before the job's first instruction. `spawn` blocks for that long.
"""

import errno
import marshal
import os
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gpuyard.node.launcher import procfs, prologue
from gpuyard.node.launcher.cgroup import Cgroup
from gpuyard.node.launcher.launch import Launch, LaunchError, Program, explain, resolve
from gpuyard.node.launcher.limits import fall_back
from gpuyard.node.launcher.posix_spawn import Streams, posix_spawn
from gpuyard.node.launcher.process import ATTEMPT_VARIABLE, Process, no_orphans

# Read once: an upgrade of the package must not give a running agent a prologue that it does not understand.
_PROLOGUE = Path(prologue.__file__).read_bytes()


def spawn(launch: Launch, *, cgroups: bool = True) -> Process:
    """Start an attempt as the leader of a session of its own and return once it executes its program.

    `cgroups`: False to do without control groups. Safe to call from several threads. Raises LaunchError.
    """
    program = resolve(launch)
    cgroup = Cgroup.create(launch.attempt_id, launch.limits, launch.cgroup_root) if cgroups else None
    held = cgroup.enforced if cgroup else {}
    # A new process can do no harm by its number before it is in its group; memory and CPU want the prologue's care,
    # which costs the start of an interpreter.
    simple = set(launch.limits.wanted()) <= ({"processes"} & held.keys())
    start = _spawn_directly if simple else _spawn_limited
    try:
        with _open_streams(launch) as streams:
            return start(launch, program, streams, cgroup)
    except (OSError, LaunchError) as error:
        if cgroup:
            cgroup.remove()
        if isinstance(error, LaunchError):
            raise
        raise explain(error, launch) from error


def _spawn_directly(launch: Launch, program: Program, streams: Streams, cgroup: Cgroup | None) -> Process:
    pid = posix_spawn(program.path, program.argv, program.entries, program.directory, streams)
    contained = False
    if cgroup:
        try:
            cgroup.join(pid)
            # Then it has not forked: its group holds all it will ever start.
            contained = procfs.newest_pid() == pid or _childless(pid, launch.reaper)
        except OSError:  # it has ended already, or may not be moved: its session has to do
            cgroup.remove()
            cgroup = None
    held = cgroup.enforced if cgroup else dict.fromkeys(launch.limits.wanted(), "none: it had ended")
    process = _attach(launch, pid, cgroup, held, contained=contained)
    if not contained:
        process.gather()
    return process


def _childless(pid: int, reaper: int | None) -> bool:
    """Whether a process has no descendants: no child, and then none whose parent has ended with the reaper."""
    return reaper is not None and not procfs.children(pid) and no_orphans(reaper)


def _spawn_limited(launch: Launch, program: Program, streams: Streams, cgroup: Cgroup | None) -> Process:
    held = cgroup.enforced if cgroup else {}
    rest = {limit: value for limit, value in launch.limits.wanted().items() if limit not in held}
    fallback = fall_back(rest, launch.attempt_id)
    orders = {
        "groups": [str(path / "cgroup.procs") for path in cgroup.paths] if cgroup else [],
        "rlimits": fallback.rlimits,
        "cpus": fallback.cpus,
        "path": program.path,
        "argv": program.argv,
        "environment": program.environment(),
    }
    interpreter = os.fsencode(sys.executable)
    argv = [interpreter, b"-I", b"-S", b"-c", _PROLOGUE]
    marker = [os.fsencode(f"{ATTEMPT_VARIABLE}={launch.attempt_id}")]
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            control = Streams(streams.stdin, streams.output, theirs.fileno())
            pid = posix_spawn(interpreter, argv, marker, program.directory, control)
        answer = _converse(ours, marshal.dumps(orders))
    # One that the kernel killed for want of memory before its exec is no different from one it killed after.
    if answer != b"exec" and not (cgroup and cgroup.oom_kills()):
        os.waitpid(pid, 0)
        raise _refused(answer)
    return _attach(launch, pid, cgroup, {**held, **fallback.enforcement}, contained=cgroup is not None)


def _converse(ours: socket.socket, orders: bytes) -> bytes:
    """Send the orders and read the answer to its end; what is missing in it says that the other side has died."""
    answer = b""
    with suppress(OSError):
        ours.sendall(orders)
        ours.shutdown(socket.SHUT_WR)
        while part := ours.recv(4096):
            answer += part
    return answer


def _refused(answer: bytes) -> OSError | LaunchError:
    """What the prologue's answer means, if it is not a plain `exec`."""
    number = answer.removeprefix(b"exec")
    if number != answer:
        return OSError(int(number), os.strerror(int(number)))
    why = answer.decode(errors="replace") or "the process died under them before it could run the program"
    return LaunchError("limits_failed", f"the limits could not be set: {why}")


def _attach(
    launch: Launch, pid: int, cgroup: Cgroup | None, enforcement: dict[str, str], *, contained: bool
) -> Process:
    """Take hold of the new process, or end it if that fails (for want of a descriptor, say): no one else could."""
    try:
        found = procfs.stat(pid)
        if found is None:
            raise OSError(errno.ESRCH, "/proc does not show the process just started")
        pidfd = os.pidfd_open(pid)
    except OSError:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if cgroup:
            with suppress(OSError):  # without a descriptor it cannot look
                cgroup.kill()
        raise
    return Process(
        launch.attempt_id,
        pid,
        found.start_ticks,
        pidfd=pidfd,
        cgroup=cgroup,
        enforcement=enforcement,
        contained=contained,
        reaper=launch.reaper,
    )


@contextmanager
def _open_streams(launch: Launch) -> Generator[Streams]:
    with _open_log(launch.log) as output, _open_stdin(launch.stdin) as stdin:
        yield Streams(stdin.fileno(), output.fileno())


def _open_log(path: Path) -> BinaryIO:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise LaunchError("log_unwritable", f"cannot write the log {path}: {error.strerror}") from error


def _open_stdin(content: bytes | None) -> BinaryIO:
    if content is None:
        return Path(os.devnull).open("rb")
    memory = os.fdopen(os.memfd_create("stdin"), "w+b")  # a file without a name; a pipe would need a writer
    memory.write(content)
    memory.seek(0)
    return memory
