"""Connections to servers that have proven who they are, before anything secret is sent.

Any user of this machine may take a port that a server has left, so a port of this
machine counts only if our own user or root listens there. Another machine proves itself
by TLS, or by the challenge of `config/proof.py`. `GPUYARD_INSECURE=1` trusts whoever
answers.

Standard library only.
"""

import http.client
import ipaddress
import os
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuyard.config.boot_clock import boot_id
from gpuyard.config.proof import Challenge

CONNECT_S = 5.0
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
_READ_BYTES = 1 << 16
Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
_LOCALHOST: frozenset[Ip] = frozenset(
    (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))
)


def trusts_anyone() -> bool:
    """Whether the user wants no proof of who a server is."""
    return os.environ.get("GPUYARD_INSECURE") == "1"


def is_loopback(host: str | None) -> bool:
    """Whether each machine reads `host` as itself."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def loopback_id() -> str:
    """Which loopback this process means: that of this network namespace, of this boot
    of the machine.
    """
    return f"{boot_id()}:{Path('/proc/self/ns/net').stat().st_ino}"


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """How a server proves itself by TLS: by a certificate that `ca_file` holds or has
    signed, by default by one that the system trusts.

    OSError when the file cannot be read, or holds no certificate.
    """
    context = ssl.create_default_context(cafile=ca_file or None)
    # The file may hold the server's own certificate: it is then the only one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


@dataclass(frozen=True, slots=True)
class Tls:
    """How the servers of an instance prove themselves to each other where their URLs
    are HTTPS: by `tls_context(ca_file)`, for `name` in place of the URL's host.
    """

    ca_file: str | None = None
    name: str | None = None

    def context(self) -> ssl.SSLContext:
        """OSError when the file cannot be read, or holds no certificate."""
        return tls_context(self.ca_file)


SYSTEM_TLS = Tls()


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket of this machine that accepts connections; `uid` is its user."""

    uid: int
    inode: int


def listeners(host: str, port: int) -> frozenset[Listener]:
    """Who would accept a connection to `port` at `host`, an address of this machine."""
    wanted = _LOCALHOST if host == "localhost" else {ipaddress.ip_address(host)}
    found: set[Listener] = set()
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue  # this kernel has no IPv6
        for line in lines:
            fields = line.split()
            address, _, hex_port = fields[1].partition(":")
            if fields[3] != _LISTENING or int(hex_port, 16) != port:
                continue
            listens_at = _address(address)
            if listens_at in wanted or listens_at.is_unspecified:
                found.add(Listener(int(fields[7]), int(fields[9])))
    return frozenset(found)


def _address(text: str) -> Ip:
    """An address as the kernel's tables write it: words in the machine's byte order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    address = ipaddress.ip_address(
        b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    )
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


class OwnPort:
    """A port of this machine where nobody but our own user or root may listen.

    It is made before a connection and asked after it. If the same socket listened at
    both times, it was the one that accepted the connection.
    """

    def __init__(self, host: str, port: int) -> None:
        """PermissionError when another user listens there."""
        self._host = host
        self._port = port
        self._before = listeners(host, port)
        others = {listener.uid for listener in self._before} - {os.getuid(), 0}
        if others:
            raise PermissionError(
                f"user {min(others)} listens there, who would get your token; is it"
                " an old address? GPUYARD_INSECURE=1 trusts any user"
            )

    def check(self) -> None:
        """PermissionError unless the connection made meanwhile leads to one of us."""
        if not self._before or listeners(self._host, self._port) != self._before:
            raise PermissionError("another process has begun to listen there")


def connect_to_own_port(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connection to a process of our own user, or of root, on this machine.

    OSError when none listens there; PermissionError when another user does.
    """
    if trusts_anyone():
        return socket.create_connection((host, port), timeout_s)
    own = OwnPort(host, port)
    connected = socket.create_connection((host, port), timeout_s)
    try:
        own.check()
    except BaseException:
        connected.close()
        raise
    return connected


def connect_to_member(
    url: str, token: str, tls: Tls, timeout_s: float = CONNECT_S
) -> socket.socket:
    """A connection to the server at `url`, which has proven that it is one of the
    instance: by TLS, or that it knows `token` and that this is its URL.

    OSError when nobody answers, or the proof fails.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    connected = socket.create_connection((parts.hostname, port), timeout_s)
    try:
        if secure:
            name = tls.name or parts.hostname
            return tls.context().wrap_socket(connected, server_hostname=name)
        challenge = Challenge(url, token)
        connected.sendall(challenge.request)
        while not challenge.receive(connected.recv(_READ_BYTES)):
            pass
    except BaseException:
        connected.close()
        raise
    return connected


class HttpConnection(http.client.HTTPConnection):
    """HTTP over connections that `dial` makes."""

    def __init__(
        self, netloc: str, dial: Callable[[], socket.socket], timeout_s: float
    ) -> None:
        super().__init__(netloc, timeout=timeout_s)
        self._dial = dial
        self._timeout_s = timeout_s

    def connect(self) -> None:
        """Connect to a server that has proven who it is."""
        self.sock = self._dial()
        self.sock.settimeout(self._timeout_s)
