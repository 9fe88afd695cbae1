"""Calls from a process on a node to the servers of its own instance: any of them may
answer, however long it takes.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from gpuyard.config.dialling import HttpConnection, connect_to_member
from gpuyard.config.paths import Home
from gpuyard.config.peers import read_peers
from gpuyard.config.sockets import connected_socket

# While another server takes over, none answers; all are tried again after this time.
_RETRY_S = 1.0
# A request may wait in the server's queue; this only ends a dead connection.
_TIMEOUT_S = 24 * 3600.0


class CallRefusedError(Exception):
    """A server refused the call. The text is the server's answer."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that may answer; `dial` connects once it has proven who it is."""

    dial: Callable[[], socket.socket]
    token: str
    netloc: str = "localhost"
    path: str = ""


def servers(home: Home) -> Iterator[Server]:
    """The servers that may answer, this home's own first."""
    peers = read_peers(home)
    try:
        token = home.token.read_text().strip()
    except OSError:
        token = ""  # it is in the server's environment
    if token or peers.token:
        yield Server(
            partial(connected_socket, home.server_socket), token or peers.token
        )
    for url in peers.urls:
        try:
            parts = urlsplit(url)
            dial = partial(connect_to_member, url, peers.token, peers.tls)
            yield Server(dial, peers.token, parts.netloc, parts.path.rstrip("/"))
        except ValueError:
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
        for server in servers(home):
            connection = HttpConnection(server.netloc, server.dial, timeout_s)
            headers = {
                "Authorization": f"Bearer {server.token}",
                "Content-Type": "application/json",
            }
            try:
                connection.request("POST", server.path + path, data, headers)
                answer = connection.getresponse()
                content = answer.read()
                if answer.status < 400:
                    return json.loads(content)
                pause_s = _pause_s(answer, content, stubborn)
            except (OSError, HTTPException, ValueError):
                continue  # the server is gone, or still starts
            finally:
                connection.close()
        time.sleep(pause_s)


def _pause_s(answer: HTTPResponse, content: bytes, stubborn: bool) -> float:
    """After how many seconds to call again; CallRefusedError when that is no use."""
    retry = answer.status == 503 or (stubborn and answer.status >= 500)
    if not retry:
        raise CallRefusedError(content.decode(errors="replace"))
    return float(answer.headers.get("Retry-After") or _RETRY_S)
