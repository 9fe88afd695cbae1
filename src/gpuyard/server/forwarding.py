"""A server that stands by passes on to the leader what it cannot answer from the database itself."""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.domain.errors import InvalidInputError, UnreachableError
from gpuyard.server import problems
from gpuyard.server.body import MAX_BODY_BYTES
from gpuyard.server.yard import Yard

# How long a request waits for somebody to lead: a failover takes up to five seconds.
_PATIENCE_S = 15.0
_LOOK_AGAIN_S = 0.1
_TIMEOUT = httpx.Timeout(5.0, read=None, pool=None)
_FORWARDED, _NOT_LEADING = "x-gpuyard-forwarded", "x-gpuyard-not-leading"
_HERE = re.compile(
    r"GET /(healthz|metrics|docs.*|openapi\.json)|[A-Z]+ /api/v1/server(/.*)?"
    r"|GET /api/v1/(tiers|events|jobs|jobs/[^/]+(/(metrics|checkpoints))?)/?"
)
# Whoever asks for these twice has asked once.
_REPEATABLE = re.compile(r"(GET|HEAD) .*|POST /api/v1/jobs/[^/]+/cancel|PUT /api/v1/trust/.+")
# Of one connection, and not of the request or the answer.
_HOP = frozenset({b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te"})


class _AskAgainError(Exception):
    """The request was not taken, or may be made twice."""


class Forwarding:
    """ASGI middleware in front of the application."""

    def __init__(self, app: ASGIApp, yard: Yard) -> None:
        self._app = app
        self._yard = yard
        self._client = httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT, limits=httpx.Limits(max_connections=None))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer here, or pass on."""
        if scope["type"] != "http" or self._yard.leads or self._answers(scope):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if _FORWARDED.encode() in headers:  # two servers that take each other for the leader must not go on for ever
            answer = _refusal("This server does not lead.")
            answer.headers[_NOT_LEADING] = "1"
            await answer(scope, receive, send)
            return
        try:
            body = await _read(receive)
        except InvalidInputError as error:
            await problems.of_error(error)(scope, receive, send)
            return
        await self._pass_on(scope, body, receive, send)

    def _answers(self, scope: Scope) -> bool:
        if _HERE.fullmatch(f"{scope['method']} {scope['path']}"):
            return True
        given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        return not self._yard.admits(given.partition(" ")[2])  # it is refused here, as there

    async def _pass_on(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if self._yard.leads:  # by now it is this server
                await self._app(scope, _replayed(body, receive), send)
                return
            leader = self._yard.election.leader if self._yard.election else None
            if leader and leader.url != self._yard.url:
                try:
                    await self._ask(leader.url, scope, body, receive, send)
                    return
                except _AskAgainError:
                    pass
                except httpx.HTTPError:
                    text = "The server that leads went away before it answered; it may have taken the request."
                    await _refusal(text)(scope, receive, send)
                    return
            await asyncio.sleep(_LOOK_AGAIN_S)
        await _refusal("No server leads just now.")(scope, receive, send)

    async def _ask(self, url: str, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """One try: _AskAgainError when another one does no harm, HTTPError when it might."""
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP]
        path = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
        query = scope["query_string"].decode("latin-1")
        target = f"{url}{path}?{query}" if query else f"{url}{path}"
        request = self._client.build_request(
            scope["method"], target, headers=[*headers, (_FORWARDED.encode(), b"1")], content=body
        )
        try:
            answer = await self._client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _AskAgainError from error
        except httpx.HTTPError as error:
            if _is_repeatable(scope, body):
                raise _AskAgainError from error
            raise
        try:
            if _NOT_LEADING in answer.headers:
                raise _AskAgainError
            await _stream(answer, receive, send)
        finally:
            await answer.aclose()


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise InvalidInputError.of("(body)", f"is over {MAX_BODY_BYTES // 1_000_000} MB", "send fewer jobs at once")
        if not message.get("more_body"):
            return bytes(body)


async def _stream(answer: httpx.Response, receive: Receive, send: Send) -> None:
    """Hand the answer on as it comes, for as long as somebody wants it. One that breaks off breaks off here, too."""

    async def hand_on() -> None:
        headers = [(name, value) for name, value in answer.headers.raw if name.lower() not in _HOP]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        async for part in answer.aiter_raw():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def hung_up() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    handing, leaving = asyncio.create_task(hand_on()), asyncio.create_task(hung_up())
    try:
        await asyncio.wait([handing, leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (handing, leaving):
            task.cancel()
        _, pending = await asyncio.wait([handing, leaving])
        assert not pending
    if not handing.cancelled() and (error := handing.exception()):
        raise ConnectionError("the leader's answer broke off") from error


def _replayed(body: bytes, receive: Receive) -> Receive:
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return parts.pop() if parts else await receive()

    return replay


def _is_repeatable(scope: Scope, body: bytes) -> bool:
    """May the request be made twice? A submission may if each of its jobs has an idempotency key."""
    what = f"{scope['method']} {scope['path'].rstrip('/')}"
    if _REPEATABLE.fullmatch(what):
        return True
    if what != "POST /api/v1/jobs":
        return False
    try:
        read: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    items: list[Any] = read if isinstance(read, list) else [read]  # pyright: ignore[reportUnknownVariableType]
    return all(isinstance(item, Mapping) and "idempotency_key" in item for item in items)


def _refusal(text: str) -> Any:
    return problems.of_error(UnreachableError(text, "Ask again in a few seconds; with an idempotency_key it is safe."))
