"""Which IP addresses are of the public internet."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

# Each has an IPv4 address in its last 32 bits: the first is translated by a gateway
# (RFC 6052).
_WITH_IPV4 = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))


def is_public(address: str) -> bool:
    """Whether an address is one host of the public internet, also by what an IPv6
    address stands for; ValueError if it is no address.
    """
    found = ip_address(address)
    if found.is_multicast or not found.is_global:
        return False
    if isinstance(found, IPv4Address):
        return True
    inner = _ipv4_in(found)
    return not found.is_site_local and (inner is None or is_public(str(inner)))


def _ipv4_in(address: IPv6Address) -> IPv4Address | None:
    if any(address in network for network in _WITH_IPV4):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
