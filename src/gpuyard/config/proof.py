"""The challenge by which a server proves itself before it is told a token.

The caller sends a random number. The server answers with its HMAC under the digest of
the token, which servers of an instance have of each other; the server's own URL is part
of it. So a stranger at that URL can neither answer nor have another server answer for
it, and a caller without the token learns nothing that helps to find it.

It proves who answers, not that nobody listens on the way: only TLS does that.

Standard library only.
"""

import hashlib
import hmac
import json
import re
import secrets
from urllib.parse import urlsplit

PATH = "/api/v1/server/proof"
NONCE = "[0-9a-f]{64}"
_MAX_ANSWER_BYTES = 1 << 14


def digest_of(token: str) -> str:
    """The digest by which servers know a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def key_id(digest: str) -> str:
    """A name of the token with this digest; it tells nothing of it."""
    return hashlib.sha256(f"gpuyard key {digest}".encode()).hexdigest()[:32]


def proof(digest: str, nonce: str, url: str) -> str:
    """The answer of the server at `url`."""
    text = f"gpuyard proof\n{nonce}\n{url.rstrip('/')}"
    return hmac.new(digest.encode(), text.encode(), hashlib.sha256).hexdigest()


class Challenge:
    """One challenge to the server at `url`, as bytes of HTTP on a new connection.

    Send `request`, then give what comes back to `receive` until it is true.
    """

    def __init__(self, url: str, token: str) -> None:
        digest = digest_of(token)
        nonce = secrets.token_hex(32)
        self._expected = proof(digest, nonce, url)
        self._answer = b""
        parts = urlsplit(url)
        target = f"{parts.path.rstrip('/')}{PATH}?nonce={nonce}&key={key_id(digest)}"
        self.request = f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()

    def receive(self, data: bytes) -> bool:
        """Whether the proof is complete; PermissionError when it is none."""
        if not data:
            raise ConnectionResetError("the server left before it proved who it is")
        self._answer += data
        head, separator, body = self._answer.partition(b"\r\n\r\n")
        if len(self._answer) > _MAX_ANSWER_BYTES:
            raise _unproven("the answer is too long")
        if not separator:
            return False
        status = head.split(b"\r\n", 1)[0].split(b" ")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d{1,5})\b", head)
        if len(status) < 2 or status[1] != b"200" or length is None:
            raise _unproven(head.split(b"\r\n", 1)[0].decode("ascii", "replace"))
        missing = int(length[1]) - len(body)
        if missing > 0:
            return False
        if missing < 0 or not hmac.compare_digest(_proof_in(body), self._expected):
            raise _unproven("the proof is wrong")
        return True


def _proof_in(body: bytes) -> str:
    try:
        found = json.loads(body)["proof"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) and found.isascii() else ""


def _unproven(why: str) -> PermissionError:
    return PermissionError(
        f"it does not prove that it is this instance's server ({why});"
        " does [server] url name the address under which it is dialled?"
    )
