"""A real HTTP receiver of webhooks, in a thread: it answers as it is told and keeps
what came.
"""

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HANG = -1


@dataclass(frozen=True)
class Delivered:
    """One request."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    at: float

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    def is_signed_with(self, secret: str) -> bool:
        """As a receiver would check it."""
        signed = self.headers["X-Gpuyard-Timestamp"].encode() + b"." + self.raw
        expected = (
            "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        )
        return hmac.compare_digest(
            expected, self.headers.get("X-Gpuyard-Signature", "")
        )


@dataclass
class Receiver:
    """`answers` are statuses, one for each of the next requests (`HANG`: none at all);
    then 200. `headers` go along. A body that holds `poison` is
    answered with `poison_status`.
    """

    port: int
    answers: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    poison: bytes = b""
    poison_status: int = 500
    came: list[Delivered] = field(default_factory=list)
    taken: list[Delivered] = field(default_factory=list)
    open_connections: int = 0
    most_connections: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def bodies(self) -> list[Any]:
        """What was taken (answered with a 2xx)."""
        return [one.body for one in self.taken]


@contextmanager
def receiver(port: int = 0, path: Path | None = None) -> Iterator[Receiver]:
    """A receiver on `port` (0: a free one), or on the Unix socket at `path`; gone
    afterwards.
    """

    connections: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = path is None

        def setup(self) -> None:
            super().setup()
            connections.append(self.connection)
            made.open_connections += 1
            made.most_connections = max(made.most_connections, made.open_connections)

        def finish(self) -> None:
            super().finish()
            made.open_connections -= 1

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            raw = self.rfile.read(size)
            if len(raw) < size:  # its sender was killed
                self.close_connection = True
                return
            one = Delivered(
                self.path, dict(self.headers.items()), raw, time.monotonic()
            )
            status = made.answers.pop(0) if made.answers else 200
            if made.poison and made.poison in raw:
                status = made.poison_status
            made.came.append(one)
            if status == HANG:
                made.over.wait(60)
                self.close_connection = True
                return
            if status < 300:
                made.taken.append(one)
            self.send_response(status)
            for name, value in made.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def do_GET(self) -> None:
            made.came.append(
                Delivered(self.path, dict(self.headers.items()), b"", time.monotonic())
            )
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Nothing: senders are killed while they are answered."""

    class LocalServer(Server):
        address_family = socket.AF_UNIX

        def server_bind(self) -> None:
            self.socket.bind(self.server_address)

    if path:
        server = LocalServer(str(path), Handler)
        made = Receiver(0)
    else:
        server = Server(("127.0.0.1", port), Handler)
        made = Receiver(server.server_address[1])
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield made
    finally:
        made.over.set()
        server.shutdown()
        server.server_close()
        # Else those that were kept open would go on to answer.
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join()
