"""The HTTP side of tests/support/fake_ecs.py: requests, answers, and what goes wrong
with a connection.
"""

import json
import socket
import uuid
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.fake_ecs_machines import RefusalError

if TYPE_CHECKING:
    from tests.support.fake_ecs import FakeEcs

_HANGS_S = 60.0


def parameters(target: str, body: bytes) -> dict[str, str]:
    """The arguments of a request: those of its query, and of a form in its body."""
    found = dict(parse_qsl(urlsplit(target).query, keep_blank_values=True))
    return found | dict(parse_qsl(body.decode(), keep_blank_values=True))


def handler(ecs: "FakeEcs") -> type[BaseHTTPRequestHandler]:
    """Serves the API of `ecs`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            what = ecs.meet(headers.get("x-acs-action", ""))
            if ecs.latency_s:
                ecs.wait(ecs.latency_s)
            if what == "hang":
                ecs.wait(_HANGS_S)
            if what in ("hang", "lose"):
                self._cut()
                return
            if isinstance(what, int):
                self._send(what, b"<html>an error of a gateway</html>", "text/html")
                return
            try:
                if isinstance(what, RefusalError):
                    raise what
                answer = ecs.answer(self.path, headers, body)
            except RefusalError as error:
                with ecs.lock:
                    ecs.refused[error.code] += 1
                answer = {"Code": error.code, "Message": error.message, **error.more}
                status = error.status
            else:
                status = 200
            if what == "cut":
                self._cut()
                return
            answer["RequestId"] = str(uuid.uuid4()).upper()
            data = json.dumps(answer).encode()
            self._send(status, data, "application/json;charset=utf-8")

        def _cut(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def _send(self, status: int, data: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *_: Any) -> None:
            return

    return Handler
