"""The heads of requests to what a job serves, and of its answers: read strictly, and
rewritten. Bodies are not looked at.

The job learns neither who asks nor how they have signed in. Its program believes that a
browser on its own machine asks. Its answer can do nothing to our cookies.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuyard.domain.errors import RequestRefusedError

Header = tuple[str, str]
# Of all our cookies, with and without TLS.
_OURS = ("gpuyard_", "__host-gpuyard_")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST = re.compile(r"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]")
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})( [^\x00-\x1f]*)?")
_BAD = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# Twice, they could mean one thing to us and another to the job.
_ONCE = frozenset({"host", "content-length", "origin", "upgrade", "transfer-encoding"})
# Of one connection: each connection to a job carries one request.
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade"}
)
_NOT_FOR_JOBS = _HOP_BY_HOP | {
    "authorization",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "origin",
    "proxy-authorization",
    "referer",
    "x-real-ip",
}
_NOT_FOR_JOBS_PREFIXES = ("x-forwarded-", "x-gpuyard-")
# They reach beyond the host name of the job, or of its answer.
_NOT_FROM_JOBS = _HOP_BY_HOP | {
    "alt-svc",
    "clear-site-data",
    # Two values would cancel each other.
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    # A service worker serves only what is beside its program and below.
    "service-worker-allowed",
    "set-cookie",
    "strict-transport-security",
}
_ADDED = (
    # No other site frames it or reads it, and it tells none its address.
    ("Content-Security-Policy", "frame-ancestors 'self'"),
    # Who has opened it keeps no hold of it.
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "same-origin"),
)


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of a message, and its headers with names in small letters."""

    first: str
    headers: list[Header]

    def get(self, name: str) -> str:
        """The value of a header that comes once; empty if it does not come."""
        return next((value for key, value in self.headers if key == name), "")

    def encoded(self) -> bytes:
        """As it is sent."""
        lines = [self.first, *(f"{name}: {value}" for name, value in self.headers)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request, and what it says of the rest."""

    head: Head
    method: str
    target: str
    length: int
    is_websocket: bool


def read_head(raw: bytes) -> Head:
    """A head with the empty line that ends it; RequestRefusedError for what is none."""
    first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    headers: list[Header] = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or _BAD.search(value):
            raise _malformed()
        headers.append((name.lower(), value.strip(" \t")))
    names = [name for name, _ in headers if name in _ONCE]
    if len(names) != len(set(names)) or _BAD.search(first):
        raise _malformed()
    return Head(first, headers)


def read_request(raw: bytes) -> Request:
    """The head of a request; RequestRefusedError for what is none, or none that a
    browser sends.
    """
    head = read_head(raw)
    line = _REQUEST.fullmatch(head.first)
    length = head.get("content-length") or "0"
    is_odd = head.get("transfer-encoding") or not re.fullmatch("[0-9]{1,18}", length)
    if line is None or is_odd:
        raise _malformed()
    upgrade = head.get("upgrade").lower()
    is_websocket = upgrade == "websocket" and line[1] == "GET" and length == "0"
    return Request(head, line[1], line[2], int(length), is_websocket)


def for_job(request: Request, port: int) -> Head:
    """What the job gets of the head of a request."""
    here = f"127.0.0.1:{port}"
    headers: list[Header] = [("host", here)]
    for name, value in request.head.headers:
        if name not in _NOT_FOR_JOBS and not name.startswith(_NOT_FOR_JOBS_PREFIXES):
            headers.append((name, value))
    if request.head.get("origin"):
        # It was checked: it is that of the job's own pages.
        headers.append(("origin", f"http://{here}"))
    if cookies := _without_ours(request.head.headers):
        headers.append(("cookie", cookies))
    headers += _connection(is_websocket=request.is_websocket)
    return Head(f"{request.method} {request.target} HTTP/1.1", headers)


def status_of(answer: Head) -> int:
    """The status of an answer; RequestRefusedError for what is none."""
    line = _STATUS.fullmatch(answer.first)
    if line is None:
        raise _malformed()
    return int(line[1])


def for_browser(answer: Head, port: int, origin: str) -> Head:
    """What the browser gets of the head of a job's answer; to it, the job is at
    `origin`.
    """
    headers: list[Header] = []
    for name, value in answer.headers:
        if name == "location":
            headers.append((name, _location(value, port, origin)))
        elif name == "set-cookie":
            headers += _confined(value)
        elif name not in _NOT_FROM_JOBS:
            headers.append((name, value))
    headers += _ADDED
    headers += _connection(is_websocket=status_of(answer) == 101)
    return Head(answer.first, headers)


def cookie_of(head: Head, name: str) -> str | None:
    """A cookie of a request."""
    for key, value in head.headers:
        for pair in value.split(";") if key == "cookie" else ():
            found, _, content = pair.strip().partition("=")
            if found == name:
                return content or None
    return None


def _connection(*, is_websocket: bool) -> list[Header]:
    if is_websocket:
        return [("connection", "Upgrade"), ("upgrade", "websocket")]
    return [("connection", "close")]


def _is_ours(pair: str) -> bool:
    return pair.partition("=")[0].strip().lower().startswith(_OURS)


def _without_ours(headers: Iterable[Header]) -> str:
    given = [value for name, value in headers if name == "cookie"]
    pairs = [pair.strip() for value in given for pair in value.split(";")]
    return "; ".join(pair for pair in pairs if pair and not _is_ours(pair))


def _confined(value: str) -> list[Header]:
    """A cookie of the job's for its own host name alone; none if it has a name of
    ours.
    """
    pair, *attributes = value.split(";")
    # A cookie without a name is sent as its value alone.
    if _is_ours(pair.lstrip(" \t=")):
        return []
    kept = [one for one in attributes if not one.strip().lower().startswith("domain")]
    return [("set-cookie", ";".join([pair, *kept]))]


def _location(value: str, port: int, origin: str) -> str:
    """The same place, where the program named the address of its own machine."""
    for host in ("127.0.0.1", "localhost"):
        own = f"http://{host}:{port}"
        rest = value.removeprefix(own)
        if rest != value and (not rest or rest[0] in "/?#"):
            return origin + rest
    return value


def _malformed() -> RequestRefusedError:
    return RequestRefusedError("This is no message of HTTP/1.1 that is passed on.")
