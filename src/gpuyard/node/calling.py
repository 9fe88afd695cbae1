"""Calls from a process on a node to the servers of its own instance: any of them may
answer, however long it takes.
"""

import json
import time
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from gpuyard.config.paths import Home

# While another server takes over, none answers; all are tried again after this time.
_RETRY_S = 1.0
# A request may wait in the server's queue; this only ends a dead connection.
_TIMEOUT_S = 24 * 3600.0
# The servers are on our own hosts: no proxy may see their token.
_open = build_opener(ProxyHandler({})).open


class CallRefusedError(Exception):
    """A server refused the call. The text is the server's answer."""


def servers(home: Home) -> Iterator[tuple[str, str]]:
    """Address and token of every server that may answer."""
    for path in (home.server, home.peers):
        try:
            body = json.loads(path.read_text())
            token = str(body.get("token") or home.token.read_text().strip())
            for url in body.get("urls") or [body["url"]]:
                yield str(url), token
        except (OSError, ValueError, KeyError, TypeError):
            continue


def call(
    home: Home,
    path: str,
    body: Any,
    timeout_s: float = _TIMEOUT_S,
    *,
    stubborn: bool = False,
) -> Any:
    """POST `body` and return the answer, both JSON. After a 503 the call is repeated
    when the server says.

    `stubborn`: repeat the call after any error that is not the caller's fault (4xx).
    """
    data = json.dumps(body).encode()
    while True:
        pause_s = _RETRY_S
        for url, token in servers(home):
            headers = {
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/json",
            }
            request = Request(url + path, data, headers)
            try:
                with _open(request, timeout=timeout_s) as answer:
                    return json.load(answer)
            except HTTPError as error:
                text = error.read().decode(errors="replace")
                retry = error.code == 503 or (stubborn and error.code >= 500)
                if not retry:
                    raise CallRefusedError(text) from None
                pause_s = float(error.headers.get("Retry-After") or _RETRY_S)
            except (URLError, OSError, HTTPException, ValueError):
                continue  # the server is gone, or still starts
        time.sleep(pause_s)
