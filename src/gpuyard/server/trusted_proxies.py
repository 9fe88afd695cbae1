"""Who is behind a proxy: the address that a proxy names counts only if the settings
name the proxy, because anybody can send the header.
"""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from gpuyard.server.callers import FORWARDED_CALLER, Peer, caller_of

_HEADER = b"x-forwarded-for"
_MOST_BYTES = 2000


class TrustedProxies:
    """The proxies in these networks (`10.0.0.5`, `10.1.0.0/16`)."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ip_network(text, strict=False) for text in networks]

    def caller_of(self, scope: dict[str, Any]) -> Peer:
        """Who sent a request, also through proxies; `callers.caller_of` says the same
        from then on.
        """
        direct = caller_of(scope)
        if not self._networks or not self._trusts(_address(direct.address)):
            return direct
        named = self._named(scope)
        if named is None:
            return direct
        behind = Peer((str(named), None), None, is_forwarded=True)
        scope[FORWARDED_CALLER] = behind
        return behind

    def _named(self, scope: Mapping[str, Any]) -> IPv4Address | IPv6Address | None:
        """The last address in the header that is no proxy of ours: what stands before
        that, the client may have written itself.
        """
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        given = b",".join(value for name, value in headers if name == _HEADER)
        words = given[-_MOST_BYTES:].decode("latin-1").split(",")
        if len(given) > _MOST_BYTES:
            del words[0]  # it may be cut
        for word in reversed(words):
            address = _address(word.strip())
            if not self._trusts(address):
                return address
        return None

    def _trusts(self, address: IPv4Address | IPv6Address | None) -> bool:
        return address is not None and any(
            address in network for network in self._networks
        )


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """An address; None for anything else. One of IPv4 that is written as IPv6 is that
    of IPv4.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
