"""Who is shown the page at an address where nothing is."""

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from starlette.types import Message

from gpuyard.domain.errors import UnauthorizedError
from gpuyard.server import edge, problems, web_page
from gpuyard.server.edge import PUBLIC_PATHS

HTML = "text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    index = web_page._PageFile(b"<html>the page</html>", "text/html", None)
    monkeypatch.setattr(web_page, "_files", lambda: {"index.html": index})


def scope_of(path: str, method: str = "GET", **headers: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(n.encode(), value.encode()) for n, value in headers.items()],
    }


def shown(path: str, method: str = "GET", **headers: str) -> Response | None:
    return web_page.nothing_here(Request(scope_of(path, method, **headers)))


def test_a_person_is_shown_the_page() -> None:
    for path in ("/nowhere", "/job/1", "/apis"):
        answer = shown(path, accept=HTML)
        assert answer is not None
        assert (answer.status_code, answer.body) == (404, b"<html>the page</html>")
        assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_a_program_is_not() -> None:
    programs = ("/api/v1/no", "/v1/no", "/metrics/no", "/assets/no.js", "/auth/no")
    for path in (*programs, *PUBLIC_PATHS):
        assert shown(path, accept=HTML) is None, path
    assert shown("/nowhere") is None
    assert shown("/nowhere", accept="application/json") is None
    assert shown("/nowhere", "POST", accept=HTML) is None
    assert shown("/nowhere", accept=HTML, authorization="Bearer wrong") is None


async def _status(app: Any, scope: dict[str, Any]) -> tuple[int, bytes]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


def test_nor_is_json_shown_to_a_person_whom_nobody_knows() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await edge._refuse(UnauthorizedError("No token."), scope, receive, send)

    app = FastAPI()
    problems.install(app)
    page = (404, b"<html>the page</html>")
    assert asyncio.run(_status(refuse, scope_of("/nowhere", accept=HTML))) == page
    assert asyncio.run(_status(app, scope_of("/nowhere", accept=HTML))) == page
    status, body = asyncio.run(_status(refuse, scope_of("/nowhere")))
    assert (status, body[:1]) == (401, b"{")
    status, body = asyncio.run(_status(app, scope_of("/api/no", accept=HTML)))
    assert (status, body[:1]) == (404, b"{")
