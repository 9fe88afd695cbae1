"""Slack's incoming webhooks, as far as Slack documents what it takes and refuses.

A message is refused with 400 and the word that Slack says; calls beyond one a second
get 429 and `Retry-After`, if the test asks for that.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

PATH = "/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"
_MOST_BLOCKS = 50
_LONGEST_TEXT = 40_000
_LONGEST_SECTION = 3000
_MOST_ELEMENTS = 10
_FIELDS = {"text", "blocks", "attachments", "mrkdwn", "unfurl_links", "unfurl_media"}
# Control sequences, and characters that must be written as entities.
_UNESCAPED = re.compile(r"[<>]|&(?!amp;|lt;|gt;)")

Json = dict[str, Any]


class RefusedError(Exception):
    """Slack refuses the message; the text is what it answers."""


def check_message(message: object) -> Json:
    """The message, if Slack would show it; RefusedError."""
    if not isinstance(message, dict):
        raise RefusedError("invalid_payload")
    found = cast("Json", message)
    if set(found) - _FIELDS:
        raise RefusedError("invalid_payload")
    text = found.get("text", "")
    blocks = found.get("blocks", [])
    if not isinstance(text, str) or not isinstance(blocks, list):
        raise RefusedError("invalid_payload")
    if not text and not blocks:
        raise RefusedError("no_text")
    if len(text) > _LONGEST_TEXT:
        raise RefusedError("msg_too_long")
    _check_escaped(text)
    some = cast("list[Json]", blocks)
    if len(some) > _MOST_BLOCKS:
        raise RefusedError("invalid_blocks")
    for block in some:
        _check_block(block)
    return found


def _check_block(block: Json) -> None:
    match block.get("type"):
        case "section":
            _check_text(block.get("text"))
        case "context":
            elements = block.get("elements")
            if not isinstance(elements, list) or not elements:
                raise RefusedError("invalid_blocks")
            some = cast("list[Json]", elements)
            if len(some) > _MOST_ELEMENTS:
                raise RefusedError("invalid_blocks")
            for element in some:
                _check_text(element)
        case "divider":
            pass
        case _:
            raise RefusedError("invalid_blocks")


def _check_text(found: object) -> None:
    if not isinstance(found, dict):
        raise RefusedError("invalid_blocks")
    text = cast("Json", found)
    value = text.get("text")
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_SECTION:
        raise RefusedError("invalid_blocks")
    kind = text.get("type")
    if kind not in ("plain_text", "mrkdwn"):
        raise RefusedError("invalid_blocks")
    # Each kind of text has one option of its own.
    option = "emoji" if kind == "plain_text" else "verbatim"
    if set(text) - {"type", "text", option}:
        raise RefusedError("invalid_blocks")
    _check_escaped(value)


def _check_escaped(text: str) -> None:
    """Slack would read these as mentions and links. Nothing of ours is meant so."""
    if _UNESCAPED.search(text):
        raise RefusedError("invalid_payload")


@dataclass
class FakeSlack:
    """What it has shown, and what it has refused. `busy`: how many calls to answer with
    429 before it takes the next; each asks to wait for `retry_after_s`. `answer`: what
    it says to all, such as 410 for a channel that is archived.
    """

    url: str = ""
    shown: list[Json] = field(default_factory=list[Json])
    refused: list[str] = field(default_factory=list[str])
    busy: int = 0
    retry_after_s: int = 1
    calls_while_busy: int = 0
    gone: str = ""

    def take(self, path: str, content_type: str, body: bytes) -> tuple[int, str]:
        """The status and the text of an answer."""
        if path != PATH:
            return 404, "no_service"
        if self.gone:
            return 410, self.gone
        if self.busy:
            self.busy -= 1
            self.calls_while_busy += 1
            return 429, "rate_limited"
        try:
            if not content_type.startswith("application/json"):
                raise RefusedError("invalid_payload")
            self.shown.append(check_message(json.loads(body)))
        except (RefusedError, ValueError) as error:
            self.refused.append(str(error))
            return 400, str(error)
        return 200, "ok"


class _Server(ThreadingHTTPServer):
    slack: FakeSlack


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # type: ignore[assignment]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        slack = self.server.slack
        status, text = slack.take(self.path, self.headers.get("Content-Type", ""), body)
        answer = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(answer)))
        if status == 429:
            self.send_header("Retry-After", str(slack.retry_after_s))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def fake_slack(**settings: Any) -> Iterator[FakeSlack]:
    """A Slack on a port of this host."""
    slack = FakeSlack(**settings)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.slack = slack
        slack.url = f"http://127.0.0.1:{server.server_address[1]}{PATH}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield slack
        finally:
            server.shutdown()
            thread.join()
