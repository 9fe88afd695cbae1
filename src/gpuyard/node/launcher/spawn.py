"""Starts an attempt: opens its log and starts a process under its limits.

Without limits of its own the process is spawned directly and then moved into its
control group (0.3 ms), or into one from a pool. With such limits, or under another
account, it goes through `prologue.py` (10 ms), so that they apply before the job's
first instruction. `spawn` blocks for that time.
"""

import errno
import marshal
import os
import signal
import socket
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

from gpuyard.domain.reasons import Reason
from gpuyard.node.launcher import procfs, prologue
from gpuyard.node.launcher.cgroup import Cgroup
from gpuyard.node.launcher.group_pool import PooledGroup
from gpuyard.node.launcher.held_groups import HeldGroups
from gpuyard.node.launcher.launch import (
    ExecProgram,
    LaunchError,
    LaunchRequest,
    examine,
    explain,
    resolve,
)
from gpuyard.node.launcher.limits import (
    NO_GROUP,
    Fallback,
    ProcessLimits,
    fall_back,
)
from gpuyard.node.launcher.members import ATTEMPT_VARIABLE
from gpuyard.node.launcher.posix_spawn import Streams, posix_spawn
from gpuyard.node.launcher.process import Process

# Read once, so that after an upgrade of the package a running agent keeps the prologue
# that it understands.
_PROLOGUE = Path(prologue.__file__).read_bytes()
# A command beside a job is given up after so long: the job can stop its prologue, and
# its folder may hang.
_BESIDE_S = 10.0


def spawn(launch: LaunchRequest, *, cgroups: bool = True) -> Process:
    """Start an attempt as the leader of its own session; returns once it executes its
    program.

    `cgroups`: False for no control groups. Safe to call from several threads. Raises
    LaunchError.
    """
    program = resolve(launch)
    if launch.first_group is None:
        examine(launch)
    cgroup = None
    if cgroups and launch.first_group is None:
        cgroup = _create_groups(launch)
    group = launch.first_group or cgroup
    held = group.enforced if group else {}
    start = _spawn_directly if _is_simple(launch, held) else _spawn_limited
    try:
        if launch.devices is not None and "devices" not in held:
            raise LaunchError(
                Reason.LIMITS_FAILED, "no control group refuses devices any more"
            )
        with _open_streams(launch) as streams:
            return start(launch, program, streams, cgroup)
    except (OSError, LaunchError) as error:
        if cgroup:
            cgroup.remove()
        if isinstance(error, LaunchError):
            raise
        raise explain(error, launch) from error


def _create_groups(launch: LaunchRequest) -> Cgroup | None:
    return Cgroup.create(
        launch.attempt_id, launch.limits, launch.cgroup_root, launch.devices
    )


def _create_groups_late(launch: LaunchRequest) -> Cgroup | None:
    """As `_create_groups`, for a process that runs already: it runs on without
    groups.
    """
    with suppress(OSError):
        return _create_groups(launch)
    return None


def _is_simple(launch: LaunchRequest, held: Mapping[str, str]) -> bool:
    """Whether all its limits can begin after the start, without the prologue, which
    costs the start of an interpreter.

    `held`: the limits that its control group enforces.
    """
    if launch.identity is not None or launch.devices is not None:
        return False
    late = launch.limits.may_begin_late()
    # Without a group there is no default limit of memory.
    possible = late & {"memory", *held}
    return set(launch.limits.wanted()) <= possible


def _spawn_directly(
    launch: LaunchRequest, program: ExecProgram, streams: Streams, cgroup: Cgroup | None
) -> Process:
    pid = posix_spawn(
        program.path, program.argv, program.entries, program.directory, streams
    )
    pooled = launch.first_group
    if pooled and not _join(pooled, pid):
        # Somebody has removed it.
        pooled.spoil()
        pooled.discard()
        pooled = None
        cgroup = _create_groups_late(launch)
    if cgroup and not _join(cgroup, pid):
        # It has ended already or may not be moved: its session identifies it.
        cgroup.remove()
        cgroup = None
    held = _held_limits(launch.limits, pooled or cgroup)
    process = _attach(launch, pid, cgroup, held, pooled=pooled)
    # Without a free descriptor nothing is proved; its end is then searched for more
    # thoroughly. To fail now would leave a process that nobody knows.
    with suppress(OSError):
        process.contain()
    return process


def _join(group: Cgroup | PooledGroup, pid: int) -> bool:
    try:
        group.join(pid)
    except OSError:
        return False
    return True


def _held_limits(
    limits: ProcessLimits, group: Cgroup | PooledGroup | None
) -> dict[str, str]:
    """What enforces each limit of a process that was spawned directly."""
    enforced = group.enforced if group else {}
    held: dict[str, str] = {}
    for limit in limits.wanted():
        missing = NO_GROUP if limit == "memory" else "none: it had ended"
        held[limit] = enforced.get(limit, missing)
    return held


def _spawn_limited(
    launch: LaunchRequest, program: ExecProgram, streams: Streams, cgroup: Cgroup | None
) -> Process:
    held = cgroup.enforced if cgroup else {}
    rest = {
        limit: value
        for limit, value in launch.limits.wanted().items()
        if limit not in held
    }
    is_default = launch.limits.memory_bytes is None
    if is_default and rest.pop("memory", None):
        held = {**held, "memory": NO_GROUP}
    fallback = fall_back(rest, launch.attempt_id, _uid_of(launch))
    pid = _enter(launch, program, streams, cgroup, fallback)
    return _attach(
        launch,
        pid,
        cgroup,
        {**held, **fallback.enforcement},
        contained=cgroup is not None,
    )


def spawn_beside(
    launch: LaunchRequest,
    cgroup: Cgroup | None,
    enforced: Mapping[str, str],
    streams: Streams,
    *,
    terminal: bool,
) -> Process:
    """Start one more program of an attempt that runs, as the leader of a session of its
    own: in the attempt's groups `cgroup`, under the same limits and account.

    `launch.log` and `launch.stdin` are not used: `streams` are its input and output.
    `enforced`: what enforces each limit of the attempt (`Process.enforcement`).
    `terminal`: `streams.stdin` is the terminal of its session. Whoever calls this must
    see to it that the attempt does not end meanwhile. Of the result, use `kill_all`
    never: that ends the whole attempt. Raises LaunchError.
    """
    program = resolve(launch)
    examine(launch)
    needs_groups = launch.devices is not None or any(
        value.startswith("cgroup") for value in enforced.values()
    )
    if needs_groups and cgroup is None:
        raise LaunchError(Reason.LIMITS_FAILED, "the job's control groups are gone")
    rest = {
        limit: value
        for limit, value in launch.limits.wanted().items()
        if not enforced.get(limit, "").startswith("cgroup")
    }
    if launch.limits.memory_bytes is None:
        rest.pop("memory", None)
    fallback = fall_back(rest, launch.attempt_id, _uid_of(launch))
    try:
        pid = _enter(
            launch,
            program,
            streams,
            cgroup,
            fallback,
            terminal=terminal,
            timeout_s=_BESIDE_S,
        )
        return _attach(launch, pid, None, {})
    except OSError as error:
        raise explain(error, launch) from error


def _uid_of(launch: LaunchRequest) -> int:
    return launch.identity.account.uid if launch.identity else os.getuid()


def _enter(
    launch: LaunchRequest,
    program: ExecProgram,
    streams: Streams,
    cgroup: Cgroup | None,
    fallback: Fallback,
    *,
    terminal: bool = False,
    timeout_s: float | None = None,
) -> int:
    """Start the program through the prologue; its pid, once it executes the program.
    The prologue may take `timeout_s`.

    Raises OSError or LaunchError.
    """
    identity = launch.identity
    groups = [str(path / "cgroup.procs") for path in cgroup.paths] if cgroup else []
    orders = {
        "terminal": terminal,
        "groups": groups,
        "rlimits": fallback.rlimits,
        "cpus": fallback.cpus,
        "identity": identity.orders() if identity else None,
        "directory": os.fsdecode(program.directory),
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
            control = replace(streams, control=theirs.fileno())
            # An account enters its folder itself: root could enter any.
            start = b"/" if identity else program.directory
            pid = posix_spawn(interpreter, argv, marker, start, control)
        ours.settimeout(timeout_s)
        answer = _converse(ours, marshal.dumps(orders))
    # If the kernel killed it at its memory limit before its exec, that counts as an end
    # after the exec.
    if answer != b"exec" and not (cgroup and cgroup.oom_kills()):
        os.kill(pid, signal.SIGKILL)  # it may have been stopped, or hang
        os.waitpid(pid, 0)
        raise _refused(answer)
    return pid


def _converse(ours: socket.socket, orders: bytes) -> bytes:
    """Send the orders and read the answer to its end; an incomplete answer means that
    the process has died.
    """
    answer = b""
    with suppress(OSError):
        ours.sendall(orders)
        ours.shutdown(socket.SHUT_WR)
        while part := ours.recv(4096):
            answer += part
    return answer


def _refused(answer: bytes) -> OSError | LaunchError:
    """The error for an answer of the prologue other than a plain `exec`."""
    number = answer.removeprefix(b"exec")
    if number != answer:
        return OSError(int(number), os.strerror(int(number)))
    reason, _, message = answer.decode(errors="replace").partition(" ")
    if reason in (Reason.WORKDIR_MISSING, Reason.ACCOUNT_REFUSED):
        return LaunchError(Reason(reason), message)
    why = message or "the process died under them before it could run the program"
    return LaunchError(Reason.LIMITS_FAILED, f"the limits could not be set: {why}")


def _attach(
    launch: LaunchRequest,
    pid: int,
    cgroup: Cgroup | None,
    enforcement: dict[str, str],
    *,
    contained: bool = False,
    pooled: PooledGroup | None = None,
) -> Process:
    """The `Process` for the new process. If that fails (for lack of a descriptor, for
    example), the process is killed, because nobody else could.
    """
    try:
        start_ticks = procfs.start_ticks(pid)
        if start_ticks is None:
            raise OSError(errno.ESRCH, "/proc does not show the process just started")
        pidfd = os.pidfd_open(pid)
    except OSError:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if pooled:
            pooled.spoil()
        holding = pooled.cgroup if pooled else cgroup
        if holding:
            with suppress(OSError):  # without a free descriptor it cannot read
                holding.kill()
        raise
    return Process(
        launch.attempt_id,
        pid,
        start_ticks,
        pidfd=pidfd,
        groups=HeldGroups(cgroup, pooled=pooled),
        enforcement=enforcement,
        contained=contained,
        reaper=launch.reaper,
    )


@contextmanager
def _open_streams(launch: LaunchRequest) -> Generator[Streams]:
    output = _open_log(launch.log)
    try:
        if launch.identity:
            # The log stays root's; programs that open /dev/stdout need this.
            os.fchown(output, -1, launch.identity.account.gid)
            os.fchmod(output, 0o620)
        if launch.stdin is None:
            yield Streams(_no_input(), output)
        elif isinstance(launch.stdin, int):
            yield Streams(launch.stdin, output)
        else:
            with _in_memory(launch.stdin) as stdin:
                yield Streams(stdin.fileno(), output)
    finally:
        os.close(output)


def _open_log(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise LaunchError(
            Reason.LOG_UNWRITABLE, f"cannot write the log {path}: {error.strerror}"
        ) from error


@cache
def _no_input() -> int:
    """It stays open, because each attempt needs it."""
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _in_memory(content: bytes) -> BinaryIO:
    """A file with the content; a pipe would need a writer."""
    memory = os.fdopen(os.memfd_create("stdin"), "w+b")
    memory.write(content)
    memory.seek(0)
    return memory
