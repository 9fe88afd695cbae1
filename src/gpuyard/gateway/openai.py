"""OpenAI's API under `/v1`: each request goes to a resident of its model, and the
answer back as it comes.

The body is passed on as it is but for the model's name. A request whose replica dies
before it has said anything is asked of another one; after the first byte the break is
the client's to see.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from gpuyard.gateway.request_queue import ModelUnavailableError, Replica, RequestQueues

if TYPE_CHECKING:
    import httpx

_TRIES = 3
_RETRY_AFTER_S = 30
_PASSED = frozenset({"content-type", "cache-control", "x-request-id"})
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
_PATHS = ("chat/completions", "completions", "embeddings")


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


class Gateway:
    """`why_not(model)` says why a model cannot be loaded at all, or None."""

    def __init__(
        self,
        queues: RequestQueues,
        timeout_s: float,
        why_not: Callable[[str], str | None],
    ) -> None:
        self._queues = queues
        self._timeout_s = timeout_s
        self._why_not = why_not

    @cached_property
    def _client(self) -> "httpx.AsyncClient":
        # late: a server that is never asked for a model needs no HTTP client
        import httpx

        timeout = httpx.Timeout(5.0, read=None, pool=None, write=None)
        return httpx.AsyncClient(
            trust_env=False, timeout=timeout, limits=httpx.Limits(max_connections=None)
        )

    def models(self) -> dict[str, Any]:
        """What can be asked for, as OpenAI lists it."""
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "gpuyard"}
            for name in self._queues.by_model
        ]
        return {"object": "list", "data": data}

    async def answer(self, path: str, request: Request) -> Response:
        """Pass the request on and its answer back."""
        try:
            body = json.loads(await request.body())
            model = body["model"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return _error(
                400,
                "send a JSON object that names a `model`",
                "invalid_request_error",
                "invalid_body",
            )
        if not isinstance(model, str) or model not in self._queues.by_model:
            known = (
                ", ".join(self._queues.by_model)
                or "none: add [models.NAME] to gpuyard.toml"
            )
            return _error(
                404,
                f"there is no model {model!r}; there is: {known}",
                "invalid_request_error",
                "model_not_found",
            )
        if reason := self._why_not(model):
            return _error(503, reason, "server_error", "model_cannot_be_loaded")
        asking = asyncio.create_task(self._ask(path, model, body))
        gone = asyncio.create_task(_disconnected(request))
        await asyncio.wait([asking, gone], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not asking.done():
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            return Response(status_code=499)  # nobody reads it
        try:
            return asking.result()
        except ModelUnavailableError as error:
            return _error(
                503,
                str(error),
                "server_error",
                "no_answer",
                {"Retry-After": str(_RETRY_AFTER_S)},
            )

    async def _ask(self, path: str, model: str, body: dict[str, Any]) -> Response:
        import httpx

        replica = await self._queues.acquire(model, self._timeout_s)
        deadline = time.monotonic() + self._timeout_s
        fault = ""
        for _ in range(_TRIES):
            began = time.monotonic()
            try:
                content = json.dumps({**body, "model": replica.served_name})
                question = self._client.build_request(
                    "POST",
                    f"{replica.url}/v1/{path}",
                    content=content,
                    headers=_HEADERS,
                )
                answer = await self._client.send(question, stream=True)
            except httpx.HTTPError as error:
                fault = f"{model} did not answer: {error or type(error).__name__}"
                replica.suspended = True
                self._queues.release(replica, None)
                replica = await self._queues.acquire_again(
                    model, max(deadline - time.monotonic(), 0.0)
                )
                continue
            except BaseException:
                self._queues.release(replica, None)
                raise
            headers = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() in _PASSED
            }
            return StreamingResponse(
                self._pass(answer, replica, began), answer.status_code, headers
            )
        self._queues.release(replica, None)
        raise ModelUnavailableError(fault)

    async def _pass(
        self, answer: "httpx.Response", replica: Replica, began: float
    ) -> AsyncIterator[bytes]:
        """The answer's bytes; the slot is free when they end, or when nobody reads them
        any more.
        """
        import httpx

        took_s = None
        try:
            async for part in answer.aiter_raw():
                yield part
            took_s = time.monotonic() - began
        finally:
            with suppress(httpx.HTTPError):
                await answer.aclose()
            self._queues.release(replica, took_s)


def make_router(gateway: Gateway) -> APIRouter:
    """The routes, which their server guards."""
    router = APIRouter(prefix="/v1", tags=["openai"])

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
    return router


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _error(
    status: int,
    message: str,
    kind: str,
    code: str,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    return JSONResponse(
        {"error": {"message": message, "type": kind, "param": None, "code": code}},
        status,
        headers,
    )
