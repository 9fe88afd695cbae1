"""Links to artifacts for people without a token. Each opens one artifact until a time,
or until somebody ends it.

A link is signed. The key is in the ledger, so every server of the instance opens what
another one has issued, also after that is gone. With a new key, the links of before
open nothing any more. What was removed is not opened either.

The ledger also has a list of each artifact's links that live, by their ids: a link that
is not in it opens nothing. Links of gpuyard before there were lists have no id; they
open their artifact until they expire.
"""

import asyncio
import base64
import hashlib
import hmac
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from gpuyard.domain.artifacts import LINKS_NOTE, links_note
from gpuyard.domain.errors import ForbiddenError, NotFoundError, RefusedError

LINK_PATH = "/shared/artifact"
MOST_LINKS = 1000
"""So many links of one artifact may live at a time."""
_KEY_BYTES = 32
_ID_BYTES = 8


class IssuedLink(msgspec.Struct, frozen=True):
    """What the list says of a link. Times are UTC seconds; without `made_by`, it is of
    the owner of the instance.
    """

    id: str
    made_by: str | None
    created_at: float
    expires_at: int


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    """What is signed. Links from before there were lists have no id."""

    artifact_id: str
    expires_at: int
    id: str = ""


class _Listed(msgspec.Struct, frozen=True):
    """A note: the links of an artifact that were signed with the key of this
    fingerprint.
    """

    key: str
    links: list[IssuedLink]


class ArtifactLinks:
    """Issues links and reads them, on the server that leads.

    `note(name)` gives a note of the ledger, empty if there is none; `keep(name, body)`
    returns when one is committed.
    """

    def __init__(
        self,
        note: Callable[[str], Mapping[str, Any]],
        keep: Callable[[str, Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        self._note = note
        self._keep = keep
        self._key = ""
        # Lists are read, changed and kept: one at a time.
        self._changing = asyncio.Lock()

    async def issue(
        self, artifact_id: str, expires_at: float, made_by: str | None, now: float
    ) -> IssuedLink:
        """A new link. Times are UTC seconds. RefusedError where very many live."""
        async with self._changing:
            key = self._known_key() or await self._renew()
            living = self.living(artifact_id, now)
            if len(living) >= MOST_LINKS:
                raise RefusedError(
                    f"{MOST_LINKS} links to this artifact have not expired.",
                    "End some of them first.",
                )
            link_id = secrets.token_hex(_ID_BYTES)
            made = IssuedLink(link_id, made_by, now, math.ceil(expires_at))
            await self._list(artifact_id, key, [*living, made])
        return made

    def url(self, server: str, artifact_id: str, link: IssuedLink) -> str:
        """Where a link leads on the server at the URL `server`."""
        signed = _Signed(artifact_id, link.expires_at, link.id)
        content = _encoded(msgspec.json.encode(signed))
        query = urlencode(
            {"link": f"{content}.{_signature(self._known_key(), content)}"}
        )
        return f"{server.rstrip('/')}{LINK_PATH}?{query}"

    def living(self, artifact_id: str, now: float) -> list[IssuedLink]:
        """The links that open an artifact now, the oldest first."""
        body = self._note(links_note(artifact_id))
        if not body:
            return []
        listed = msgspec.convert(body, _Listed)
        if listed.key != _fingerprint(self._known_key()):
            return []
        return [link for link in listed.links if now < link.expires_at]

    async def end(self, artifact_id: str, link_id: str, now: float) -> None:
        """Let one link open nothing any more. NotFoundError if it does not live."""
        async with self._changing:
            living = self.living(artifact_id, now)
            others = [link for link in living if link.id != link_id]
            if len(others) == len(living):
                raise NotFoundError(
                    f"No link {link_id!r} opens this artifact.",
                    "It has expired, or was ended already.",
                )
            await self._list(artifact_id, self._known_key(), others)

    def read(self, link: str, now: float) -> str:
        """The id of the artifact that a link opens; ForbiddenError. `link`: its query
        of this name.
        """
        content, _, signature = link.partition(".")
        given = signature.encode(errors="replace")
        key = self._known_key()
        # Without a key, no link was ever issued.
        expected = _signature(key or secrets.token_hex(_KEY_BYTES), content)
        if not hmac.compare_digest(given, expected.encode()):
            raise not_open()
        decoded = base64.urlsafe_b64decode(content + "=" * (-len(content) % 4))
        signed = msgspec.json.decode(decoded, type=_Signed)
        if now >= signed.expires_at or not self._lives(signed, now):
            raise not_open()
        return signed.artifact_id

    async def end_all(self) -> None:
        """Let all links that there are open nothing any more."""
        async with self._changing:
            await self._renew()

    def _lives(self, signed: _Signed, now: float) -> bool:
        """Whether nobody has ended it."""
        if not signed.id:
            return True
        living = self.living(signed.artifact_id, now)
        return any(link.id == signed.id for link in living)

    async def _list(
        self, artifact_id: str, key: str, links: Sequence[IssuedLink]
    ) -> None:
        listed = _Listed(_fingerprint(key), list(links))
        await self._keep(links_note(artifact_id), msgspec.to_builtins(listed))

    def _known_key(self) -> str:
        """The key; empty if there is none yet. Only who leads changes it."""
        if not self._key:
            self._key = str(self._note(LINKS_NOTE).get("key", ""))
        return self._key

    async def _renew(self) -> str:
        key = secrets.token_hex(_KEY_BYTES)
        await self._keep(LINKS_NOTE, {"key": key})
        self._key = key
        return key


def not_open() -> ForbiddenError:
    """What all say who come with a link that opens nothing: it tells nobody why."""
    return ForbiddenError(
        "This link does not open anything: it was altered, it has expired or was ended,"
        " or its file was removed.",
        "Ask for a new one: `gpuyard artifacts share` makes it.",
    )


def _fingerprint(key: str) -> str:
    """Tells keys apart, and says nothing of them."""
    return hashlib.sha256(f"fingerprint {key}".encode()).hexdigest()[:16]


def _signature(key: str, content: str) -> str:
    text = f"gpuyard artifact link\n{content}"
    encoded = text.encode(errors="replace")
    return hmac.new(bytes.fromhex(key), encoded, hashlib.sha256).hexdigest()


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
