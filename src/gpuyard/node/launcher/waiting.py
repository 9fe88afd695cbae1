"""How a child ended and what it used, in one system call that leaves it a zombie.

`os.waitid` does not tell what a child used, and `os.wait4` reaps it. The system call
itself can do both.
"""

import ctypes
import os
from dataclasses import dataclass

from gpuyard.node.launcher import procfs

# The number of the system call, by kind of machine.
_WAITID = {"x86_64": 247, "aarch64": 95, "ppc64le": 272}.get(os.uname().machine)
_LEAVE_ZOMBIE = os.WEXITED | os.WNOHANG | os.WNOWAIT

_libc = ctypes.CDLL(None, use_errno=True)


class _SignalInfo(ctypes.Structure):
    """The beginning of the kernel's siginfo_t for SIGCHLD; all of it has 128 bytes."""

    _fields_ = (
        ("signo", ctypes.c_int),
        ("errno", ctypes.c_int),
        ("code", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("pid", ctypes.c_int),
        ("uid", ctypes.c_uint),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 100),
    )


class _ResourceUsage(ctypes.Structure):
    """The kernel's struct rusage: times in seconds and microseconds."""

    _fields_ = (
        ("user_s", ctypes.c_long),
        ("user_us", ctypes.c_long),
        ("system_s", ctypes.c_long),
        ("system_us", ctypes.c_long),
        ("rest", ctypes.c_long * 14),
    )


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended: with a `code` or by a `signal`; and the CPU seconds of its own
    and of the children that it waited for.
    """

    code: int | None
    signal: int | None
    cpu_s: float


def peek(pid: int) -> ChildEnd | None:
    """How a child ended; None while it runs. Raises ChildProcessError for what is no
    child, or is reaped.
    """
    if _WAITID is None:
        return _peek_in_two_calls(pid)
    info = _SignalInfo()
    usage = _ResourceUsage()
    failed = _libc.syscall(
        _WAITID,
        os.P_PID,
        pid,
        ctypes.byref(info),
        _LEAVE_ZOMBIE,
        ctypes.byref(usage),
    )
    if failed:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    if info.pid == 0:
        return None
    seconds = usage.user_s + usage.system_s
    microseconds = usage.user_us + usage.system_us
    return _end(info.code, info.status, seconds + microseconds / 1e6)


def _peek_in_two_calls(pid: int) -> ChildEnd | None:
    result = os.waitid(os.P_PID, pid, _LEAVE_ZOMBIE)
    if result is None:
        return None
    zombie = procfs.stat(pid)
    return _end(result.si_code, result.si_status, zombie.cpu_s if zombie else 0.0)


def _end(how: int, status: int, cpu_s: float) -> ChildEnd:
    if how == os.CLD_EXITED:
        return ChildEnd(status, None, cpu_s)
    return ChildEnd(None, status, cpu_s)
