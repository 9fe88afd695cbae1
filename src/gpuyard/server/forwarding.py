"""A standby server forwards to the leader what it cannot answer from the database."""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.domain.errors import RequestRefusedError, UnreachableError
from gpuyard.server import problems
from gpuyard.server.app_state import AppState
from gpuyard.server.member_client import member_client
from gpuyard.server.sign_in.cookies import Cookies
from gpuyard.server.sign_in.forwarded import ForwardedBrowser

# How long a request waits for a leader: a failover takes up to five seconds.
_WAIT_FOR_LEADER_S = 15.0
_POLL_S = 0.1
_FORWARDED = "x-gpuyard-forwarded"
_NOT_LEADING = "x-gpuyard-not-leading"
_ANSWERED_HERE = re.compile(
    r"GET /(healthz|metrics|docs.*|openapi\.json)|[A-Z]+ /api/v1/server(/.*)?"
    r"|GET /api/v1/(tiers|events|jobs|jobs/[^/]+(/(metrics|checkpoints))?)/?"
    r"|GET /api/v1/(schedules|arrays)(/[^/]+)?/?"
    # These concern the client's host, which need not be the leader's.
    r"|POST /api/v1/(code|environments)/?|POST /api/v1/tokens:rotate-owner"
)
# Sending one of these twice has the same effect as sending it once.
_REPEATABLE = re.compile(
    r"(GET|HEAD) .*|POST /api/v1/(jobs|arrays)/[^/]+/cancel"
    r"|PUT /api/v1/(trust|secrets|budgets)/.+"
)
# These may be sent twice if they have an idempotency key.
_KEYED = re.compile(
    r"POST /api/v1/(jobs|arrays|schedules|jobs/[^/]+/rerun|schedules/[^/]+/run)"
)
# Headers of one connection, which are not forwarded.
_HOP_BY_HOP = frozenset(
    {b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te"}
)


class _RetryError(Exception):
    """The leader did not accept the request, or it may be sent twice."""


class Forwarding:
    """ASGI middleware in front of the application."""

    def __init__(self, app: ASGIApp, app_state: AppState) -> None:
        self._app = app
        self._app_state = app_state
        # By the URL, and the token that the server there must know.
        self._clients: dict[tuple[str, str], httpx.AsyncClient] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request here, or forward it."""
        if scope["type"] != "http" or self._app_state.leads or _is_answered_here(scope):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if _FORWARDED.encode() in headers:
            # Two servers that take each other for the leader must not forward for ever.
            answer = _refusal("This server does not lead.")
            answer.headers[_NOT_LEADING] = "1"
            await answer(scope, receive, send)
            return
        try:
            body = await _read(receive)
        except RequestRefusedError as error:  # as the edge says
            await problems.of_error(error)(scope, receive, send)
            return
        if body is None:
            return  # the client has left
        await self._forward(scope, body, receive, send)

    async def _forward(
        self, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> None:
        deadline = time.monotonic() + _WAIT_FOR_LEADER_S
        while time.monotonic() < deadline:
            if self._app_state.leads:  # this server has become the leader
                await self._app(scope, _replayed(body, receive), send)
                return
            leader = (
                self._app_state.election.leader if self._app_state.election else None
            )
            if leader and leader.url != self._app_state.url:
                try:
                    await self._ask(leader.url, scope, body, receive, send)
                    return
                except _RetryError:
                    pass
                except httpx.HTTPError:
                    text = (
                        "The leader stopped before it answered; it may have accepted"
                        " the request."
                    )
                    await _refusal(text)(scope, receive, send)
                    return
            await asyncio.sleep(_POLL_S)
        await _refusal("No server is the leader at the moment.")(scope, receive, send)

    def _client_of(self, url: str) -> httpx.AsyncClient:
        app_state = self._app_state
        key = (url, app_state.token)
        if key not in self._clients:
            self._clients[key] = member_client(*key, app_state.tls)
        return self._clients[key]

    async def _ask(
        self, url: str, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> None:
        """Send the request to the leader once.

        Raises _RetryError when it can safely be sent again, and HTTPError when not.
        """
        browser = ForwardedBrowser(self._app_state.sign_in.cookies, Cookies(url))
        passed = [
            (name, value) for name, value in scope["headers"] if name not in _HOP_BY_HOP
        ]
        headers = browser.request(passed)
        raw_path = scope.get("raw_path")
        path = raw_path.decode("latin-1") if raw_path else scope["path"]
        query = scope["query_string"].decode("latin-1")
        target = f"{url}{path}?{query}" if query else f"{url}{path}"
        client = self._client_of(url)
        tls_name = self._app_state.tls.name
        request = client.build_request(
            scope["method"],
            target,
            headers=[*headers, (_FORWARDED.encode(), b"1")],
            content=body,
            extensions={"sni_hostname": tls_name} if tls_name else None,
        )
        try:
            answer = await client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _RetryError from error
        except httpx.HTTPError as error:
            if _is_repeatable(scope, body):
                raise _RetryError from error
            raise
        try:
            if _NOT_LEADING in answer.headers:
                raise _RetryError
            await _stream(answer, browser, receive, send)
        finally:
            await answer.aclose()


def _is_answered_here(scope: Scope) -> bool:
    return bool(_ANSWERED_HERE.fullmatch(f"{scope['method']} {scope['path']}"))


async def _read(receive: Receive) -> bytes | None:
    """The body, no longer than the edge lets it be; None when it breaks off."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


async def _stream(
    answer: httpx.Response, browser: ForwardedBrowser, receive: Receive, send: Send
) -> None:
    """Send the answer on as it arrives, until the client disconnects.

    If the leader's answer breaks off, so does this one.
    """

    async def send_on() -> None:
        headers = [
            (name, value)
            for name, value in answer.headers.raw
            if name.lower() not in _HOP_BY_HOP
        ]
        await send(
            {
                "type": "http.response.start",
                "status": answer.status_code,
                "headers": browser.answer(headers),
            }
        )
        async for part in answer.aiter_raw():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    sending = asyncio.create_task(send_on())
    listening = asyncio.create_task(disconnected())
    try:
        await asyncio.wait([sending, listening], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, listening):
            task.cancel()
        _, pending = await asyncio.wait([sending, listening])
        assert not pending
    if not sending.cancelled() and (error := sending.exception()):
        raise ConnectionError("the leader's answer broke off") from error


def _replayed(body: bytes, receive: Receive) -> Receive:
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return parts.pop() if parts else await receive()

    return replay


def _is_repeatable(scope: Scope, body: bytes) -> bool:
    """Whether the request may be sent twice.

    A submission may if each of its jobs has an idempotency key, or the schedule.
    """
    what = f"{scope['method']} {scope['path'].rstrip('/')}"
    if _REPEATABLE.fullmatch(what):
        return True
    if not _KEYED.fullmatch(what):
        return False
    try:
        read: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    items: list[Any] = read if isinstance(read, list) else [read]  # pyright: ignore[reportUnknownVariableType]
    return all(
        isinstance(item, Mapping) and "idempotency_key" in item for item in items
    )


def _refusal(text: str) -> Any:
    return problems.of_error(
        UnreachableError(
            text, "Ask again in a few seconds; with an idempotency_key it is safe."
        )
    )
