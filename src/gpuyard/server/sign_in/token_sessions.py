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
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        content = json.dumps([token, self._clock() + self._lasts_s])
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(self._key).encrypt(nonce, content.encode(), None)
        return _KIND + base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def open(self, cookie: str) -> str | None:
        """The token in a cookie; None if it was not sealed here, its time is over, or
        its browser was signed out.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not cookie.startswith(_KIND) or cookie in self._ended:
            return None
        try:
            raw = base64.urlsafe_b64decode(f"{cookie.removeprefix(_KIND)}===")
            nonce = raw[:_NONCE_BYTES]
            sealed = raw[_NONCE_BYTES:]
            opened = AESGCM(self._key).decrypt(nonce, sealed, None)
        except (InvalidTag, ValueError):
            return None
        token, ends_at = json.loads(opened)
        return token if self._clock() < ends_at else None

    def end(self, cookie: str) -> None:
        """Sign a browser out: its cookie opens nothing more."""
        now = self._clock()
        while self._ended and (
            len(self._ended) >= _MOST_ENDED or next(iter(self._ended.values())) <= now
        ):
            self._ended.popitem(last=False)
        if self.open(cookie) is not None:
            self._ended[cookie] = now + self._lasts_s
