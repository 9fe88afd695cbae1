"""The names under which this server may be asked.

A page of somebody else's can let its own name lead to this host (DNS rebinding); a
browser then shows that page what the server answers. It still sends the page's name as
`Host`.
"""

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from gpuyard.domain.errors import WrongHostError, quoted


class HostNames:
    """`names`: further ones; `urls`: the server's own addresses.

    An address is no name that could lead elsewhere, and a name without a dot is nobody
    else's.
    """

    def __init__(self, names: Iterable[str], urls: Iterable[str]) -> None:
        own = {urlsplit(url).hostname or "" for url in urls}
        self._names = {name.lower().rstrip(".") for name in (*names, *own)}
        # What clients send again and again is looked at once.
        self._known: set[bytes] = set()

    def check(self, header: bytes) -> None:
        """WrongHostError when `Host` names something else."""
        if header in self._known:
            return
        host = _without_port(header.decode("latin-1")).lower().rstrip(".")
        if not self._admits(host):
            raise WrongHostError(
                f"This server is not {quoted(host)}.",
                "Ask it by its address, or add the name to `hosts` in `[server]`.",
            )
        if len(self._known) < 1024:
            self._known.add(header)

    def _admits(self, host: str) -> bool:
        if host in self._names or "." not in host.strip("[]"):
            return host != ""
        with suppress(ValueError):
            ip_address(host.strip("[]"))
            return True
        return host.endswith(".localhost")


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0]
