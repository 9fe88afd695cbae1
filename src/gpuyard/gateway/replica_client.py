"""Sends requests to replicas. One whose replica fails before it has said anything is
sent to another.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from gpuyard.gateway.replica_errors import ReplicaFailedError, ReplicaSilentError
from gpuyard.gateway.request_queue import (
    ModelUnavailableError,
    Replica,
    RequestQueues,
)

if TYPE_CHECKING:
    from gpuyard.gateway.replica_http import ReplicaConnections, ReplicaResponse

_TRIES = 3
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
    response: "ReplicaResponse"
    began: float
    _first: bytes
    _queues: RequestQueues
    _is_over: bool = False

    async def parts(self) -> AsyncIterator[bytes]:
        """The bytes of the answer as they come; raises ReplicaFailedError if they break
        off.
        """
        took_s = None
        try:
            part = self._first
            while part:
                yield part
                part = await self.response.part()
            took_s = time.monotonic() - self.began
        finally:
            self._end(took_s)

    def discard(self) -> None:
        """Read nothing more of it."""
        self._end(None)

    def _end(self, took_s: float | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self.response.close()
        self._queues.release(self.replica, took_s)


class ReplicaClient:
    """Sends requests to the replicas of the models."""

    def __init__(self, queues: RequestQueues) -> None:
        self._queues = queues
        self._connections: ReplicaConnections | None = None

    async def keep_connections(self) -> None:
        """Keep the connections until this is cancelled."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if self._connections:
                await self._connections.close()

    async def ask(
        self,
        replica: Replica,
        path: str,
        body: Mapping[str, Any],
        another: Callable[[], Awaitable[Replica]],
        silent_s: float | None = None,
    ) -> Answer:
        """Send the request to `replica`, in whose slot it is. If that fails, send it to
        another replica of the model, for which `another` waits.

        Raises ModelUnavailableError after three failures, ReplicaSilentError if it
        says nothing for `silent_s` (None: there is no limit). Another replica would be
        as slow.
        """
        model = replica.model
        fault = ""
        for tries_left in reversed(range(_TRIES)):
            try:
                answer = await self._send(replica, path, body, silent_s)
            except ReplicaSilentError:
                self._queues.release(replica, None)
                raise
            except ReplicaFailedError as error:
                fault = f"{model} did not answer: {error}"
                replica.suspended = True
                self._queues.release(replica, None)
            except BaseException:
                self._queues.release(replica, None)
                raise
            else:
                if answer.response.status not in BUSY or not tries_left:
                    return answer
                answer.discard()
                await asyncio.sleep(_BUSY_PAUSE_S)
            if tries_left:
                replica = await another()
        raise ModelUnavailableError(fault)

    async def _send(
        self,
        replica: Replica,
        path: str,
        body: Mapping[str, Any],
        silent_s: float | None,
    ) -> Answer:
        """The answer once its first bytes are here."""
        if self._connections is None:
            # Late: a gpuyard server without models needs no HTTP client.
            from gpuyard.gateway.replica_http import ReplicaConnections

            self._connections = ReplicaConnections()
        began = time.monotonic()
        content = json.dumps({**body, "model": replica.served_name}).encode()
        url = f"{replica.url}/v1/{path}"
        response = await self._connections.post(url, content, silent_s)
        try:
            first = await response.part()
        except BaseException:
            response.close()
            raise
        return Answer(replica, response, began, first, self._queues)
