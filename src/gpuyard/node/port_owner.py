"""Whose port it is: tells a server of an attempt from another program that listens in
its place.
"""

import os
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from gpuyard.node.launcher import procfs

_LISTENS = b"0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def _as_in_table(family: socket.AddressFamily, address: str) -> bytes:
    """An address as the tables of the kernel write it: words of the host's order."""
    packed = socket.inet_pton(family, address)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words).encode()


# Who listens at one of these may get what is sent to the loopback.
_REACHED = {
    _as_in_table(socket.AF_INET, "127.0.0.1"),
    _as_in_table(socket.AF_INET, "0.0.0.0"),
    _as_in_table(socket.AF_INET6, "::1"),
    _as_in_table(socket.AF_INET6, "::"),
    _as_in_table(socket.AF_INET6, "::ffff:127.0.0.1"),
    _as_in_table(socket.AF_INET6, "::ffff:0.0.0.0"),
}


class ForeignPortError(Exception):
    """Another program listens at the port. The text says so."""


def listeners(port: int) -> frozenset[int]:
    """The sockets, by their inodes, that listen at a port of the loopback."""
    found: set[int] = set()
    for table in _TABLES:
        for line in procfs.read_file(table).splitlines()[1:]:
            _, local, _, state, *_, inode = line.split(maxsplit=10)[:10]
            address, _, number = local.partition(b":")
            is_there = address in _REACHED and int(number, 16) == port
            if is_there and state == _LISTENS:
                found.add(int(inode))
    return frozenset(found)


def own_listeners(port: int, pids: Callable[[], Iterable[int]]) -> frozenset[int]:
    """As `listeners`; ForeignPortError unless these processes have them all."""
    found = listeners(port)
    if found and not found <= _sockets_of(pids()):
        raise ForeignPortError(f"another program listens at port {port}")
    return found


def _sockets_of(pids: Iterable[int]) -> set[int]:
    """The inodes of the sockets that processes have open."""
    found: set[int] = set()
    for pid in pids:
        # A process that has ended has none.
        with suppress(OSError):
            descriptors = os.scandir(f"/proc/{pid}/fd")
            found.update(filter(None, map(_socket_of, descriptors)))
    return found


def _socket_of(descriptor: os.DirEntry[str]) -> int | None:
    """The inode of a descriptor's socket; None of another file, and once closed."""
    try:
        target = Path(descriptor.path).readlink()
    except OSError:
        return None
    kind, _, inode = str(target).partition(":[")
    return int(inode.rstrip("]")) if kind == "socket" else None
