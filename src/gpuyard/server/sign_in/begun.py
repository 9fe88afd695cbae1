"""What a sign-in at the provider is compared with when the browser comes back.

It is in a cookie of that browser, sealed, and nowhere else: so nobody fills the
server's memory by beginning sign-ins, and nobody brings in another browser a sign-in to
an end that was begun in this one.
"""

import base64
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from gpuyard.domain.errors import InvalidInputError, UnauthorizedError

# How long a person may take at the provider.
LASTS_S = 600.0
HOME = "/auth"
_NONCE_BYTES = 12
_MOST_USED = 4096
_MOST_NEXT = 512


@dataclass(frozen=True, slots=True)
class Begun:
    """A sign-in that has begun: what its answer is compared with. `verifier` is that of
    PKCE.
    """

    state: str
    nonce: str
    verifier: str

    @classmethod
    def new(cls) -> "Begun":
        """A new one, which nobody can guess."""
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))

    @property
    def challenge(self) -> str:
        """What the provider is told of the verifier."""
        digest = sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class Seal:
    """Seals and opens what stands in the cookie. `secret` is of one server: a sign-in
    ends where it began.
    """

    def __init__(self, secret: str, clock: Callable[[], float] = time.time) -> None:
        self._key = sha256(f"gpuyard sign-in {secret}".encode()).digest()
        self._clock = clock
        # The states that have come back, with the ends of their times.
        self._used: OrderedDict[str, float] = OrderedDict()

    def close(self, begun: Begun, next_path: str) -> str:
        """The value of the cookie."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        ends_at = self._clock() + LASTS_S
        content = [begun.state, begun.nonce, begun.verifier, next_path, ends_at]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(self._key).encrypt(nonce, json.dumps(content).encode(), None)
        return base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def open(self, cookie: str | None, state: str) -> tuple[Begun, str]:
        """What was begun with this `state`, and where to go on. It opens once.
        UnauthorizedError.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            raw = base64.urlsafe_b64decode(f"{cookie or ''}===")
            opened = AESGCM(self._key).decrypt(
                raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], None
            )
        except (InvalidTag, ValueError):
            raise _other_browser() from None
        begun_state, nonce, verifier, next_path, ends_at = json.loads(opened)
        if not hmac.compare_digest(begun_state.encode(), state.encode()):
            raise _other_browser()
        now = self._clock()
        self._forget(now)
        if now >= ends_at or state in self._used:
            raise UnauthorizedError(
                "This sign-in is over: it took too long, or was used before.",
                "Sign in again.",
            )
        self._used[state] = ends_at
        return Begun(begun_state, nonce, verifier), next_path

    def _forget(self, now: float) -> None:
        while self._used:
            state, ends_at = next(iter(self._used.items()))
            if ends_at > now and len(self._used) < _MOST_USED:
                return
            del self._used[state]


def checked_next(path: str | None) -> str:
    """Where to go after a sign-in: a path of this server. InvalidInputError."""
    if not path:
        return HOME
    is_own = path.startswith("/") and not path.startswith("//") and "\\" not in path
    is_plain = path.isascii() and path.isprintable() and " " not in path
    if not is_own or not is_plain or len(path) > _MOST_NEXT:
        raise InvalidInputError.of(
            "next", "is no path of this server", "give one such as /auth"
        )
    return path


def _other_browser() -> UnauthorizedError:
    return UnauthorizedError(
        "This browser has not begun this sign-in, or does not keep cookies.",
        "Sign in again, at the address of the server that its administrator gives.",
    )
