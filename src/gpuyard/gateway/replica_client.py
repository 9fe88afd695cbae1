"""Sends requests to replicas. One whose replica fails before it has said anything is
sent to another.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from gpuyard.gateway.request_queue import (
    ModelUnavailableError,
    Replica,
    RequestQueues,
)

if TYPE_CHECKING:
    import httpx

_TRIES = 3
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
BUSY = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
"""A replica that answers so may answer the same request a moment later."""
_BUSY_PAUSE_S = 0.5


@dataclass(slots=True)
class Answer:
    """What a replica answers. Its slot is taken until its `parts` have been read, or it
    was discarded. Whoever may not come to read it must discard it, which does no harm
    to one that was read.
    """

    replica: Replica
    response: "httpx.Response"
    began: float
    _first: bytes
    _rest: AsyncIterator[bytes]
    _queues: RequestQueues
    _is_over: bool = False

    async def parts(self) -> AsyncIterator[bytes]:
        """The bytes of the answer as they come; raises httpx.HTTPError if they break
        off.
        """
        took_s = None
        try:
            yield self._first
            async for part in self._rest:
                yield part
            took_s = time.monotonic() - self.began
        finally:
            await self._end(took_s)

    async def discard(self) -> None:
        """Read nothing more of it."""
        await self._end(None)

    async def _end(self, took_s: float | None) -> None:
        import httpx

        if self._is_over:
            return
        self._is_over = True
        try:
            with suppress(httpx.HTTPError):
                await self.response.aclose()
        finally:
            # Also when its reader is cancelled at this moment.
            self._queues.release(self.replica, took_s)


class ReplicaClient:
    """Sends requests to the replicas of the models."""

    def __init__(self, queues: RequestQueues) -> None:
        self._queues = queues

    @cached_property
    def _client(self) -> "httpx.AsyncClient":
        # late: a server that is never asked for a model needs no HTTP client
        import httpx

        timeout = httpx.Timeout(5.0, read=None, pool=None, write=None)
        return httpx.AsyncClient(
            trust_env=False, timeout=timeout, limits=httpx.Limits(max_connections=None)
        )

    async def ask(
        self,
        replica: Replica,
        path: str,
        body: Mapping[str, Any],
        another: Callable[[], Awaitable[Replica]],
    ) -> Answer:
        """Send the request to `replica`, in whose slot it is. If that fails, send it to
        another replica of the model, for which `another` waits.

        Raises ModelUnavailableError after three failures.
        """
        import httpx

        model = replica.model
        fault = ""
        for tries_left in reversed(range(_TRIES)):
            try:
                answer = await self._send(replica, path, body)
            except httpx.HTTPError as error:
                fault = f"{model} did not answer: {error or type(error).__name__}"
                replica.suspended = True
                self._queues.release(replica, None)
            except BaseException:
                self._queues.release(replica, None)
                raise
            else:
                if answer.response.status_code not in BUSY or not tries_left:
                    return answer
                await answer.discard()
                await asyncio.sleep(_BUSY_PAUSE_S)
            if tries_left:
                replica = await another()
        raise ModelUnavailableError(fault)

    async def _send(
        self, replica: Replica, path: str, body: Mapping[str, Any]
    ) -> Answer:
        """The answer once its first bytes are here."""
        import httpx

        began = time.monotonic()
        content = json.dumps({**body, "model": replica.served_name})
        url = f"{replica.url}/v1/{path}"
        request = self._client.build_request(
            "POST", url, content=content, headers=_HEADERS
        )
        response = await self._client.send(request, stream=True)
        rest = response.aiter_raw()
        try:
            first = await anext(rest, b"")
        except BaseException:
            with suppress(httpx.HTTPError):
                await response.aclose()
            raise
        return Answer(replica, response, began, first, rest, self._queues)
