"""Lets a process of root become an account of this host, for good.

Standard library only. `node/launcher/prologue.py` does the same for jobs, in an
interpreter that cannot import gpuyard.
"""

import ctypes
import os
from pathlib import Path

from gpuyard.config.accounts import Account
from gpuyard.config.private_environment import close_to_others

_PR_SET_NO_NEW_PRIVS = 38
# The number of the system call, by kind of machine.
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271}
_JOIN_SESSION_KEYRING = 1
_POWERS = ("CapPrm", "CapEff", "CapAmb")


def become(account: Account, umask: int) -> None:
    """Become the account, with its groups, its variables of a login and no power of
    root. Its other processes cannot look into this one.

    PermissionError unless root's powers are gone afterwards; OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs is not to be had")
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    # The session keyring of root may hold keys. Some containers forbid the call; then
    # there is nothing to leave.
    libc.syscall(_KEYCTL.get(os.uname().machine, -1), _JOIN_SESSION_KEYRING, None)
    if account.uid and _has_powers():
        raise PermissionError(f"root's powers stay with {account.name} here")
    close_to_others()
    os.umask(umask)
    os.environ.update(account.environment())


def _has_powers() -> bool:
    lines = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().split("\n")
        if ":" in line
    )
    return any(int(lines[name], 16) for name in _POWERS)
