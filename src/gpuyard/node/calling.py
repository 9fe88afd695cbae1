"""How a process on a node calls the yard's own servers: whichever answers, for as long as it takes."""

import json
import time
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from gpuyard.config.paths import Home

# No server answers while one takes over; this is how often it is looked for.
_AGAIN_S = 1.0
# A request may wait in the server's line; this only ends a connection of which nothing will come any more.
_LONGEST_S = 24 * 3600.0
# The servers are on our own hosts: no proxy may see their token.
_open = build_opener(ProxyHandler({})).open


class CallRefusedError(Exception):
    """A server has answered that it will not. The text is what it said."""


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


def call(home: Home, path: str, body: Any, timeout_s: float = _LONGEST_S, *, stubborn: bool = False) -> Any:
    """POST `body` and give the answer, both JSON. One that says 503 is asked again when it wants to be.

    `stubborn`: whatever is not the caller's own fault (4xx) is asked again.
    """
    data = json.dumps(body).encode()
    while True:
        pause = _AGAIN_S
        for url, token in servers(home):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            try:
                with _open(Request(url + path, data, headers), timeout=timeout_s) as answer:
                    return json.load(answer)
            except HTTPError as error:
                said = error.read().decode(errors="replace")
                if error.code != 503 and not (stubborn and error.code >= 500):
                    raise CallRefusedError(said) from None
                pause = float(error.headers.get("Retry-After") or _AGAIN_S)
            except (URLError, OSError, HTTPException, ValueError):
                continue  # it is gone, or starts
        time.sleep(pause)
