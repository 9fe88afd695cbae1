"""An endpoint that speaks OpenAI's completions, of chats and prompts, over a real
socket, and does what a test says.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "tiny/Tiny-8B"
KEY = "key-of-the-test"


@dataclass(frozen=True)
class Reply:
    """What is sent.

    `declared` is the length that the header claims; the connection is cut after the
    body.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    declared: int | None = None


def says(
    text: str | None, model: str = MODEL, *, chat: bool = True, **more: Any
) -> Reply:
    """A completion, of a chat or of a prompt."""
    said = (
        {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    )
    choice = {"index": 0, **said, "finish_reason": "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    document = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [choice],
        "usage": usage,
        **more,
    }
    return Reply(200, json.dumps(document).encode())


def fails(
    status: int, message: str = "no", code: str | None = None, **headers: str
) -> Reply:
    """An error in OpenAI's form; header names are written with underscores."""
    body = json.dumps(
        {"error": {"message": message, "type": "x", "param": None, "code": code}}
    ).encode()
    return Reply(
        status, body, {name.replace("_", "-"): value for name, value in headers.items()}
    )


CUT = Reply(200, b'{"id": "x", "obj', declared=1000)
Answer = Callable[[str, int], Reply]


class Endpoint:
    """Counts what it is asked, by prompt.

    `answer` gets the prompt and which request of that prompt this is, from 1.
    """

    def __init__(self) -> None:
        self.answer: Answer = lambda prompt, _: says(f"Answer to {prompt[:20]}")
        self.asked: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._now = 0
        self._turn = threading.Lock()
        self.url = ""

    def take(self, headers: Mapping[str, str], body: dict[str, Any]) -> Reply:
        """Answer one request."""
        if headers.get("Authorization") != f"Bearer {KEY}":
            return fails(401, "Incorrect API key provided")
        prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        with self._turn:
            self.requests.append(body)
            self.asked[prompt] += 1
            number = self.asked[prompt]
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            return self.answer(prompt, number)
        finally:
            with self._turn:
                self._now -= 1


def _handler(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known = self.path == (
                "/v1/completions" if "prompt" in body else "/v1/chat/completions"
            )
            reply = (
                endpoint.take(self.headers, body)
                if known
                else fails(404, "no such path")
            )
            try:
                self._send(reply)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def _send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            headers = {"Content-Type": "application/json", **reply.headers}
            headers["Content-Length"] = str(
                len(reply.body) if reply.declared is None else reply.declared
            )
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)
            self.close_connection = reply.declared is not None

        def log_message(self, format: str, *args: Any) -> None:
            """Tests need no log."""

    return Handler


@contextmanager
def serve() -> Iterator[Endpoint]:
    """An endpoint for the length of a test."""
    endpoint = Endpoint()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(endpoint))
    server.daemon_threads = True
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}
    )
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
