"""The cookies of browsers that sign in, and whether a request of theirs is their own
page's.

Where the server has TLS, the names begin with `__Host-`: browsers then take such a
cookie from this host only, and over TLS only. Without TLS, the name holds the port,
because cookies do not tell apart what listens on other ports.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from gpuyard.domain.errors import ForbiddenError

_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
_MOST_BYTES = 8192


class Cookies:
    """The cookies of the server whose address for people is `url`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._is_secure = parts.scheme == "https"
        prefix = "__Host-gpuyard_" if self._is_secure else f"gpuyard_{parts.port}_"
        self.session = f"{prefix}session"
        self.begun = f"{prefix}sign_in"
        self.origin = _origin(url)

    def header(self, name: str, value: str, lasts_s: float) -> str:
        """`Set-Cookie`; a cookie that lasts 0 seconds is removed."""
        secure = "; Secure" if self._is_secure else ""
        return (
            f"{name}={value}; Path=/; Max-Age={int(lasts_s)}; HttpOnly;"
            f" SameSite=Lax{secure}"
        )

    def read(self, headers: Mapping[bytes, bytes], name: str) -> str | None:
        """A cookie of a request."""
        given = headers.get(b"cookie", b"")
        if len(given) > _MOST_BYTES:
            return None
        for pair in given.decode("latin-1").split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                return value or None
        return None

    def check_own_page(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        """ForbiddenError if a request that changes something, or a WebSocket, was not
        sent by a page of this server: browsers add cookies to those of other pages.
        """
        if method in _HARMLESS:
            return
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin != self.origin:
            raise ForbiddenError(
                "This request does not come from a page of this server.",
                f"Open {self.origin} itself; programs send a token.",
            )


def _origin(url: str) -> str:
    """What browsers say of pages at `url`: without the usual port."""
    parts = urlsplit(url.lower())
    usual = {"https": ":443", "http": ":80"}.get(parts.scheme, "")
    return f"{parts.scheme}://{parts.netloc.removesuffix(usual)}"
