"""The tokens of workers. Each is worth one call, for one batch, while one attempt
lives.

A worker runs a script of anybody under any account, so it must not have the token of
the instance. Its own is derived from that, so it is stored nowhere, and every server of
the instance can check it.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuyard.domain.errors import ForbiddenError

# What a worker's token begins with; ours have no dot.
_KIND = "worker"
# Where the scope of a request (ASGI) has the claim of the worker that has sent it.
CLAIM_KEY = "gpuyard.worker"


@dataclass(frozen=True, slots=True)
class WorkerClaim:
    """What a worker's token says: the attempt with its fencing token, and the batch
    whose items it takes.
    """

    attempt_id: str
    fence: int
    batch_id: str

    def check_call(self, what: str) -> None:
        """ForbiddenError unless `what` (method and path) is a worker's call about its
        own batch.
        """
        if what != f"POST /api/v1/batches/{self.batch_id}/take":
            raise ForbiddenError(
                f"This token is a worker's. It takes items of {self.batch_id}, and"
                " nothing else.",
                "Use the token of the instance.",
            )

    def check_life(self, fence: int | None) -> None:
        """ForbiddenError when its attempt is over. `fence`: the fencing token of the
        live attempt with this id, None if there is none.
        """
        if fence != self.fence:
            raise ForbiddenError(
                f"The attempt {self.attempt_id}, whose token this is, is over.",
                "Its items are others' by now.",
            )

    def check_attempt(self, attempt_id: str) -> None:
        """ForbiddenError when the worker speaks for another one."""
        if attempt_id != self.attempt_id:
            raise ForbiddenError(
                f"attempt_id is {attempt_id}, and this token is that of"
                f" {self.attempt_id}.",
                "A worker speaks for itself only.",
            )


def looks_like_worker_token(token: str) -> bool:
    """Whether it has the form of a worker's token."""
    return token.startswith(f"{_KIND}.") and token.isascii()


def issue(digest: str, claim: WorkerClaim) -> str:
    """The token of a worker. `digest`: of the token of the server that issues it
    (`config/proof.py`), which the other servers know, too.
    """
    content = _encoded(
        msgspec.json.encode([claim.attempt_id, claim.fence, claim.batch_id])
    )
    return f"{_KIND}.{content}.{_signature(digest, content)}"


def read(digests: Sequence[str], token: str) -> WorkerClaim | None:
    """What a token says that one of the servers with these digests has issued; None if
    none of them has. `looks_like_worker_token` must be true of it.
    """
    _, _, rest = token.partition(".")
    content, _, signature = rest.partition(".")
    # Each is compared, as in `AppState.admits`.
    matches = [
        hmac.compare_digest(signature, _signature(digest, content))
        for digest in digests
    ]
    if not any(matches):
        return None
    decoded = base64.urlsafe_b64decode(content + "=" * (-len(content) % 4))
    return WorkerClaim(*msgspec.json.decode(decoded, type=tuple[str, int, str]))


def _signature(digest: str, content: str) -> str:
    text = f"gpuyard worker\n{content}"
    return hmac.new(digest.encode(), text.encode(), hashlib.sha256).hexdigest()


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
