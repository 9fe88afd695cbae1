"""The cluster's API: requests as plain JSON, watches, and errors as ProviderError.

`kubernetes_asyncio` reads kubeconfigs (certificates, tokens, exec plugins) and sends
the requests. Its models are not used, since we need plain data.
"""

# kubernetes_asyncio has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, cast

import aiohttp
import structlog

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.api_errors import (
    ApiError,
    TooOldError,
    refused,
    refused_socket,
)
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.connection import ClusterConnection, notice_death
from gpuyard.providers.kubernetes.credentials import (
    CredentialsError,
    from_kubeconfig,
    in_cluster,
)
from gpuyard.providers.kubernetes.fields import Json, objects_at, text_at, value_at

log = structlog.get_logger(__name__)
_JSON_BODY = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_SAME_CLOCK_S = 3.0
# How many objects one answer lists.
_PAGE = 500


@dataclass(frozen=True, slots=True)
class _Request:
    """`limit_s`: until the whole answer is here. `silence_s`: between two parts of it.
    None: for ever. A stream has a connection of its own.
    """

    method: str
    path: str
    query: Mapping[str, Any]
    body: Mapping[str, Any] | None = None
    limit_s: float | None = None
    silence_s: float | None = None
    is_stream: bool = False


class KubernetesApi:
    """The API server of one cluster, as the account of the kubeconfig."""

    def __init__(self, settings: KubernetesConfig, provider: str) -> None:
        self._settings = settings
        self._provider = provider
        self._connection: ClusterConnection | None = None
        self._host = ""
        self._connecting = asyncio.Lock()
        self.ahead_s = 0.0
        """How many seconds the cluster's clock is ahead of ours.

        Differences of up to 3 seconds count as 0.
        """

    @property
    def namespaced(self) -> str:
        """The path of the namespace in the core API."""
        return f"/api/v1/namespaces/{self._settings.namespace}"

    @property
    def jobs(self) -> str:
        """The path of its Jobs."""
        return f"/apis/batch/v1/namespaces/{self._settings.namespace}/jobs"

    @property
    def pods(self) -> str:
        """The path of its pods."""
        return f"{self.namespaced}/pods"

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        **query: Any,
    ) -> Json:
        """The answer to a request.

        ApiError when the server refused it, ProviderError when no answer came.
        """
        request = _Request(method, path, query, body, self._settings.timeout_s)
        async with self._answer(request) as answer:
            data = await answer.read()
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self.unreachable(
                "it answers something else than a JSON object; is this a Kubernetes API"
                " server?"
            )
        return cast("Json", found)

    async def call_or_none(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        **query: Any,
    ) -> Json | None:
        """Like `call`; None when the object does not exist."""
        try:
            return await self.call(method, path, body, **query)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def serves(self, path: str) -> bool:
        """Whether the server has this part of the API."""
        try:
            await self.call("GET", path)
        except ApiError as error:
            if error.http == 404:
                return False
            raise
        return True

    async def read(
        self, path: str, enough_s: float | None = None, **query: Any
    ) -> bytes:
        """The body of an answer that is not JSON. With `enough_s`, what of it has come
        by then: it may grow faster than it is read.
        """
        request = _Request("GET", path, query, limit_s=self._settings.timeout_s)
        began = time.monotonic()
        body = bytearray()
        async with self._answer(request) as answer:
            async for part in answer.content.iter_any():
                body += part
                if enough_s and time.monotonic() - began > enough_s:
                    break
        return bytes(body)

    async def stream(self, path: str, **query: Any) -> AsyncGenerator[bytes]:
        """The parts of an answer as they arrive."""
        request = _Request("GET", path, query, is_stream=True)
        async with self._answer(request) as answer:
            async for part in answer.content.iter_any():
                yield part

    @asynccontextmanager
    async def websocket(
        self, path: str, protocols: Sequence[str], query: Sequence[tuple[str, str]]
    ) -> AsyncGenerator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket; ApiError when the server refused it, ProviderError when no
        answer came.
        """
        asked = (path, protocols, query, self._settings.timeout_s)
        async with AsyncExitStack() as stack:
            connection = await self._connected()
            stack.enter_context(connection.used())
            try:
                try:
                    opened = await connection.open_websocket(*asked)
                except aiohttp.WSServerHandshakeError as error:
                    is_old = error.status == 401
                    renewed = await self._renewed(connection) if is_old else None
                    if renewed is None:
                        raise refused_socket(
                            self._where, self._provider, path, error.status
                        ) from None
                    stack.enter_context(renewed.used())
                    opened = await renewed.open_websocket(*asked)
            except TimeoutError:
                raise self._too_slow() from None
            except (aiohttp.ClientError, RuntimeError) as error:
                raise self.unreachable(str(error) or type(error).__name__) from None
            stack.push_async_callback(opened.close)
            yield opened

    async def list_objects(self, path: str, **query: Any) -> tuple[list[Json], str]:
        """All objects of a list, and the list's version, at which a watch can begin."""
        found: list[Json] = []
        rest = ""
        while True:
            place: dict[str, Any] = {"continue": rest} if rest else {}
            try:
                page = await self.call("GET", path, limit=_PAGE, **query, **place)
            except ApiError as error:
                if error.http != 410 or not rest:
                    raise
                # The version of the first pages is too old by now.
                found = []
                rest = ""
                continue
            found += objects_at(page, "items")
            rest = text_at(page, "metadata", "continue")
            if not rest:
                return found, text_at(page, "metadata", "resourceVersion")

    async def watch(self, path: str, since: str, **query: Any) -> AsyncIterator[Json]:
        """The changes after version `since`, until the server ends the watch or says
        nothing for too long: then its connection may be dead.

        TooOldError when the server no longer has that version.
        """
        query |= {
            "watch": "true",
            "resourceVersion": since,
            # Signs of life, which also tell newer versions.
            "allowWatchBookmarks": "true",
            "timeoutSeconds": self._settings.watch_s,
        }
        silence_s = self._settings.watch_silence_s
        request = _Request("GET", path, query, silence_s=silence_s, is_stream=True)
        try:
            async with self._answer(request) as answer:
                async for event in _lines(answer):
                    yield self._checked(event)
        except ApiError as error:
            if error.http == 410:
                raise TooOldError from None
            raise

    def _checked(self, event: Json) -> Json:
        if event.get("type") != "ERROR":
            return event
        if value_at(event, "object", "code") == 410:
            raise TooOldError
        raise self.unreachable(f"a watch ended: {text_at(event, 'object', 'message')}")

    async def close(self) -> None:
        """Close the connections."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            await connection.close()

    # --- requests ---

    @asynccontextmanager
    async def _answer(
        self, request: _Request
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """The answer to a request. When the account is refused, the request is repeated
        once with new credentials, if there are any.
        """
        async with AsyncExitStack() as stack:
            connection = await self._connected()
            stack.enter_context(connection.used())
            try:
                answer = await stack.enter_async_context(
                    self._sent(request, connection)
                )
            except ApiError as error:
                renewed = await self._renewed(connection) if error.http == 401 else None
                if renewed is None:
                    raise
                stack.enter_context(renewed.used())
                answer = await stack.enter_async_context(self._sent(request, renewed))
            yield answer

    @asynccontextmanager
    async def _sent(
        self, request: _Request, connection: ClusterConnection
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        client = connection.streams if request.is_stream else connection.calls
        is_patch = request.method == "PATCH"
        headers = {
            "Accept": "*/*",
            "Content-Type": _MERGE_PATCH if is_patch else _JSON_BODY,
        }
        timeout = aiohttp.ClientTimeout(
            total=request.limit_s,
            sock_connect=self._settings.timeout_s,
            sock_read=request.silence_s,
        )
        answer: aiohttp.ClientResponse | None = None
        try:
            answer = await client.call_api(
                request.path,
                request.method,
                query_params=list(request.query.items()),
                header_params=headers,
                body=request.body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=timeout,
            )
            assert answer is not None
            notice_death(answer)
            self._compare_clocks(answer.headers.get("Date", ""))
            if answer.status >= 400:
                raise refused(self._where, self._provider, answer, await answer.read())
            yield answer
        except TimeoutError:
            # The other connections may be dead, too.
            self._forget(connection)
            raise self._too_slow() from None
        # RuntimeError: `close` was called meanwhile.
        except (aiohttp.ClientError, RuntimeError) as error:
            raise self.unreachable(str(error) or type(error).__name__) from None
        finally:
            if answer is not None:
                answer.release()

    def _compare_clocks(self, date: str) -> None:
        with suppress(ValueError, TypeError):
            ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
            self.ahead_s = ahead_s if abs(ahead_s) > _SAME_CLOCK_S else 0.0

    # --- the connection ---

    async def _connected(self) -> ClusterConnection:
        """The connection, with credentials that are not about to expire."""
        async with self._connecting:
            current = self._connection
            if current is None:
                current = await self._open()
            elif current.is_old():
                current = await self._reopened(current)
            self._connection = current
            self._host = current.host
            return current

    async def _reopened(self, old: ClusterConnection) -> ClusterConnection:
        try:
            new = await self._open()
        except ProviderError as error:
            log.warning(
                "credentials could not be renewed, will try again",
                provider=self._provider,
                error=str(error),
            )
            old.keep_for_now()
            return old
        old.retire()
        return new

    async def _renewed(self, refused: ClusterConnection) -> ClusterConnection | None:
        """A connection with other credentials than those that the server refused; None
        if there are no others. Who reads from the old one goes on.
        """
        async with self._connecting:
            if self._connection not in (None, refused):
                return self._connection
            new = await self._open()
            if new.credentials.equal(refused.credentials):
                await new.close()
                return None
            self._connection = new
            refused.retire()
            return new

    def _forget(self, connection: ClusterConnection) -> None:
        """Let the next request open another one."""
        if self._connection is connection:
            self._connection = None
        connection.retire()

    async def _open(self) -> ClusterConnection:
        """With the kubeconfig, or the account of the pod this runs in.

        ProviderError names the file.
        """
        file = self._settings.kubeconfig
        path = Path(file or "~/.kube/config").expanduser()
        try:
            credentials = in_cluster() if file is None else None
            if credentials is None:
                credentials = await from_kubeconfig(
                    path, self._settings.context, self._settings.timeout_s
                )
            return ClusterConnection(credentials)
        except (CredentialsError, OSError) as error:
            raise self._unusable(f"The kubeconfig {path}", str(error)) from None

    def _unusable(self, named: str, why: str) -> ProviderError:
        message = (
            f"{named} cannot be used: {why}. Set providers.{self._provider}.kubeconfig."
        )
        return ProviderError(message, self._provider, "NOT_CONNECTED")

    @property
    def _where(self) -> str:
        return f"Kubernetes at {self._host}" if self._host else "Kubernetes"

    def _too_slow(self) -> ProviderError:
        message = f"{self._where} does not answer in time."
        return ProviderError(message, self._provider, "TIMEOUT")

    def unreachable(self, why: str) -> ProviderError:
        """The error for a server that gives no usable answer; callers try again."""
        return ProviderError(f"{self._where}: {why}", self._provider, "NOT_CONNECTED")


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    """The answer's lines, of any length, as JSON objects; they end when it is silent
    for too long.
    """
    rest = b""
    with suppress(TimeoutError):
        async for part in answer.content.iter_any():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.strip():
                    yield json.loads(line)
