"""What both clients share: the form of requests, and answers read."""

import json
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

import httpx

from gpuyard import __version__
from gpuyard.client.calls import Call
from gpuyard.client.connection import Address
from gpuyard.client.problems import error_of
from gpuyard.client.proven import AsyncOwnTransport, OwnTransport
from gpuyard.config.dialling import is_loopback, tls_context, trusts_anyone
from gpuyard.domain.errors import InvalidInputError, quoted

T = TypeVar("T")

# Reading has no limit: a log is followed for as long as the job runs.
_PIECE = 256 << 10
TIMEOUT = httpx.Timeout(30.0, read=60.0)
STREAM_TIMEOUT = httpx.Timeout(30.0, read=None)


def options(address: Address, transport: httpx.BaseTransport | None) -> dict[str, Any]:
    """How the client reaches the server, through `transport` if given.

    InvalidInputError when the address is none, or cannot prove who is there.
    """
    url = checked_url(address)
    if transport is None and url.scheme == "http" and is_loopback(url.host):
        transport = OwnTransport(address.socket, address.owner)
    return {"transport": transport, **_common(address, url)}


def async_options(
    address: Address, transport: httpx.AsyncBaseTransport | None
) -> dict[str, Any]:
    """`options` of the asynchronous client."""
    url = checked_url(address)
    if transport is None and url.scheme == "http" and is_loopback(url.host):
        transport = AsyncOwnTransport(address.socket, address.owner)
    return {"transport": transport, **_common(address, url)}


def checked_url(address: Address) -> httpx.URL:
    """The server's URL; InvalidInputError when it is none, or cannot prove who is
    there.
    """
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
    if url.scheme == "http" and not is_loopback(url.host) and not trusts_anyone():
        raise InvalidInputError.of(
            "GPUYARD_URL",
            f"is {quoted(address.url)}: by plain HTTP the server of another machine"
            " cannot prove who it is, and all between read your token",
            "write https://… (GPUYARD_CA_FILE names a certificate that the system does"
            " not know), or set GPUYARD_INSECURE=1",
        )
    return url


def _common(address: Address, url: httpx.URL) -> dict[str, Any]:
    headers = {
        "User-Agent": f"gpuyard/{__version__}",
        "Content-Type": "application/json",
        **address.identity_headers,
    }
    common: dict[str, Any] = {"headers": headers, "timeout": TIMEOUT}
    # A proxy that the environment names is for other machines; it must never see this
    # one's token.
    common["trust_env"] = not is_loopback(url.host)
    if url.scheme == "https":
        common["verify"] = tls_of_environment()
    return common


def tls_of_environment() -> ssl.SSLContext:
    """What servers with TLS must show; InvalidInputError names the variable that is
    wrong.
    """
    path = os.environ.get("GPUYARD_CA_FILE")
    try:
        return tls_context(path)
    except OSError as error:
        fault = f"is {quoted(path or '')}: {error.strerror or error}"
        remedy = "name a file of certificates in PEM"
        raise InvalidInputError.of("GPUYARD_CA_FILE", fault, remedy) from None


class Pieces:
    """A body in pieces. The socket takes a part of what it is given, and the library
    copies the rest each time: of 8 MB at once that took most of the time of an upload.
    """

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)

    def __iter__(self) -> Iterator[bytes]:
        for first in range(0, len(self._content), _PIECE):
            yield bytes(self._content[first : first + _PIECE])


class AsyncPieces:
    """The same for the asynchronous client, which sends nothing that can be read in
    both ways.
    """

    def __init__(self, content: bytes) -> None:
        self._pieces = Pieces(content)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def sent_as(
    content: bytes | None, pieces: type[Pieces | AsyncPieces] = Pieces
) -> dict[str, Any]:
    """The arguments of httpx with which a body is sent, again if need be, in `pieces`
    if it is large.
    """
    if content is None or len(content) <= _PIECE:
        return {"content": content}
    headers = {"Content-Length": str(len(content))}
    return {"content": pieces(content), "headers": headers}


def content_of(body: Any) -> bytes | None:
    """The body as JSON, or as it is if it is bytes; InvalidInputError when it has no
    JSON form (a date, an infinity, text that is not UTF-8).
    """
    if body is None or isinstance(body, bytes):
        return body
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
    return call.read(response.json() if response.content else None)
