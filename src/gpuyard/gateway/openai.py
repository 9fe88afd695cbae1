"""OpenAI's API under `/v1`: each request goes to a resident of its model, and the
answer back as it comes.

The body is passed on as it is but for the model's name. A request whose replica dies
before it has said anything is asked of another one; after the first byte the break is
the client's to see.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from gpuyard.gateway.replica_client import Answer, ReplicaClient
from gpuyard.gateway.replica_errors import ReplicaFailedError, ReplicaSilentError
from gpuyard.gateway.request_queue import (
    PRIORITIES,
    REQUEST_PRIORITY,
    ModelUnavailableError,
    QueuedRequestTerms,
    RequestQueues,
)

PRIORITY_HEADER = "X-Gpuyard-Priority"
"""A header of requests: their priority, as of jobs."""
_RETRY_AFTER_S = 30
_EVENTS = "text/event-stream"
_PASSED = frozenset({"content-type", "cache-control", "x-request-id"})
PREFIX = "/v1"
"""Where OpenAI's API is."""
_PATHS = ("chat/completions", "completions", "embeddings", "responses", "rerank")


_JSON = {"application/json": {"schema": {"type": "object"}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The model's answer; with `stream`, as server-sent events.",
        "content": {**_JSON, "text/event-stream": {}},
    },
    400: {"description": "The request is none.", "content": _JSON},
    404: {"description": "There is no such model.", "content": _JSON},
    503: {
        "description": "The model cannot be loaded, or was not free in time.",
        "content": _JSON,
    },
    504: {"description": "The model said nothing for too long.", "content": _JSON},
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["model"],
                    "properties": {"model": {"type": "string"}},
                }
            }
        },
    }
}


class _Passed(StreamingResponse):
    """The answer of a replica, passed on. A client may leave at any time; then nobody
    reads it.
    """

    def __init__(self, answer: Answer, headers: Mapping[str, str]) -> None:
        super().__init__(answer.parts(), answer.response.status, headers)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        # One task, where Starlette has a group of two for each answer.
        gone = asyncio.create_task(_disconnected(receive))
        gone.add_done_callback(lambda _: self._answer.discard())
        try:
            await self._send(send)
        except ReplicaFailedError:
            if not gone.done():
                raise
        finally:
            gone.cancel()
            self._answer.discard()

    async def _send(self, send: Send) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        try:
            async for part in self._answer.parts():
                await send(_body(part, more=True))
        except ReplicaSilentError:
            if not self.headers.get("content-type", "").startswith(_EVENTS):
                raise
            told = _silent(self._answer.replica.model)
            # It may have fallen silent within an event, or a line of one.
            event = b"\n\ndata: " + bytes(told.body) + b"\n\n"
            await send(_body(event, more=True))
        await send(_body(b"", more=False))


def _body(content: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


class Gateway:
    """`why_not(model)` says why a model cannot be loaded at all, or None. A request
    waits at most `timeout_s` for a replica, which may say nothing for `silent_s` at a
    time (None: for ever).
    """

    def __init__(
        self,
        queues: RequestQueues,
        replicas: ReplicaClient,
        timeout_s: float,
        why_not: Callable[[str], str | None],
        silent_s: float | None = None,
    ) -> None:
        self._queues = queues
        self._replicas = replicas
        self._timeout_s = timeout_s
        self._why_not = why_not
        self._silent_s = silent_s

    def models(self) -> dict[str, Any]:
        """What can be asked for, as OpenAI lists it."""
        data = [_model(name) for name in self._queues.by_model]
        return {"object": "list", "data": data}

    def model(self, name: str) -> Response:
        """One of the models, as OpenAI shows it."""
        if name not in self._queues.by_model:
            return self._no_model(name)
        return JSONResponse(_model(name))

    def _no_model(self, name: object) -> Response:
        known = (
            ", ".join(self._queues.by_model)
            or "none: add [models.NAME] to gpuyard.toml"
        )
        return error_answer(
            404,
            f"there is no model {name!r}; there is: {known}",
            "invalid_request_error",
            "model_not_found",
        )

    async def answer(self, path: str, request: Request) -> Response:
        """Pass the request on and its answer back."""
        try:
            body = json.loads(await request.body())
            model = body["model"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return error_answer(
                400,
                "send a JSON object that names a `model`",
                "invalid_request_error",
                "invalid_body",
            )
        if not isinstance(model, str) or model not in self._queues.by_model:
            return self._no_model(model)
        if reason := self._why_not(model):
            return error_answer(503, reason, "server_error", "model_cannot_be_loaded")
        try:
            priority = _priority(request)
        except ValueError as error:
            return error_answer(
                400, str(error), "invalid_request_error", "invalid_priority"
            )
        terms = QueuedRequestTerms(
            priority, deadline=time.monotonic() + self._timeout_s
        )
        asking = asyncio.create_task(self._ask(path, body, terms))
        gone = asyncio.create_task(_disconnected(request.receive))
        await asyncio.wait([asking, gone], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not asking.done():
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            return Response(status_code=499)  # nobody reads it
        try:
            return asking.result()
        except ReplicaSilentError:
            return _silent(model)
        except ModelUnavailableError as error:
            return error_answer(
                503,
                str(error),
                "server_error",
                "no_answer",
                {"Retry-After": str(_RETRY_AFTER_S)},
            )

    async def _ask(
        self, path: str, body: dict[str, Any], terms: QueuedRequestTerms
    ) -> Response:
        model = body["model"]
        replica = await self._queues.acquire(model, terms)
        answer = await self._replicas.ask(
            replica,
            path,
            body,
            lambda: self._queues.acquire_again(model, terms),
            self._silent_s,
        )
        headers = {
            name: value
            for name, value in answer.response.headers.items()
            if name in _PASSED
        }
        return _Passed(answer, headers)


class DirectRoute(BaseRoute):
    """What is asked of models, past all other routes: to look through them took half a
    millisecond of each request. The routes of `make_router` describe it.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._paths = {f"{PREFIX}/{path}": path for path in _PATHS}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See Starlette."""
        is_asked = scope["type"] == "http" and scope["method"] == "POST"
        if is_asked and scope["path"] in self._paths:
            return Match.FULL, {}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Starlette."""
        path = self._paths[scope["path"]]
        response = await self._gateway.answer(path, Request(scope, receive))
        await response(scope, receive, send)


def make_router(gateway: Gateway) -> APIRouter:
    """The routes, which their server guards."""
    router = APIRouter(prefix=PREFIX, tags=["openai"])

    @router.get("/models")
    async def models() -> dict[str, Any]:
        """The models that can be asked for, loaded or not."""
        return gateway.models()

    def add(path: str) -> None:
        async def ask(request: Request) -> Response:
            return await gateway.answer(path, request)

        ask.__doc__ = f"OpenAI's `{path}`, from a resident of the model."
        router.add_api_route(
            f"/{path}",
            ask,
            methods=["POST"],
            name=path.replace("/", "_"),
            response_model=None,
            responses=_RESPONSES,
            openapi_extra=_BODY,
        )

    for path in _PATHS:
        add(path)

    @router.get(
        "/models/{name:path}", response_model=None, responses={404: _RESPONSES[404]}
    )
    async def model(name: str) -> Response:
        """One of the models that can be asked for."""
        return gateway.model(name)

    return router


def no_such_path(path: str) -> str:
    """What is said of a path under `/v1` that is not here."""
    known = ", ".join(("models", *_PATHS))
    return f"there is no {path} here; under {PREFIX} there are: {known}"


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "gpuyard"}


def _priority(request: Request) -> int:
    """The priority in the request's header; raises ValueError for a wrong one."""
    text = request.headers.get(PRIORITY_HEADER, str(REQUEST_PRIORITY))
    known = {str(priority): priority for priority in PRIORITIES}
    if text not in known:
        raise ValueError(
            f"{PRIORITY_HEADER} is {text!r}; write a number from 1 to 5, the most"
            " urgent"
        )
    return known[text]


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _silent(model: str) -> JSONResponse:
    """What is said of a model that has said nothing for too long."""
    return error_answer(
        HTTPStatus.GATEWAY_TIMEOUT,
        f"{model} has said nothing for too long; [residency] silent_s sets how long it"
        " may",
        "server_error",
        "model_is_silent",
        # OpenAI's clients would ask again, and wait as long.
        {"X-Should-Retry": "false"},
    )


def error_answer(
    status: int,
    message: str,
    kind: str,
    code: str,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """An error in OpenAI's form."""
    return JSONResponse(
        {"error": {"message": message, "type": kind, "param": None, "code": code}},
        status,
        headers,
    )
