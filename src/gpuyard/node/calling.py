"""Calls from a worker to the servers of its own instance: any of them may answer,
however long it takes. On a machine that has joined, the agent passes them on
(`node/worker_door.py`).

The worker shows a token of its own (`server/worker_tokens.py`), and only to a server
that has proven who it is.
"""

import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuyard.config.dialling import HttpConnection, connect_to_member
from gpuyard.config.paths import Home
from gpuyard.config.peers import read_peers
from gpuyard.config.sockets import connected_socket

# While another server takes over, none answers; all are tried again after this time.
_RETRY_S = 1.0


class CallRefusedError(Exception):
    """A server refused the call. The text is the server's answer."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that may answer; `dial` connects once it has proven who it is."""

    dial: Callable[[], socket.socket]
    netloc: str = "localhost"
    path: str = ""


Servers = Callable[[], Iterable[Server]]


def servers_of(home: Home) -> Iterator[Server]:
    """The servers that may answer, this home's own first. They come and go, so each
    round of calls asks anew.
    """
    yield server_at(home.server_socket)
    peers = read_peers(home)
    for url in peers.urls:
        try:
            parts = urlsplit(url)
            dial = partial(connect_to_member, url, peers.token, peers.tls)
            yield Server(dial, parts.netloc, parts.path.rstrip("/"))
        except ValueError:
            continue


def server_at(path: Path) -> Server:
    """The server of root or of our own user that listens at a Unix socket."""
    return Server(partial(connected_socket, path))


def call(
    servers: Servers,
    token: str,
    path: str,
    body: Any,
    timeout_s: float,
) -> Any:
    """POST `body` and return the answer, both JSON. The call is repeated after any
    error that is not the caller's fault (4xx); after a 503 when the server says.
    """
    data = json.dumps(body).encode()
    while True:
        pause_s = _RETRY_S
        for server in servers():
            connection = HttpConnection(server.netloc, server.dial, timeout_s)
            headers = {
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/json",
            }
            try:
                # Who is refused by the headers may find the way shut for the body; the
                # answer is there all the same.
                with suppress(BrokenPipeError):
                    connection.request("POST", server.path + path, data, headers)
                answer = connection.getresponse()
                content = answer.read()
                if answer.status < 400:
                    return json.loads(content)
                pause_s = _pause_s(answer, content)
            except (OSError, HTTPException, ValueError):
                continue  # the server is gone, or still starts
            finally:
                connection.close()
        time.sleep(pause_s)


def call_agent(path: Path, request: Mapping[str, Any], timeout_s: float) -> Any:
    """What the server answers to a `wire.TakeItem` that the agent at this Unix socket
    passes on. Repeated until there is an answer; CallRefusedError if the server
    refuses.
    """
    line = json.dumps({"type": "TakeItem", **request}).encode() + b"\n"
    while True:
        try:
            answer = _asked(path, line, timeout_s)
        except (OSError, ValueError):
            time.sleep(_RETRY_S)  # agent or server are gone, or still start
            continue
        if "refused" in answer:
            raise CallRefusedError(answer["refused"])
        return answer


def _asked(path: Path, line: bytes, timeout_s: float) -> dict[str, Any]:
    """The answer to a line; OSError, ValueError if there is none."""
    with closing(connected_socket(path)) as connected:
        connected.settimeout(timeout_s)
        connected.sendall(line)
        with connected.makefile("rb") as reading:
            return json.loads(reading.readline())


def _pause_s(answer: HTTPResponse, content: bytes) -> float:
    """After how many seconds to call again; CallRefusedError when that is no use."""
    if answer.status < 500:
        raise CallRefusedError(content.decode(errors="replace"))
    return float(answer.headers.get("Retry-After") or _RETRY_S)
