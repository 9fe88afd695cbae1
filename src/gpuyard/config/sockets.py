"""Unix sockets at paths of any length, and who is at their other end; connections whose
other end dies without a word.

Standard library only.
"""

import grp
import os
import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

# After a minute without a word the kernel asks the other end whether it lives, and
# gives it up after another.
_KEEPALIVE = {
    socket.TCP_KEEPIDLE: 60,
    socket.TCP_KEEPINTVL: 15,
    socket.TCP_KEEPCNT: 4,
}


def keep_alive(connected: socket.socket) -> None:
    """Let a connection end when its other end has died or cannot be reached."""
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


def listening_socket(path: Path, backlog: int = 128) -> socket.socket:
    """A socket bound to `path`, which only this user may open.

    What stands at `path` is replaced.
    """
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        with short_path(path) as short:
            bound.bind(short)
        path.chmod(0o600)
        bound.listen(backlog)
    except BaseException:
        bound.close()
        raise
    return bound


def socket_of_group(path: Path, group: str, backlog: int = 128) -> socket.socket:
    """A socket bound to `path`, which the members of `group` may open.

    KeyError when there is no such group. Its name is `path` itself, so `path` must not
    be longer than an address.
    """
    number = grp.getgrnam(group).gr_gid
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        before = os.umask(0o177)
        try:
            bound.bind(os.fspath(path))
        finally:
            os.umask(before)
        os.chown(path, -1, number)
        path.chmod(0o660)
        bound.listen(backlog)
    except BaseException:
        bound.close()
        raise
    return bound


def connected_socket(path: Path, owner: int | None = None) -> socket.socket:
    """A connection to the process that listens at `path`.

    OSError when none does, or when too many wait for it; PermissionError when it
    belongs to another user than `owner`, root or our own.
    """
    connected = socket.socket(socket.AF_UNIX)
    connected.setblocking(False)
    try:
        with short_path(path) as short:
            connected.connect(short)
        refuse_other_users(connected, owner)
    except BaseException:
        connected.close()
        raise
    return connected


def refuse_other_users(connected: socket.socket, owner: int | None = None) -> None:
    """PermissionError unless our own user, root or `owner` is at the other end."""
    uid = peer_uid(connected)
    if uid not in (os.getuid(), 0, owner):
        raise PermissionError(f"user {uid} is at the other end of the socket")


def peer_uid(connected: socket.socket) -> int:
    """The user at the other end of a Unix socket."""
    found = connected.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    _pid, uid, _gid = _CREDENTIALS.unpack(found)
    return int(uid)


@contextmanager
def short_path(path: Path) -> Generator[str]:
    """A short name of `path`: an address of a socket has room for 107 bytes only."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
