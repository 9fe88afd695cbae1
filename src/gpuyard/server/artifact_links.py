"""Links to artifacts for people without a token. Each opens one artifact until a time.

A link is signed and stored nowhere, so every server of the instance can check it. Its
key is derived from the token of the server that has issued it: with another token, its
links open nothing any more. What was removed is not opened either.
"""

import base64
import hashlib
import hmac
import math
from collections.abc import Sequence
from urllib.parse import urlencode

import msgspec

from gpuyard.domain.errors import ForbiddenError

LINK_PATH = "/shared/artifact"


def issue(digest: str, server: str, artifact_id: str, expires_at: float) -> str:
    """A link to the server at the URL `server`. `digest`: of its token
    (`config/proof.py`); `expires_at`: in UTC seconds.
    """
    content = _encoded(msgspec.json.encode([artifact_id, math.ceil(expires_at)]))
    query = urlencode({"link": f"{content}.{_signature(digest, content)}"})
    return f"{server.rstrip('/')}{LINK_PATH}?{query}"


def read(digests: Sequence[str], link: str, now: float) -> str:
    """The id of the artifact that a link opens which one of the servers with these
    digests has issued; ForbiddenError. `link`: its query of this name.
    """
    content, _, signature = link.partition(".")
    given = signature.encode(errors="replace")
    # Each is compared, as in `AppState.admits`.
    matches = [
        hmac.compare_digest(given, _signature(digest, content).encode())
        for digest in digests
    ]
    if not any(matches):
        raise not_open()
    decoded = base64.urlsafe_b64decode(content + "=" * (-len(content) % 4))
    artifact_id, expires_at = msgspec.json.decode(decoded, type=tuple[str, int])
    if now >= expires_at:
        raise not_open()
    return artifact_id


def not_open() -> ForbiddenError:
    """What all say who come with a link that opens nothing: it tells nobody why."""
    return ForbiddenError(
        "This link does not open anything: it was altered, it has expired, or its file"
        " was removed.",
        "Ask for a new one: `gpuyard artifacts share` makes it.",
    )


def _signature(digest: str, content: str) -> str:
    text = f"gpuyard artifact link\n{content}"
    key = digest.encode()
    return hmac.new(key, text.encode(errors="replace"), hashlib.sha256).hexdigest()


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
