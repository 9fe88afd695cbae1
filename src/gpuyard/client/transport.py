"""What both clients share: the form of requests, and answers read."""

import json
from typing import Any, TypeVar

import httpx

from gpuyard import __version__
from gpuyard.client.calls import Call
from gpuyard.client.connection import Address
from gpuyard.client.problems import error_of
from gpuyard.domain.errors import InvalidInputError, quoted

T = TypeVar("T")

# Reading has no limit: a log is followed for as long as the job runs.
TIMEOUT = httpx.Timeout(30.0, read=60.0)
STREAM_TIMEOUT = httpx.Timeout(30.0, read=None)


def options(address: Address) -> dict[str, Any]:
    """How both clients reach the server; InvalidInputError when its address is none."""
    try:
        url = httpx.URL(address.url)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidInputError.of(
            "GPUYARD_URL",
            f"is {quoted(address.url)}",
            "write it as http://127.0.0.1:8400",
        )
    headers = {
        "Authorization": f"Bearer {address.token}",
        "User-Agent": f"gpuyard/{__version__}",
        "Content-Type": "application/json",
    }
    # A proxy that the environment names is for other machines; it must never see this
    # one's token.
    elsewhere = url.host not in ("127.0.0.1", "::1", "localhost")
    return {"headers": headers, "timeout": TIMEOUT, "trust_env": elsewhere}


def content_of(body: Any) -> bytes | None:
    """The body as JSON; InvalidInputError when it has no JSON form (a date, an
    infinity, bytes that are not UTF-8).
    """
    if body is None:
        return None
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        remedy = "use text in UTF-8, finite numbers, lists and tables"
        raise InvalidInputError.of(
            "(body)", f"cannot be sent as JSON: {error}", remedy
        ) from None


def answer_of(call: Call[T], response: httpx.Response) -> T:
    """What the server answered; GpuyardError as it raised it."""
    if response.is_error:
        raise error_of(response.status_code, response.content)
    return call.read(response.json())
