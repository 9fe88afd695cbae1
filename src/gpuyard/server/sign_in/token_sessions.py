"""Browsers that have signed in with a token: the cookie holds the token, sealed.

So such a browser may do what the token may do now: it is signed out when the token is
revoked, replaced or too old, and nothing has to be written for it.
"""

import base64
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

# What such a cookie begins with; a session of a provider's user has no dot.
_KIND = "token."
_NONCE_BYTES = 12
# What is sealed for one purpose opens nothing for the other.
_SESSION = b"session"
_LINK = b"link"
# How long a link that signs a browser in is good.
LINK_LASTS_S = 60.0
_MOST_ENDED = 4096


class TokenSessions:
    """Seals tokens into cookies that last `lasts_s` seconds, and opens them. `secret`
    is known to all servers of the instance.
    """

    def __init__(
        self, secret: str, lasts_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._key = sha256(f"gpuyard token session {secret}".encode()).digest()
        self._lasts_s = lasts_s
        self._clock = clock
        # The cookies of browsers that were signed out, with the ends of their times.
        self._ended: OrderedDict[str, float] = OrderedDict()

    def seal(self, token: str) -> str:
        """The value of a cookie."""
        return self._seal(token, self._lasts_s, _SESSION)

    def code(self, token: str) -> str:
        """What signs a browser in with a token: once, and soon."""
        return self._seal(token, LINK_LASTS_S, _LINK)

    def redeem(self, code: str) -> str | None:
        """The token of a code, which is used up; None for one that opens nothing."""
        token = self._open(code, _LINK)
        if token is not None:
            self._keep_ended(code)
        return token

    def _seal(self, token: str, lasts_s: float, purpose: bytes) -> str:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        content = json.dumps([token, self._clock() + lasts_s])
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(self._key).encrypt(nonce, content.encode(), purpose)
        return _written(nonce + sealed)

    def open(self, cookie: str) -> str | None:
        """The token in a cookie; None if it was not sealed here, its time is over, or
        its browser was signed out.
        """
        return self._open(cookie, _SESSION)

    def _open(self, cookie: str, purpose: bytes) -> str | None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not cookie.startswith(_KIND) or cookie in self._ended:
            return None
        try:
            raw = base64.urlsafe_b64decode(f"{cookie.removeprefix(_KIND)}===")
            nonce = raw[:_NONCE_BYTES]
            sealed = raw[_NONCE_BYTES:]
            opened = AESGCM(self._key).decrypt(nonce, sealed, purpose)
        except (InvalidTag, ValueError):
            return None
        if cookie != _written(raw):
            return None  # written in another way, what has ended would open again
        token, ends_at = json.loads(opened)
        return token if self._clock() < ends_at else None

    def end(self, cookie: str) -> None:
        """Sign a browser out: its cookie opens nothing more."""
        if self.open(cookie) is not None:
            self._keep_ended(cookie)

    def _keep_ended(self, cookie: str) -> None:
        now = self._clock()
        while self._ended and (
            len(self._ended) >= _MOST_ENDED or next(iter(self._ended.values())) <= now
        ):
            self._ended.popitem(last=False)
        self._ended[cookie] = now + self._lasts_s


def _written(raw: bytes) -> str:
    """The one way in which a cookie or a code may be written."""
    return _KIND + base64.urlsafe_b64encode(raw).decode().rstrip("=")
