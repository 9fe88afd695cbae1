"""Links to artifacts for people without a token. Each opens one artifact until a time.

A link is signed and stored nowhere. The key is in the ledger, so every server of the
instance opens what another one has issued, also after that is gone. With a new key, the
links of before open nothing any more. What was removed is not opened either.
"""

import asyncio
import base64
import hashlib
import hmac
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from gpuyard.domain.errors import ForbiddenError

LINK_PATH = "/shared/artifact"
# The note of the ledger that has the key.
_NOTE = "artifact_links"
_KEY_BYTES = 32


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
        self._renewing = asyncio.Lock()

    async def issue(self, server: str, artifact_id: str, expires_at: float) -> str:
        """A link to the server at the URL `server`. `expires_at`: in UTC seconds."""
        async with self._renewing:
            key = self._known_key() or await self._renew()
        content = _encoded(msgspec.json.encode([artifact_id, math.ceil(expires_at)]))
        query = urlencode({"link": f"{content}.{_signature(key, content)}"})
        return f"{server.rstrip('/')}{LINK_PATH}?{query}"

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
        artifact_id, expires_at = msgspec.json.decode(decoded, type=tuple[str, int])
        if now >= expires_at:
            raise not_open()
        return artifact_id

    async def end_all(self) -> None:
        """Let all links that there are open nothing any more."""
        async with self._renewing:
            await self._renew()

    def _known_key(self) -> str:
        """The key; empty if there is none yet. Only who leads changes it."""
        if not self._key:
            self._key = str(self._note(_NOTE).get("key", ""))
        return self._key

    async def _renew(self) -> str:
        key = secrets.token_hex(_KEY_BYTES)
        await self._keep(_NOTE, {"key": key})
        self._key = key
        return key


def not_open() -> ForbiddenError:
    """What all say who come with a link that opens nothing: it tells nobody why."""
    return ForbiddenError(
        "This link does not open anything: it was altered, it has expired, or its file"
        " was removed.",
        "Ask for a new one: `gpuyard artifacts share` makes it.",
    )


def _signature(key: str, content: str) -> str:
    text = f"gpuyard artifact link\n{content}"
    encoded = text.encode(errors="replace")
    return hmac.new(bytes.fromhex(key), encoded, hashlib.sha256).hexdigest()


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
