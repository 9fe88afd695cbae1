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
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, cast

import aiohttp
import yaml
from kubernetes_asyncio import config as kube_config
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.config.config_exception import ConfigException
from kubernetes_asyncio.config.incluster_config import SERVICE_TOKEN_FILENAME

from gpuyard import __version__
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.fields import Json, objects_at, text_at, value_at

_JSON_BODY = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_SAME_CLOCK_S = 3.0
# HTTP codes after which the request can be repeated, whether or not it was carried out.
_TRANSIENT = {
    408: "TIMEOUT",
    429: "THROTTLED",
    500: "NOT_CONNECTED",
    502: "NOT_CONNECTED",
    503: "NOT_CONNECTED",
    504: "TIMEOUT",
}


class ApiError(ProviderError):
    """A request that the API server refused.

    `http` is the HTTP code, `reason` Kubernetes' word (`AlreadyExists`).
    """

    def __init__(
        self,
        message: str,
        provider: str,
        code: str,
        status: int,
        reason: str,
        retry_after_s: float,
    ) -> None:
        super().__init__(message, provider, code)
        self.http = status
        self.reason = reason
        self.retry_after_s = retry_after_s


class TooOldError(Exception):
    """The version at which a watch should begin is too old: list again."""


class KubernetesApi:
    """The API server of one cluster, as the account of the kubeconfig."""

    def __init__(self, settings: KubernetesConfig, provider: str) -> None:
        self._settings = settings
        self._provider = provider
        self._client: ApiClient | None = None
        self._connecting = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
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
        async with self._request(
            method, path, body, query, self._settings.timeout_s
        ) as answer:
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
            if error.http == 404:
                return None
            raise

    async def read(self, path: str, **query: Any) -> bytes:
        """The body of an answer that is not JSON."""
        async with self._request(
            "GET", path, None, query, self._settings.timeout_s
        ) as answer:
            return await answer.read()

    async def stream(self, path: str, **query: Any) -> AsyncIterator[bytes]:
        """The parts of an answer as they arrive."""
        async with self._request("GET", path, None, query, None) as answer:
            async for part in answer.content.iter_any():
                yield part

    async def list_objects(self, path: str, **query: Any) -> tuple[list[Json], str]:
        """All objects of a list, and the list's version, at which a watch can begin."""
        found: list[Json] = []
        while True:
            page = await self.call("GET", path, limit=500, **query)
            found += objects_at(page, "items")
            query["continue"] = text_at(page, "metadata", "continue")
            if not query["continue"]:
                return found, text_at(page, "metadata", "resourceVersion")

    async def watch(
        self, path: str, since: str, seconds: int, **query: Any
    ) -> AsyncIterator[Json]:
        """The changes after version `since`, for at most this many seconds.

        TooOldError when the server no longer has that version.
        """
        query |= {
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
        }
        limit_s = seconds + self._settings.timeout_s
        try:
            async with self._request("GET", path, None, query, limit_s) as answer:
                async for event in _lines(answer):
                    if event.get("type") == "ERROR":
                        if value_at(event, "object", "code") == 410:
                            raise TooOldError
                        raise self.unreachable(
                            f"a watch ended: {text_at(event, 'object', 'message')}"
                        )
                    yield event
        except ApiError as error:
            if error.http == 410:
                raise TooOldError from None
            raise

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    # --- the connection ---

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any],
        limit_s: float | None,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        client = await self._connected()
        headers = {
            "Accept": "*/*",
            "Content-Type": _MERGE_PATCH if method == "PATCH" else _JSON_BODY,
        }
        timeout = aiohttp.ClientTimeout(
            total=limit_s, sock_connect=self._settings.timeout_s
        )
        answer: aiohttp.ClientResponse | None = None
        try:
            answer = await client.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=timeout,
            )
            assert answer is not None
            self._compare_clocks(answer.headers.get("Date", ""))
            if answer.status >= 400:
                raise self._refused(answer, await answer.read())
            yield answer
        except TimeoutError:
            raise ProviderError(
                f"{self._where} does not answer in time.", self._provider, "TIMEOUT"
            ) from None
        # RuntimeError: another request got a 401, which closed this connection.
        except (aiohttp.ClientError, ConfigException, RuntimeError) as error:
            raise self.unreachable(str(error) or type(error).__name__) from None
        finally:
            if answer is not None:
                answer.release()

    def _compare_clocks(self, date: str) -> None:
        with suppress(ValueError, TypeError):
            ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
            self.ahead_s = ahead_s if abs(ahead_s) > _SAME_CLOCK_S else 0.0

    async def _connected(self) -> ApiClient:
        async with self._connecting:
            if self._client is None:
                self._client = await self._open()
                self._client.user_agent = f"gpuyard/{__version__}"
            return self._client

    async def _open(self) -> ApiClient:
        return ApiClient(await self._configuration())

    async def _configuration(self) -> Configuration:
        """From the kubeconfig, or the account of the pod this runs in.

        ProviderError names the file.
        """
        file = self._settings.kubeconfig
        if file is None and Path(SERVICE_TOKEN_FILENAME).exists():
            configuration = Configuration()
            kube_config.load_incluster_config(client_configuration=configuration)
            return configuration
        path = Path(file or "~/.kube/config").expanduser()
        return await self._loaded(path, f"The kubeconfig {path}")

    async def _loaded(self, path: Path, named: str) -> Configuration:
        configuration = Configuration()
        try:
            await kube_config.load_kube_config(
                str(path),
                self._settings.context,
                client_configuration=configuration,
                persist_config=False,
            )
        except (
            ConfigException,
            OSError,
            ValueError,
            TypeError,
            KeyError,
            yaml.YAMLError,
        ) as error:
            # The text of any other error might repeat a token from the file.
            is_safe = isinstance(error, ConfigException | OSError)
            why = error if is_safe else type(error).__name__
            message = (
                f"{named} cannot be used: {why}. Set"
                f" providers.{self._provider}.kubeconfig."
            )
            raise ProviderError(message, self._provider, "NOT_CONNECTED") from None
        return configuration

    @property
    def _where(self) -> str:
        host = self._client.configuration.host if self._client else "The cluster"
        return f"Kubernetes at {host}"

    def unreachable(self, why: str) -> ProviderError:
        """The error for a server that gives no usable answer; callers try again."""
        return ProviderError(f"{self._where}: {why}", self._provider, "NOT_CONNECTED")

    def _refused(self, answer: aiohttp.ClientResponse, data: bytes) -> ProviderError:
        try:
            status: Any = json.loads(data)
        except ValueError:
            status = None
        why = text_at(status, "message") or str(answer.reason or answer.status)
        reason = text_at(status, "reason")
        code = _TRANSIENT.get(answer.status, "REFUSED")
        if answer.status == 401:
            self._forget_client()
            # Nothing was done. Callers try again until somebody renews the account.
            code = "NOT_CONNECTED"
            why = "the credentials of its kubeconfig were refused (401); renew them"
        elif answer.status == 404 and "namespaces" in why and "not found" in why:
            why = f"{why}; create it, or set providers.{self._provider}.namespace"
        retry_after = answer.headers.get("Retry-After", "")
        wait_s = float(retry_after) if retry_after.isdigit() else 0.0
        return ApiError(
            f"{self._where}: {why}",
            self._provider,
            code,
            answer.status,
            reason,
            wait_s,
        )

    def _forget_client(self) -> None:
        """Let the next request read the kubeconfig again: it may have been renewed."""
        client = self._client
        self._client = None
        if client is not None:
            task = asyncio.get_running_loop().create_task(client.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    """The answer's lines, of any length, as JSON objects."""
    rest = b""
    async for part in answer.content.iter_any():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)
