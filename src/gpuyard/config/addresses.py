"""Addresses in the settings."""

import re
from ipaddress import IPv6Address, ip_network
from typing import Annotated
from urllib.parse import urlsplit

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
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def _host_name(value: str) -> str:
    if not _HOST.fullmatch(value):
        try:
            IPv6Address(value)
        except ValueError:
            raise ValueError(
                f"{quoted(value)} is neither the name of a host nor an address; write"
                " one without a port, such as gpuyard.example.org or 10.0.0.5"
            ) from None
    return value


HostName = Annotated[str, AfterValidator(_host_name)]
"""The name of a host, or an IP address."""


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


# Names can be made below it: the last part of an address is a number.
_NAME = re.compile(r"([a-z0-9-]+\.)*[a-z][a-z0-9-]*")


def _url_of_tools(value: str) -> str:
    shown = quoted(value)
    try:
        parts = urlsplit(value.lower())
        port = parts.port
    except ValueError:
        raise ValueError(_no_url_of_tools(shown)) from None
    host = parts.hostname or ""
    rest = value.lower().removeprefix(f"{parts.scheme}://{host}")
    rest = rest.removeprefix(f":{port}").removesuffix("/")
    is_web = parts.scheme in ("http", "https")
    if rest or not (is_web and _NAME.fullmatch(host)):
        raise ValueError(_no_url_of_tools(shown))
    if parts.scheme == "http" and host.rpartition(".")[2] != "localhost":
        raise ValueError(
            f"{shown} has no TLS, and browsers protect no pages without it; write"
            " https://, or a name of this machine, such as http://localhost:8401"
        )
    return value


def _no_url_of_tools(shown: str) -> str:
    return (
        f"{shown} is no scheme and host below which names can be made; write one such"
        " as https://tools.example.org"
    )


UrlOfTools = Annotated[str, AfterValidator(_url_of_tools)]
"""An address below whose host each port of a job has a name."""


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
