"""Commands that sign in through a browser, perhaps on another machine (RFC 8628).

The command gets two codes. The long one is its own: it asks with it until it is told
its token. The short one a person types, or follows, in a browser where they are signed
in; they see which machine asks, and say yes or no. Neither code is kept as it is.
"""

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from gpuyard.domain.errors import NotFoundError, TooManyRequestsError
from gpuyard.server.callers import CallerKey

LASTS_S = 600.0
# So long the command waits between two questions; sooner ones make it wait longer.
INTERVAL_S = 2.0
_SLOWER_S = 5.0
# Without vowels, so that they make no words; and nothing that looks like a digit.
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_LENGTH = 8
# So many codes may wait at a time, of one address and in all.
MOST_OF_ADDRESS = 50
MOST = 2000
# So often one code is looked at, and so many wrong ones a user may type in `LASTS_S`.
MOST_LOOKS = 20
MOST_WRONG = 10


@dataclass(slots=True)
class Grant:
    """What one command asks for. `host` is what it calls its machine, `address` where
    it is; `user` is who has said yes.
    """

    host: str
    address: str
    caller: CallerKey | None
    ends_at: float
    # The digest of its short code.
    short: str = ""
    user: str | None = None
    # Who that was to the provider.
    subject: str | None = None
    denied: bool = False
    looks: int = 0
    interval_s: float = INTERVAL_S
    next_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of a command, which are told once."""

    device_code: str
    user_code: str


class DeviceError(Exception):
    """Why a command has no token; the code is one of RFC 8628."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Devices:
    """All commands that wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        # By the digests of the long codes; and these by those of the short ones.
        self._grants: dict[str, Grant] = {}
        self._long: dict[str, str] = {}
        self._wrong: dict[str, list[float]] = {}

    # --- the command ---

    def ask(self, host: str, address: str, caller: CallerKey | None) -> Codes:
        """A command wants to sign in; without `caller`, it is not known from where.
        TooManyRequestsError.
        """
        self._forget()
        of_address = 0
        if caller is not None:
            of_address = sum(one.caller == caller for one in self._grants.values())
        if of_address >= MOST_OF_ADDRESS or len(self._grants) >= MOST:
            raise TooManyRequestsError(
                "Too many commands wait for someone to sign them in.",
                "Try again in ten minutes.",
            )
        device_code = secrets.token_urlsafe(32)
        user_code = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
        now = self._clock()
        digest = self._digest(device_code)
        short = self._digest(user_code)
        self._grants[digest] = Grant(host, address, caller, now + LASTS_S, short)
        self._long[short] = digest
        return Codes(device_code, shown_code(user_code))

    def redeem(self, device_code: str) -> Grant:
        """The grant of a command that asks; it is used up then. DeviceError while it
        must wait, or for good.
        """
        digest = self._digest(device_code)
        grant = self._grants.get(digest)
        now = self._clock()
        if grant is None or now >= grant.ends_at:
            raise DeviceError("expired_token")
        if grant.denied:
            self._drop(digest)
            raise DeviceError("access_denied")
        if now < grant.next_at:
            grant.interval_s += _SLOWER_S
            grant.next_at = now + grant.interval_s
            raise DeviceError("slow_down")
        # A command that waits as long as it was told is a little early at times.
        grant.next_at = now + grant.interval_s * 0.8
        if grant.user is None:
            raise DeviceError("authorization_pending")
        self._drop(digest)
        return grant

    # --- the person ---

    def look(self, user_code: str, user: str) -> Grant:
        """What waits under a code that a user has typed. NotFoundError; after many
        wrong codes, TooManyRequestsError.
        """
        self._refuse_guesses(user)
        digest = self._long.get(self._digest(_plain(user_code)))
        grant = self._grants.get(digest) if digest else None
        if grant is None or digest is None or self._clock() >= grant.ends_at:
            self._wrong.setdefault(user, []).append(self._clock())
            raise NotFoundError(
                "No command waits under this code: it has expired, was used, or is"
                " mistyped.",
                "Look at what `gpuyard login` says, or start it again.",
            )
        grant.looks += 1
        if grant.looks > MOST_LOOKS:
            self._drop(digest)
        return grant

    def decide(
        self, user_code: str, user: str, *, allow: bool, subject: str | None = None
    ) -> Grant:
        """The user says whether it is their command. NotFoundError, also when somebody
        has decided already.
        """
        grant = self.look(user_code, user)
        if grant.user is not None or grant.denied:
            raise NotFoundError(
                "This code was used already.", "Start `gpuyard login` again."
            )
        if allow:
            grant.user = user
            grant.subject = subject
        else:
            grant.denied = True
        return grant

    def _refuse_guesses(self, user: str) -> None:
        since = self._clock() - LASTS_S
        recent = [at for at in self._wrong.get(user, []) if at > since]
        self._wrong[user] = recent
        if len(recent) >= MOST_WRONG:
            raise TooManyRequestsError(
                "Too many wrong codes were typed.", "Try again in ten minutes."
            )

    # --- memory ---

    def _digest(self, code: str) -> str:
        return hmac.new(self._key, code.encode(), sha256).hexdigest()

    def _forget(self) -> None:
        now = self._clock()
        for digest, grant in list(self._grants.items()):
            if now >= grant.ends_at:
                self._drop(digest)

    def _drop(self, digest: str) -> None:
        grant = self._grants.pop(digest, None)
        if grant is not None:
            del self._long[grant.short]


def shown_code(user_code: str) -> str:
    """A code as it is shown, and nothing that somebody has written beside it."""
    plain = _plain(user_code)[:_LENGTH]
    return f"{plain[:4]}-{plain[4:]}"


def _plain(user_code: str) -> str:
    """A code as it was made, however it was typed."""
    return "".join(letter for letter in user_code.upper() if letter in _LETTERS)
