"""Who is at the other end of a connection: its address, and on this host its user."""

import os
import pwd
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any

from gpuyard.config.sockets import peer_uid
from gpuyard.domain.errors import RefusedError
from gpuyard.server.permissions import identity_of

# From linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBBIHH16s16sIII")
# Of the answer: the state, the user and the inode.
_ANSWER = struct.Struct("=xB62xII")
_ESTABLISHED = 1
_ANY = 0xFFFFFFFF

# A client's network and its user.
CallerKey = tuple[str, int | None]
Address = tuple[str, int | None]
# Where the state of a WebSocket says who called.
CALLER = "gpuyard.caller"
# And the scope of a request, if a proxy says so (`trusted_proxies.py`).
FORWARDED_CALLER = "gpuyard.forwarded_caller"


class Peer:
    """One end of a connection."""

    def __init__(
        self,
        client: Address | None,
        server: Address | None,
        connected: socket.socket | None = None,
        *,
        is_member: bool = False,
        is_forwarded: bool = False,
    ) -> None:
        """`connected`: our end, which tells the user when it is a Unix socket.
        `is_member`: it is the socket that only members of the group can open.
        `is_forwarded`: a proxy that is trusted says that it is this one.
        """
        self.is_member = is_member
        self.is_forwarded = is_forwarded
        self.address = client[0] if client else ""
        self.network = network_of(self.address)
        self._ends = (client, server)
        self._uid: int | None = None
        if connected and connected.family == socket.AF_UNIX:
            self._uid = peer_uid(connected)

    @cached_property
    def uid(self) -> int | None:
        """The user, when it is on this host and has not left."""
        if self._uid is not None:
            return self._uid
        client, server = self._ends
        return uid_of_peer(client, server) if client and server else None

    @cached_property
    def key(self) -> CallerKey:
        """What counts as one client."""
        return self.network, self.uid

    @property
    def user(self) -> str | None:
        """The user's name, else its number; None when it is on another host."""
        return None if self.uid is None else _user_name(self.uid)


def caller_of(scope: Mapping[str, Any]) -> Peer:
    """Who sent a request."""
    if FORWARDED_CALLER in scope:
        return scope[FORWARDED_CALLER]
    connection = scope.get("gpuyard.connection")
    if connection is not None:
        return connection.caller
    if CALLER in scope.get("state", ()):
        return scope["state"][CALLER]
    return Peer(scope.get("client"), scope.get("server"))


def submitter_of(scope: Mapping[str, Any]) -> str | None:
    """The user whose request it is; None for the owner of the instance.

    RefusedError for a number without a name.
    """
    caller = caller_of(scope)
    identity = identity_of(scope)
    if identity.sender or not caller.is_member or caller.uid is None:
        return identity.user
    try:
        # Not from memory: a number may have got another name.
        return pwd.getpwuid(caller.uid).pw_name
    except KeyError:
        raise RefusedError(
            f"The user with the number {caller.uid} has no name on this machine.",
            "Ask an administrator.",
        ) from None


def uid_of_peer(client: Address, server: Address) -> int | None:
    """The user whose socket `client` is; None when it is not on this host, or has been
    closed: then the kernel says that it is root's.

    The kernel is asked for this one socket, so it costs the same however many there
    are.
    """
    family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
    if client[1] is None or server[1] is None:
        return None
    try:
        source = socket.inet_pton(family, client[0]).ljust(16, b"\0")
        target = socket.inet_pton(family, server[0]).ljust(16, b"\0")
        ports = [socket.htons(client[1]), socket.htons(server[1])]
        question = _QUESTION.pack(
            family,
            socket.IPPROTO_TCP,
            0,
            0,
            _ANY,
            *ports,
            source,
            target,
            0,
            _ANY,
            _ANY,
        )
        header = _HEADER.pack(
            _HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0
        )
        kernel = _kernel()
        kernel.send(header + question)
        answer = kernel.recv(4096)
    except OSError:
        _kernel.cache_clear()
        return None
    kind = _HEADER.unpack_from(answer)[1]
    if kind != _SOCK_DIAG_BY_FAMILY:
        return None
    state, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    return uid if state == _ESTABLISHED and inode else None


@cache
def _kernel() -> socket.socket:
    """Where the kernel is asked; it answers at once."""
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
    kernel.setblocking(False)
    return kernel


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """All addresses that one client can have at will."""
    with suppress(ValueError):
        parsed = ip_address(address)
        if parsed.is_loopback:
            return "loopback"
        if isinstance(parsed, IPv6Address):
            return parsed.exploded[:19]
    return address


@lru_cache(maxsize=256)
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def is_own_user(caller: Peer) -> bool:
    """Whether the caller may read this server's files anyway, the token with them."""
    return caller.uid in (0, os.geteuid())
