"""What the cluster's API refuses, as errors of a provider."""

import json
from typing import Any

import aiohttp

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.fields import text_at

# HTTP codes after which the request can be repeated, whether or not it was carried out.
_TRANSIENT = {
    408: "TIMEOUT",
    429: "THROTTLED",
    500: "NOT_CONNECTED",
    502: "NOT_CONNECTED",
    503: "NOT_CONNECTED",
    504: "TIMEOUT",
}


class ApiError(ProviderError):
    """A request that the API server refused.

    `http` is the HTTP code, `reason` Kubernetes' word (`AlreadyExists`).
    """

    def __init__(
        self,
        message: str,
        provider: str,
        code: str,
        status: int,
        reason: str,
        retry_after_s: float,
    ) -> None:
        super().__init__(message, provider, code)
        self.http = status
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def is_not_found(self) -> bool:
        """Whether the object does not exist. A proxy in front of the API server may
        answer 404, too, and then nobody knows.
        """
        return self.http == 404 and self.reason == "NotFound"


class TooOldError(Exception):
    """The version at which a watch should begin is too old: list again."""


def refused(
    where: str, provider: str, answer: aiohttp.ClientResponse, data: bytes
) -> ApiError:
    """The error for an answer with this body. `where`: the server, for people."""
    try:
        status: Any = json.loads(data)
    except ValueError:
        status = None
    why = text_at(status, "message") or str(answer.reason or answer.status)
    reason = text_at(status, "reason")
    code = _TRANSIENT.get(answer.status, "REFUSED")
    if reason == "Conflict" or (answer.status == 404 and not reason):
        # Somebody else has changed the same object, such as a quota. Or a proxy has
        # answered.
        code = "NOT_CONNECTED"
    if answer.status == 401:
        # Nothing was done. Callers try again until somebody renews the account.
        code = "NOT_CONNECTED"
        why = "the credentials of its kubeconfig were refused (401); renew them"
    elif answer.status == 404 and "namespaces" in why and "not found" in why:
        why = f"{why}; create it, or set providers.{provider}.namespace"
    retry_after = answer.headers.get("Retry-After", "")
    wait_s = float(retry_after) if retry_after.isdigit() else 0.0
    return ApiError(f"{where}: {why}", provider, code, answer.status, reason, wait_s)


def refused_socket(where: str, provider: str, path: str, status: int) -> ApiError:
    """The error for a WebSocket that was refused: the server tells no more than a
    number.
    """
    what = "/".join(path.split("/")[-3:])
    why = f"{what} was refused ({status})"
    if status == 403:
        why += "; its account needs the rights `get` and `create` on pods/exec"
    code = _TRANSIENT.get(status, "REFUSED")
    return ApiError(f"{where}: {why}", provider, code, status, "", 0.0)
