"""Reading without httpx: the same answers and the same errors as the full client."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from gpuyard.client.connection import Address
from gpuyard.client.light import Reader, can_read
from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    NotFoundError,
    UnreachableError,
)

ANSWERS: dict[str, tuple[int, Any]] = {
    "/api/v1/jobs?state=queued&state=running&limit=3": (
        200,
        {"items": [], "next": None},
    ),
    "/api/v1/none?": (
        404,
        {"code": "not_found", "detail": "No such job. Look.", "remedy": "Look."},
    ),
    "/api/v1/bad?": (
        422,
        {
            "code": "invalid_input",
            "faults": [{"field": "limit", "fault": "is 0", "remedy": "1"}],
        },
    ),
    "/api/v1/odd?": (500, "a page of a proxy"),
    "/api/v1/list?": (500, ["not", "a", "problem"]),
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, document = (
            ANSWERS[self.path]
            if self.headers["Authorization"] == "Bearer secret"
            else (401, None)
        )
        body = (
            document if isinstance(document, str) else json.dumps(document)
        ).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    reader = Reader(Address(f"http://127.0.0.1:{server.server_port}", "secret"))
    yield reader
    reader.close()
    server.shutdown()
    server.server_close()


def test_lists_in_the_query_are_repeated_names(reader: Reader) -> None:
    found = reader.get("/api/v1/jobs", {"state": ["queued", "running"], "limit": 3})
    assert found == {"items": [], "next": None}


@pytest.mark.parametrize(
    ("noun", "kind", "said"),
    [
        ("none", NotFoundError, "No such job. Look."),
        ("bad", InvalidInputError, r"limit: is 0 \(1\)"),
        ("odd", GpuyardError, "answered 500: a page of a proxy"),
        ("list", GpuyardError, "answered 500"),
    ],
)
def test_errors_are_the_servers(
    reader: Reader, noun: str, kind: type[GpuyardError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        reader.get(f"/api/v1/{noun}", {})


def test_nobody_there() -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 does not answer"):
        Reader(Address("http://127.0.0.1:1", "")).get("/", {})


@pytest.mark.parametrize(
    ("url", "can"),
    [
        ("http://127.0.0.1:8", True),
        ("http://[::1]:8", True),
        ("http://localhost", True),
        ("https://127.0.0.1:8", False),
        ("http://instance.example:8", False),
        ("nonsense", False),
        ("http://[::1", False),
        ("http://127.0.0.1:port", False),
    ],
)
def test_tls_and_other_machines_are_the_full_clients(url: str, can: bool) -> None:
    assert can_read(Address(url, "")) is can
