"""Browsers that have signed in with a token: the cookie holds the token, sealed.

So such a browser may do what the token may do now: it is signed out when the token is
revoked, replaced or too old. Nothing is written before it signs out.
"""

import base64
import json
import secrets
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

from gpuyard.server.sign_in.ended_cookies import EndedCookies, name_of
from gpuyard.server.sign_in.session_secret import SessionSecret

# What such a cookie begins with; a session of a provider's user has no dot.
_KIND = "token."
_NONCE_BYTES = 12
# What is sealed for one purpose opens nothing for the other. Cookies for "session" and
# "link" were sealed before they said of which user they are: they open nothing now.
_SESSION = b"sessions"
_LINK = b"links"
# How long a link that signs a browser in is good.
LINK_LASTS_S = 60.0


class _Opened(NamedTuple):
    """What was sealed, and its name among those that have ended."""

    token: str
    ends_at: float
    name: str


class TokenSessions:
    """Seals tokens into cookies that last `lasts_s` seconds, and opens them."""

    def __init__(
        self,
        secret: SessionSecret,
        lasts_s: float,
        ended: EndedCookies,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._secret = secret
        self._lasts_s = lasts_s
        self._ended = ended
        self._clock = clock

    async def seal(self, token: str, user: str | None) -> str:
        """The value of a cookie with the token of a user (None: the owner of the
        instance).
        """
        return await self._seal([token, user], self._lasts_s, _SESSION)

    async def code(self, token: str, user: str | None) -> str:
        """What signs a browser in with a user's token: once, and soon."""
        return await self._seal([token, user], LINK_LASTS_S, _LINK)

    async def redeem(self, code: str) -> str | None:
        """The token of a code, which is used up; None for one that opens nothing."""
        opened = self._open(code, _LINK)
        if opened is None:
            return None
        await self._ended.add(opened.name, opened.ends_at)
        return opened.token

    async def _seal(
        self, held: Sequence[str | None], lasts_s: float, purpose: bytes
    ) -> str:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = _key(await self._secret.get())
        content = json.dumps([*held, self._clock() + lasts_s])
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(key).encrypt(nonce, content.encode(), purpose)
        return _written(nonce + sealed)

    def open(self, cookie: str) -> str | None:
        """The token in a cookie; None if it was not sealed here, its time is over, or
        its browser was signed out.
        """
        opened = self._open(cookie, _SESSION)
        return opened.token if opened else None

    def _open(self, cookie: str, purpose: bytes) -> _Opened | None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        secret = self._secret.known()
        if secret is None or not cookie.startswith(_KIND):
            return None
        try:
            raw = base64.urlsafe_b64decode(f"{cookie.removeprefix(_KIND)}===")
            nonce = raw[:_NONCE_BYTES]
            sealed = raw[_NONCE_BYTES:]
            opened = AESGCM(_key(secret)).decrypt(nonce, sealed, purpose)
        except (InvalidTag, ValueError):
            return None
        if cookie != _written(raw):
            return None
        token, user, ends_at = json.loads(opened)
        name = name_of(user, purpose.decode(), nonce.hex())
        if self._clock() >= ends_at or self._ended.has(name, ends_at):
            return None
        return _Opened(token, ends_at, name)

    async def end(self, cookie: str) -> None:
        """Sign a browser out: its cookie opens nothing more."""
        if opened := self._open(cookie, _SESSION):
            await self._ended.add(opened.name, opened.ends_at)


def _key(secret: str) -> bytes:
    return sha256(f"gpuyard token session {secret}".encode()).digest()


def _written(raw: bytes) -> str:
    """The one way in which a cookie or a code may be written."""
    return _KIND + base64.urlsafe_b64encode(raw).decode().rstrip("=")
