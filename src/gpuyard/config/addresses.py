"""Addresses in the settings."""

from ipaddress import ip_network
from typing import Annotated

from pydantic import AfterValidator

from gpuyard.domain.errors import quoted


def _host_and_port(value: str) -> str:
    host, colon, port = value.rpartition(":")
    # At the next port machines ask to join.
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65535):
        raise ValueError(
            f"{quoted(value)} is no HOST:PORT; write an address of this machine and a"
            " port, such as 0.0.0.0:7433"
        )
    return value


HostAndPort = Annotated[str, AfterValidator(_host_and_port)]


def _loopback_and_port(value: str) -> str:
    host = _host_and_port(value).rpartition(":")[0]
    if host not in ("127.0.0.1", "[::1]", "localhost"):
        raise ValueError(
            f"{quoted(value)} is reached from other machines, and this port speaks"
            " plain HTTP; write 127.0.0.1:PORT, and let a proxy with TLS lead there"
        )
    return value


LoopbackAndPort = Annotated[str, AfterValidator(_loopback_and_port)]
"""An address of this machine that no other one reaches."""


def _network(value: str) -> str:
    try:
        ip_network(value, strict=False)
    except ValueError:
        raise ValueError(
            f"{quoted(value)} is neither an address nor a network; write one such as"
            " 10.0.0.5 or 10.1.0.0/16"
        ) from None
    return value


Network = Annotated[str, AfterValidator(_network)]
"""An IP address, or a network of them."""
